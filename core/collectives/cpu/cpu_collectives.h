// SPDX-License-Identifier: Apache-2.0
//
// CpuCollectives: the Exchange of a communicator, each of whose collectives
// runs inside a Call of the stream. So a stream with a thread runs them there,
// and an inline stream runs them in the thread that enqueues them.

#ifndef SHARD_CORE_COLLECTIVES_CPU_CPU_COLLECTIVES_H_
#define SHARD_CORE_COLLECTIVES_CPU_CPU_COLLECTIVES_H_

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/collectives/collectives.h"

namespace shard::cpu {

class CpuCollectives final : public Collectives {
 public:
  CpuCollectives(std::shared_ptr<Exchange> exchange, std::vector<RankSet> sets,
                 double timeout)
      : exchange_(std::move(exchange)),
        sets_(std::move(sets)),
        timeout_(timeout) {}

  SumOrder order() const override { return SumOrder::kRankOrder; }
  void ReduceScatter(std::string_view tag, const RankSet& set,
                     const ReduceScatterArgs& args, Stream* stream) override;
  void AllGatherBlocks(std::string_view tag, const RankSet& set,
                       const void* send, size_t bytes, void* recv,
                       Stream* stream) override;
  void Broadcast(std::string_view tag, int root, void* data, size_t bytes,
                 Stream* stream) override;

  // Collectives of a group run one after the other.
  void BeginGroup(Stream*) override {}
  void EndGroup(Stream*) override {}

  std::optional<Deadline> SetDeadline(
      std::optional<Deadline> deadline) override {
    return std::exchange(deadline_, deadline);
  }

 private:
  // Enqueues `work`, a Status(Exchange*, const Deadline&).
  template <typename Work>
  void Enqueue(std::string_view tag, Stream* stream, Work work);
  Status CheckOpened(std::string_view tag, const RankSet& set) const;

  const std::shared_ptr<Exchange> exchange_;
  const std::vector<RankSet> sets_;
  const double timeout_;
  std::optional<Deadline> deadline_;
};

}  // namespace shard::cpu

#endif  // SHARD_CORE_COLLECTIVES_CPU_CPU_COLLECTIVES_H_
