// SPDX-License-Identifier: Apache-2.0
//
// NcclCollectives: collectives of ranks that have a GPU each, by NCCL.
//
//   ReduceScatter     ncclReduceScatter, where the order of sums is NCCL's; an
//                     old value is added by a kernel. Elsewhere an all-to-all:
//                     sends and receives of blocks, and a kernel that sums them
//                     in the order of ranks
//   AllGatherBlocks   ncclAllGather
//   Broadcast         ncclBroadcast
//
// Collectives of one set of ranks are one launch of NCCL where they are in a
// group: its calls come first, and then its kernels. Blocks that came are kept
// in memory of the device until they are summed: those of a group share it, a
// group for which it is too small is several launches, and a ReduceScatter for
// which it is too small is cut into parts. A set of one rank needs no NCCL.

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
#include "core/collectives/nccl/registration.h"
#include "core/collectives/nccl/watchdog.h"
#include "core/comm/host_ranks.h"
#include "core/comm/notices.h"
#include "core/device/device.h"
#include "core/device/stream.h"
#include "core/observe/observer.h"

namespace shard::nccl {

class NcclCollectives final : public Collectives {
 public:
  struct Parts {
    std::vector<RankSet> sets;
    HostRanks hosts;
    std::shared_ptr<RankComms> comms;
    std::shared_ptr<Notices> notices;
    std::optional<Registration> registration;
    std::unique_ptr<Watchdog> watchdog;
    // Memory of the registration, as in ReduceMemory.
    DeviceMemory blocks;
    DeviceMemory zeros;
    std::string why_not_shared;
    Observer* observer;  // Outlives the collectives.
    SumOrder order;
    double timeout;
    int rank;
  };

  explicit NcclCollectives(Parts parts)
      : parts_(std::move(parts)), why_not_shared_(parts_.why_not_shared) {}
  // Memory may outlive the observer.
  ~NcclCollectives() override { parts_.comms->SetObserver(nullptr); }

  std::string transport() const override;
  int CountHosts(const RankSet& set) const override {
    return parts_.hosts.CountOf(set);
  }
  SumOrder order(DType dtype) const override {
    return dtype == DType::kF32 ? parts_.order : SumOrder::kRankOrder;
  }
  CollectivesMemory memory() const override {
    return {.device_bytes = parts_.blocks.size() + parts_.zeros.size()};
  }
  StatusOr<DeviceMemory> Allocate(Device* device, size_t bytes,
                                  std::string_view what) override;
  std::optional<RegisteredMemory> registered() const override;
  StatusOr<bool> ShareMemory(Communicator* control,
                             std::span<const DeviceMemory* const> memory,
                             const Deadline& deadline) override;
  StatusOr<PeerMemory> FindPeerMemory(
      Communicator* control, std::span<const DeviceMemory* const> memory,
      const Deadline& deadline) override;
  void RunTogether(std::string_view tag, Stream* stream,
                   const std::function<void()>& enqueue) override;
  void ReduceScatter(std::string_view tag, const RankSet& set,
                     const ReduceScatterArgs& args, Stream* stream) override;
  void AllGatherBlocks(std::string_view tag, const RankSet& set,
                       const void* send, size_t bytes, void* recv,
                       Stream* stream) override;
  void Broadcast(std::string_view tag, int root, void* data, size_t bytes,
                 Stream* stream) override;
  void BeginGroup(Stream*) override { in_group_ = true; }
  void EndGroup(Stream* stream) override;
  void DropGroup() noexcept override;
  std::optional<Deadline> SetDeadline(
      std::optional<Deadline> deadline) override {
    return std::exchange(deadline_, deadline);
  }
  Status FindLate(const Deadline& deadline) const override {
    return parts_.watchdog->FindLate(deadline);
  }
  bool RunsOnDevice() const override { return true; }
  void SetCaptures(bool captures) override { captures_ = captures; }
  void WatchLaunch(std::string_view what, const Event& end,
                   const Late& find_late,
                   const std::function<bool()>& stops) override {
    parts_.watchdog->WatchHere(std::string(what), end, find_late, stops);
  }
  std::shared_ptr<void> OnFailure(FailureHandler handler) override {
    return parts_.watchdog->OnFailure(std::move(handler));
  }

 private:
  using NativeCalls =
      std::function<NcclResult(const NcclApi&, NcclComm, void* stream)>;

  // A collective of NCCL, and the kernel that follows it.
  struct Call {
    NativeCalls calls;
    std::optional<BlockSum> sum;
  };
  // Collectives that were announced, and are enqueued together.
  struct Launch {
    // The different tags of the calls, at least one where there is a call.
    std::vector<std::string_view> tags;
    RankSet set;
    std::vector<Call> calls;
    size_t blocks = 0;  // The bytes of the blocks in use.

    // Returns the tags as errors have them: "gather, sum".
    std::string Name() const;
  };

  // Announces a collective that sends `bytes` bytes, and enqueues it, or lets
  // it wait for the end of the group. Fails the stream where the ranks differ
  // or have ended.
  void Add(std::string_view tag, const RankSet& set,
           const Announcement& announced, size_t bytes, Call call,
           Stream* stream);
  // Enqueues what waits.
  void Flush(Stream* stream);
  // Enqueues what waits of another set.
  void FlushOthers(const RankSet& set, Stream* stream) {
    if (launch_.set != set) Flush(stream);
  }
  // Returns whether the set was opened, and fails the stream where it was not.
  bool IsOpened(std::string_view tag, const RankSet& set, Stream* stream) const;
  // Returns whether NCCL makes the sum. `own`: this rank's block.
  bool IsSummedByNccl(const ReduceScatterArgs& args, const void* own) const;
  void SumByNccl(std::string_view tag, const RankSet& set,
                 const ReduceScatterArgs& args, void* own, Stream* stream);
  // Makes room among the blocks and zeros. Returns for how many elements of
  // each block, at most `left`.
  size_t MakeRoom(const RankSet& set, const ReduceScatterArgs& args,
                  size_t left, Stream* stream);
  // Exchanges elements [begin, begin + count) of all blocks, and sums them.
  void SumInOrder(std::string_view tag, const RankSet& set,
                  const ReduceScatterArgs& args, size_t begin, size_t count,
                  Stream* stream);

  const Parts parts_;
  std::string why_not_shared_;
  std::optional<Deadline> deadline_;
  bool in_group_ = false;
  bool captures_ = false;
  Launch launch_;
};

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_NCCL_COLLECTIVES_H_
