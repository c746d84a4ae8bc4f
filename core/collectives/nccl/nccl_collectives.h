// SPDX-License-Identifier: Apache-2.0
//
// NcclCollectives: collectives of ranks that have a GPU each, by NCCL.
//
//   ReduceScatter     sends and receives of blocks, in one group, and a kernel
//                     that sums them in the order of ranks
//   AllGatherBlocks   ncclAllGather
//   Broadcast         ncclBroadcast
//
// Blocks that came are kept in memory of the device until they are summed: a
// ReduceScatter for which it is too small is cut into parts. A set of one rank
// needs no NCCL.

#ifndef SHARD_CORE_COLLECTIVES_NCCL_NCCL_COLLECTIVES_H_
#define SHARD_CORE_COLLECTIVES_NCCL_NCCL_COLLECTIVES_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/collectives/collectives.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/collectives/nccl/watchdog.h"
#include "core/device/device.h"
#include "core/observe/observer.h"

namespace shard::nccl {

class NcclCollectives final : public Collectives {
 public:
  struct Parts {
    std::vector<RankSet> sets;
    std::shared_ptr<RankComms> comms;
    std::unique_ptr<Watchdog> watchdog;
    // Memory of Device::Allocate: the blocks that came; and zeros, which are
    // the block of a rank that has nothing to add.
    DeviceMemory blocks;
    DeviceMemory zeros;
    Observer* observer;  // Outlives the collectives.
    double timeout;
    int rank;
  };

  explicit NcclCollectives(Parts parts) : parts_(std::move(parts)) {}

  SumOrder order() const override { return SumOrder::kRankOrder; }
  std::string transport() const override;
  void ReduceScatter(std::string_view tag, const RankSet& set,
                     const ReduceScatterArgs& args, Stream* stream) override;
  void AllGatherBlocks(std::string_view tag, const RankSet& set,
                       const void* send, size_t bytes, void* recv,
                       Stream* stream) override;
  void Broadcast(std::string_view tag, int root, void* data, size_t bytes,
                 Stream* stream) override;
  void BeginGroup(Stream*) override {}
  void EndGroup(Stream*) override {}
  std::optional<Deadline> SetDeadline(
      std::optional<Deadline> deadline) override {
    return std::exchange(deadline_, deadline);
  }
  std::shared_ptr<void> OnFailure(FailureHandler handler) override {
    return parts_.watchdog->OnFailure(std::move(handler));
  }

 private:
  using NativeCalls =
      std::function<NcclResult(const NcclApi&, NcclComm, void* stream)>;

  // Enqueues `calls` as the collective that is announced, which sends `bytes`
  // bytes. Returns false, and fails the stream, where the ranks differ or have
  // ended.
  bool Enqueue(std::string_view tag, const RankSet& set,
               const Announcement& announced, size_t bytes, Stream* stream,
               NativeCalls calls);
  // Returns whether the set was opened, and fails the stream where it was not.
  bool IsOpened(std::string_view tag, const RankSet& set, Stream* stream) const;
  // Exchanges elements [begin, begin + count) of all blocks, and sums them.
  void SumInOrder(std::string_view tag, const RankSet& set,
                  const ReduceScatterArgs& args, size_t begin, size_t count,
                  Stream* stream);

  const Parts parts_;
  std::optional<Deadline> deadline_;
};

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_NCCL_COLLECTIVES_H_
