// SPDX-License-Identifier: Apache-2.0
//
// Collectives: moves and sums tensors between ranks in the order of streams,
// beside the control data of a Communicator.
//
// A method enqueues a collective on a stream and returns: the collective runs
// once all earlier work of that stream has run on this rank, and its peers have
// come. All ranks enqueue the same collectives in the same order, each with the
// ranks of its own set. One collective of a rank runs at a time: all are
// enqueued on one stream, or on streams that wait for each other.
//
// Sets of ranks are fixed when the collectives are opened, where a library
// makes its communicators, for later there may be no moment at which all ranks
// can.
//
// Errors become the stream's: work that is enqueued on it later is dropped, and
// its events have the error. The peers of a rank that drops collectives wait:
// whoever owns the stream ends the family of the communicator when it fails
// (Stream::OnError, Communicator::Abort), and so all ranks get the error.
//
// Deadlines: each collective has a time of its own, which begins when the
// collective does, so that one behind other work is not blamed for that; those
// of a host's call end with the call (SetDeadline). Either way work ends by
// itself. Its error names the ranks that are late; a wait for the stream that
// ends before it does names the stream alone, and FindLate tells the ranks.
//
// Lifetime of the arguments: as those of Stream. `tag` names the phase in
// errors, is the same on all ranks, and outlives the work; tensors are used
// when it runs. When memory runs out, a method throws: the host's call ends the
// family.
//
// Threads: one at a time, not always the same.

#ifndef SHARD_CORE_COLLECTIVES_COLLECTIVES_H_
#define SHARD_CORE_COLLECTIVES_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/base/transport.h"
#include "core/comm/communicator.h"
#include "core/comm/exchange.h"
#include "core/comm/rank_set.h"
#include "core/device/device.h"
#include "core/device/event.h"
#include "core/device/stream.h"

namespace shard {

// The order in which a ReduceScatter adds.
enum class SumOrder {
  kRankOrder,  // In fp32, in the order of ranks: bits depend on nothing else.
  // A library's own, which depends on its version, on the machines and on the
  // numbers of ranks and elements.
  kLibrary,
};

// The memory that the collectives of one rank allocate.
struct CollectivesMemory {
  uint64_t device_bytes = 0;  // Of Device::Allocate.
  uint64_t host_bytes = 0;    // Of Device::AllocateHost.

  CollectivesMemory& operator+=(const CollectivesMemory& more) {
    device_bytes += more.device_bytes;
    host_bytes += more.host_bytes;
    return *this;
  }
};

// How much memory is registered with a library, which then moves it without
// copies of its own.
struct RegisteredMemory {
  uint64_t bytes = 0;
  std::string why_not;  // Why nothing is.
  // The part that ShareMemory and FindPeerMemory share.
  uint64_t shared_bytes = 0;
  std::string why_not_shared;  // Why ShareMemory has shared nothing.
};

// Memory of all ranks, as the kernels of one rank reach it.
struct PeerMemory {
  // By allocation and by rank: where the allocation of that rank begins.
  std::vector<std::vector<std::byte*>> addresses;
  // Why a rank does not reach another one's: "rank 1: ..."; else "".
  std::string why_not;
};

class Collectives {
 public:
  virtual ~Collectives() = default;

  // Returns the order in which elements of a dtype are added that become sums
  // of the same dtype, where all ranks have something to add
  // (ReduceScatterArgs::all_send). All other sums are in the order of ranks.
  virtual SumOrder order(DType /*dtype*/) const { return SumOrder::kRankOrder; }

  virtual CollectivesMemory memory() const { return {}; }

  // Returns the name of what moves tensors: "nccl 2.28.9".
  virtual std::string transport() const = 0;

  // Returns how many hosts the ranks of a set are on, where a library moves
  // tensors between them, which may choose another way then; else 1.
  virtual int CountHosts(const RankSet& /*set*/) const { return 1; }

  // Allocates memory for tensors as Device::Allocate does, of the kind that the
  // collectives move best. `device` is the one that they were opened with. The
  // tensors of a ReduceScatter lie in such memory; those of another collective
  // do so on all ranks or on none. Local. The memory may outlive the
  // collectives.
  virtual StatusOr<DeviceMemory> Allocate(Device* device, size_t bytes,
                                          std::string_view what) {
    return device->Allocate(bytes, what);
  }
  // Returns what is registered of Allocate's memory; nothing where collectives
  // need no such memory.
  virtual std::optional<RegisteredMemory> registered() const {
    return std::nullopt;
  }

