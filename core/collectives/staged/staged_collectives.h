// SPDX-License-Identifier: Apache-2.0
//
// StagedCollectives: the Exchange of a communicator, in the order of streams,
// on tensors that only streams reach. A collective is cut into chunks. The
// stream copies a chunk to staging memory, which the host reaches too, the
// ranks exchange it there, and the stream copies the result back. Results have
// the bits of CpuCollectives, for each element is summed on its own.
//
//   ReduceScatter     [block 0 | block 1 | ... | recv], a chunk of each
//   AllGatherBlocks   [block 0 | block 1 | ...], a chunk of each
//   Broadcast         a chunk of the data
//
// A set of one rank exchanges nothing: its tensors stay on the device, but
// where the sum of two dtypes is rounded.
//
// Each chunk is a call of the Exchange: it is what events count, and its size
// is what the message has where the calls of the ranks differ. All ranks have
// staging memory of one size, and so the same chunks. A collective that fits
// has one chunk.
//
// When memory runs out, a method may have enqueued some of its chunks.

#ifndef SHARD_CORE_COLLECTIVES_STAGED_STAGED_COLLECTIVES_H_
#define SHARD_CORE_COLLECTIVES_STAGED_STAGED_COLLECTIVES_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/collectives/exchange_collectives.h"
#include "core/device/device.h"

namespace shard::staged {

// Returns the bytes of staging memory that a world of that size takes:
// `wanted`, or more where a chunk would have no place for some rank.
size_t StagingBytes(size_t wanted, int world_size);

class StagedCollectives final : public ExchangeCollectives {
 public:
  // `staging`: StagingBytes of Device::AllocateHost. It is freed with the
  // collectives, so all that they have enqueued must have run, or been dropped,
  // before.
  StagedCollectives(std::shared_ptr<Exchange> exchange,
                    std::vector<RankSet> sets, double timeout, int rank,
                    DeviceMemory staging)
      : ExchangeCollectives(std::move(exchange), std::move(sets), timeout),
        rank_(rank),
        staging_(std::move(staging)) {}

  std::string transport() const override { return "staged"; }
  CollectivesMemory memory() const override {
    return {.host_bytes = staging_.size()};
  }
  void ReduceScatter(std::string_view tag, const RankSet& set,
                     const ReduceScatterArgs& args, Stream* stream) override;
  void AllGatherBlocks(std::string_view tag, const RankSet& set,
                       const void* send, size_t bytes, void* recv,
                       Stream* stream) override;
  void Broadcast(std::string_view tag, int root, void* data, size_t bytes,
                 Stream* stream) override;

 private:
  // Returns whether the set was opened, and fails the stream where it was not.
  bool IsOpened(std::string_view tag, const RankSet& set, Stream* stream);
  // Calls enqueue(begin, count) for the chunks of `count` units, each of which
  // takes `unit_bytes` of staging memory; once where there are none.
  template <typename EnqueueChunk>
  void ForEachChunk(size_t count, size_t unit_bytes,
                    const EnqueueChunk& enqueue) const;

  const int rank_;
  const DeviceMemory staging_;
};

}  // namespace shard::staged

#endif  // SHARD_CORE_COLLECTIVES_STAGED_STAGED_COLLECTIVES_H_
