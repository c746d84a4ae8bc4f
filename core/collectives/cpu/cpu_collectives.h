// SPDX-License-Identifier: Apache-2.0
//
// CpuCollectives: the Exchange of a communicator, in the order of streams, on
// tensors in memory of the host.

#ifndef SHARD_CORE_COLLECTIVES_CPU_CPU_COLLECTIVES_H_
#define SHARD_CORE_COLLECTIVES_CPU_CPU_COLLECTIVES_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/collectives/exchange_collectives.h"

namespace shard::cpu {

class CpuCollectives final : public ExchangeCollectives {
 public:
  CpuCollectives(std::shared_ptr<Exchange> exchange, std::vector<RankSet> sets,
                 double timeout)
      : ExchangeCollectives(std::move(exchange), std::move(sets), timeout) {}

  std::string transport() const override { return "host"; }
  void ReduceScatter(std::string_view tag, const RankSet& set,
                     const ReduceScatterArgs& args, Stream* stream) override;
  void AllGatherBlocks(std::string_view tag, const RankSet& set,
                       const void* send, size_t bytes, void* recv,
                       Stream* stream) override;
  void Broadcast(std::string_view tag, int root, void* data, size_t bytes,
                 Stream* stream) override;
  void GatherOnHosts(std::string_view tag, const RankSet& set, const void* send,
                     size_t bytes, int block_groups, void* recv,
                     Stream* stream) override;
};

}  // namespace shard::cpu

#endif  // SHARD_CORE_COLLECTIVES_CPU_CPU_COLLECTIVES_H_