  // Registers allocations of all ranks as one, whose parts a library then moves
  // between ranks without copies of its own: all made by Allocate, as many on
  // each rank, of the same sizes and in the same order. COLLECTIVE. A
  // collective is given the same offsets in them on all ranks, and its blocks
  // begin at multiples of kSharedAlignment there, or they are not shared. All
  // ranks share the memory or none does (registered). Returns false where the
  // collectives have ended since a library has failed: others are to be opened,
  // with the reason as CollectivesOptions::why_not_shared. Errors: kDesync
  // where the memory differs; kDeadlineExceeded, for which a library that has
  // failed may take some seconds more to end; those of the family. REQUIRES: no
  // collectives run meanwhile.
  static constexpr int64_t kSharedAlignment = 16;
  virtual StatusOr<bool> ShareMemory(
      Communicator* /*control*/,
      std::span<const DeviceMemory* const> /*memory*/,
      const Deadline& /*deadline*/) {
    return true;
  }

  // Finds where this rank's kernels reach allocations of the other ranks, all
  // made by Allocate: as many on each rank, of the same sizes and in the same
  // order. COLLECTIVE. `control` is the communicator that the collectives were
  // opened with. All ranks reach all memory, or all have the same reason. An
  // address holds until its rank frees the memory: no work of another rank may
  // use it by then. Errors: kDesync where the memory differs; those of the
  // family. REQUIRES: none is empty; no collectives run meanwhile.
  virtual StatusOr<PeerMemory> FindPeerMemory(
      Communicator* /*control*/,
      std::span<const DeviceMemory* const> /*memory*/,
      const Deadline& /*deadline*/) {
    return PeerMemory{{}, "tensors pass through the host's memory"};
  }

  // Enqueue what the methods of those names in Exchange do, for tensors that
  // the stream's kernels reach. A set that was not opened is kInvalidArgument.
  // A sum in a library's order that is added to (ReduceScatterArgs::add) is
  // made in this rank's own block of `send`, which it overwrites.
  virtual void ReduceScatter(std::string_view tag, const RankSet& set,
                             const ReduceScatterArgs& args, Stream* stream) = 0;
  virtual void AllGatherBlocks(std::string_view tag, const RankSet& set,
                               const void* send, size_t bytes, void* recv,
                               Stream* stream) = 0;
  virtual void Broadcast(std::string_view tag, int root, void* data,
                         size_t bytes, Stream* stream) = 0;
  // The same, for tensors in memory of the host alone: else kUnimplemented.
  virtual void GatherOnHosts(std::string_view tag, const RankSet& /*set*/,
                             const void* /*send*/, size_t /*bytes*/,
                             int /*block_groups*/, void* /*recv*/,
                             Stream* stream) {
    stream->Call(tag, [] {
      return Status(StatusCode::kUnimplemented,
                    "the ranks of a host share no memory of a device");
    });
  }

  // Enqueues work on the stream that ends once all ranks have come to it, and
  // watches it as a collective. COLLECTIVE. `enqueue` is called before this
  // returns, unless the stream gets an error instead. REQUIRES: FindPeerMemory
  // has found the memory of all ranks; the work ends by itself where
  // OnFailure's handlers are called.
  virtual void RunTogether(std::string_view /*tag*/, Stream* /*stream*/,
                           const std::function<void()>& enqueue) {
    enqueue();
  }

  // Begin and end a group of collectives on a stream, none of which uses what
  // another one writes: they may run in any order, and a library may run them
  // as one. The stream is given nothing else meanwhile, and a collective may be
  // enqueued only by EndGroup. Groups do not nest, and are the same on all
  // ranks. DropGroup ends a group without what was not enqueued.
  virtual void BeginGroup(Stream* /*stream*/) {}
  virtual void EndGroup(Stream* /*stream*/) {}
  virtual void DropGroup() noexcept {}

  // Has `handler` called, in any thread and while the result lives, when
  // collectives that run on a device are ended from outside of it: with the
  // error, and before the streams go on. It fails all streams whose work may
  // use what did not come (Stream::Fail). Handlers run in the order in which
  // they were given. Once the result is gone, the handler does not run any
  // more. Returns null for collectives that are never ended so.
  using FailureHandler = std::function<void(const Status&)>;
  virtual std::shared_ptr<void> OnFailure(FailureHandler /*handler*/) {
    return nullptr;
  }

  // Returns kDeadlineExceeded that names the ranks which have not come to the
  // collective that runs, for a wait that has ended at `deadline`; OK where all
  // have come, or where it is not known. Any thread.
  virtual Status FindLate(const Deadline& /*deadline*/) const {
    return Status();
  }
  // Returns whether collectives are work of the device alone: no thread of the
  // host takes part in them, and they may be part of a graph that the device
  // repeats.
  virtual bool RunsOnDevice() const { return false; }
  // Sets whether they are, from here on: they are not compared between the
  // ranks, which have to make the same calls and to repeat the graph together.
  virtual void SetCaptures(bool /*captures*/) {}
  // Watches the collectives of a graph that the host has launched as others
  // are, on the thread of the caller, until `end` or until `stops` returns
  // true. `find_late` returns their error once they are late, and is called
  // from any thread, also later. The caller is not the thread of the
  // collectives.
  using Late = std::function<Status(const Deadline& deadline)>;
  virtual void WatchLaunch(std::string_view /*what*/, const Event& /*end*/,
                           const Late& /*find_late*/,
                           const std::function<bool()>& /*stops*/) {}

  // Sets when the collectives end that are enqueued from here on; null: each
  // after a time of its own. Returns what held before.
  virtual std::optional<Deadline> SetDeadline(
      std::optional<Deadline> deadline) = 0;
};

// A group, which is dropped unless End is called: where a call in it fails, the
// host's call ends the family.
class CollectiveGroup {
 public:
  CollectiveGroup(Collectives* collectives, Stream* stream)
      : collectives_(collectives), stream_(stream) {
    collectives_->BeginGroup(stream_);
  }
  ~CollectiveGroup() {
    if (!ended_) collectives_->DropGroup();
  }
  CollectiveGroup(const CollectiveGroup&) = delete;
  CollectiveGroup& operator=(const CollectiveGroup&) = delete;

  void End() {
    collectives_->EndGroup(stream_);
    ended_ = true;
  }

 private:
  Collectives* const collectives_;
  Stream* const stream_;
  bool ended_ = false;
};

// While it lives, collectives that are enqueued end when the host's call does.
class CollectiveDeadline {
 public:
  CollectiveDeadline(Collectives* collectives, const Deadline& call)
      : collectives_(collectives), before_(collectives->SetDeadline(call)) {}
  ~CollectiveDeadline() { collectives_->SetDeadline(before_); }
  CollectiveDeadline(const CollectiveDeadline&) = delete;
  CollectiveDeadline& operator=(const CollectiveDeadline&) = delete;

 private:
  Collectives* const collectives_;
  const std::optional<Deadline> before_;
};

// The bytes of a device's memory that reductions take beside their arguments,
// where the device moves tensors by itself and sums are in the order of ranks.
// Reductions for which it is too small are made in parts.
struct ReduceMemory {
  // The blocks that came from the other ranks, those of a group beside each
  // other.
  size_t blocks = 0;
  size_t zeros = 0;  // The block of a rank that has nothing to add.

  // In `blocks`, those of a reduction begin at a multiple of it.
  static constexpr size_t kAlignment = 64;

  bool Covers(const ReduceMemory& other) const {
    return blocks >= other.blocks && zeros >= other.zeros;
  }
};

struct CollectivesOptions {
  Transport transport = Transport::kStaged;
  // kLibrary: a library may add in its own order where it rounds to fp32 or
  // finer (Collectives::order).
  SumOrder order = SumOrder::kRankOrder;
  ReduceMemory reduce;
  // Why ShareMemory shares nothing; "": it may.
  std::string why_not_shared;
  // Seconds that a collective may take which has no deadline (SetDeadline).
  double timeout = 60;
  // The bytes of memory through which tensors pass that the host does not
  // reach; more where the world has more ranks than that many cache lines.
  size_t staging_bytes = size_t{4} << 20;
};

// Returns the bytes of Device::AllocateHost that the collectives of one rank
// take where the host does not reach the device's tensors.
size_t StagingBytes(int world_size, const CollectivesOptions& options = {});

// Opens the collectives of this rank over the ranks of `control`, for tensors
// of `device`. COLLECTIVE. `sets`: those of this rank, in the same order and of
// the same strides and counts on all ranks. Errors: kInvalidArgument on all
// ranks for a set that does not divide the world, or that lacks this rank;
// kDesync where strides, counts, the order of sums or memory differ;
// kResourceExhausted on all ranks. The result does not use `control` and
// `device` any more, but for the observer of `control`. All that it has
// enqueued must have run, or been dropped, before it is destroyed.
StatusOr<std::shared_ptr<Collectives>> OpenCollectives(
    Communicator* control, Device* device, std::span<const RankSet> sets,
    const CollectivesOptions& options, const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_COLLECTIVES_COLLECTIVES_H_
