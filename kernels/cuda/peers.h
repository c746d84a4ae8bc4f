// SPDX-License-Identifier: Apache-2.0
//
// Meetings of the kernels of several ranks, one on each GPU: before they read
// each other's gradients, and after they have stored parameters on all GPUs.
//
// Each rank has flags in memory that all GPUs reach: for each rank the number
// of the last meeting that it has come to, and then that of the last one that
// it has left. A kernel waits for flags of its own GPU alone. No block waits
// for another one of the same launch, so that it does not matter how many of
// them run at once: each of them says that its rank has come, and the last one
// to end says that it leaves.
//
// The host may end the waits at any time. The first block of a launch that has
// met the other ranks, or whose wait was ended, decides for all blocks whether
// the launch updates: a range is updated as a whole or not at all.

#ifndef SHARD_KERNELS_CUDA_PEERS_H_
#define SHARD_KERNELS_CUDA_PEERS_H_

#include <cstdint>

#include "core/device/peer_waits.h"
#include "kernels/cuda/device.h"

namespace shard::cuda {

// The meetings of one rank's kernels, in memory of its GPU.
struct PeerMeetings {
  uint32_t ranks;
  uint32_t rank;
  // By rank: its 2 * ranks flags, where this GPU reaches them.
  uint64_t* const* flags;
  PeerWaits* waits;
  uint64_t number;    // Of meetings that are over.
  uint32_t finished;  // Blocks; 0 between launches.
  uint32_t decision;  // A PeerDecision of the launch; kNone between launches.
};

enum class PeerDecision : uint32_t { kNone, kUpdate, kNoUpdate };

// The halves of the flags.
enum class PeerFlag : uint32_t { kCome, kLeft };

SHARD_DEVICE uint64_t* FlagAt(const PeerMeetings& meetings, PeerFlag half,
                              uint32_t of, uint32_t by) {
  return meetings.flags[of] +
         (static_cast<uint32_t>(half) * meetings.ranks + by);
}

// Tells rank `of` that this rank has come to, or left, a meeting.
SHARD_DEVICE void TellPeer(const PeerMeetings& meetings, PeerFlag half,
                           uint64_t number, uint32_t of) {
  StoreShared(number, FlagAt(meetings, half, of, meetings.rank));
}

// Waits until rank `by` has come to, or left, a meeting. Returns false where
// the host ends that. On the host, whoever runs a kernel does the waiting.
SHARD_DEVICE bool AwaitPeer(const PeerMeetings& meetings, PeerFlag half,
                            uint64_t number, uint32_t by) {
  const uint64_t* const flag = FlagAt(meetings, half, meetings.rank, by);
#ifdef __CUDACC__
  constexpr unsigned kNanoseconds = 100;
  // `ended` is in the host's memory, which the reads of all blocks would keep
  // busy.
  constexpr uint32_t kTurnsPerLook = 64;
  for (uint32_t turn = 1; LoadShared(flag) < number; ++turn) {
    if (turn % kTurnsPerLook == 0 && LoadShared(&meetings.waits->ended) != 0) {
      return false;
    }
    __nanosleep(kNanoseconds);
  }
  return true;
#else
  return LoadShared(flag) >= number;
#endif
}

// The threads of a block that share loops over ranks.
struct PeerThreads {
#ifdef __CUDACC__
  uint32_t first = threadIdx.x;
  uint32_t step = blockDim.x;
#else
  uint32_t first = 0;
  uint32_t step = 1;
#endif
};

// Returns whether `value` is true on all threads of the block.
SHARD_DEVICE bool AllThreads(bool value) {
#ifdef __CUDACC__
  return __syncthreads_and(value ? 1 : 0) != 0;
#else
  return value;
#endif
}

// Tells all ranks that this one has come to the next meeting. Returns false,
// and uses no memory of theirs, where the host has ended that. REQUIRES: all
// threads of a block call this.
SHARD_DEVICE bool ComeToPeers(const PeerMeetings& meetings) {
  const uint64_t number = meetings.number + 1;
  const PeerThreads threads;
  bool comes = true;
  if (threads.first == 0) {
    StoreShared(number, &meetings.waits->begun);
    comes = LoadShared(&meetings.waits->ended) == 0;
  }
  // No thread tells a rank before the first one has looked: the host waits only
  // for kernels that have begun when it ends the waits.
  if (!AllThreads(comes)) return false;
  for (uint32_t r = threads.first; r < meetings.ranks; r += threads.step) {
    TellPeer(meetings, PeerFlag::kCome, number, r);
  }
  return true;
}

// Returns the decision of the launch, which is that of the block that comes
// here first. REQUIRES: all threads of a block call this, with the same `met`.
SHARD_DEVICE bool DecideForLaunch(bool met, PeerMeetings* meetings) {
#ifdef __CUDACC__
  bool updates = false;
  if (threadIdx.x == 0) {
    const auto mine = static_cast<uint32_t>(met ? PeerDecision::kUpdate
                                                : PeerDecision::kNoUpdate);
    const auto none = static_cast<uint32_t>(PeerDecision::kNone);
    const uint32_t before = atomicCAS(&meetings->decision, none, mine);
    // The block that has decided has seen the other ranks, and now this one.
    __threadfence_system();
    const uint32_t decided = before == none ? mine : before;
    updates = decided == static_cast<uint32_t>(PeerDecision::kUpdate);
  }
  return __syncthreads_or(updates ? 1 : 0) != 0;
#else
  // One thread runs all blocks.
  static_cast<void>(meetings);
  return met;
#endif
}

// Comes to the next meeting, and waits for the kernels of the other ranks.
// Returns whether the launch updates: false on all of its blocks, or on none.
// REQUIRES: all threads of a block call this, and LeavePeers afterwards.
SHARD_DEVICE bool MeetPeers(PeerMeetings* meetings) {
  const uint64_t number = meetings->number + 1;
  const PeerThreads threads;
  bool met = ComeToPeers(*meetings);
  for (uint32_t r = threads.first; met && r < meetings->ranks;
       r += threads.step) {
    met = AwaitPeer(*meetings, PeerFlag::kCome, number, r);
  }
  return DecideForLaunch(AllThreads(met), meetings);
}

// Leaves the meeting once all blocks have come here, and then waits for the
// kernels of the other ranks. REQUIRES: all threads of a block call this.
SHARD_DEVICE void LeavePeers(PeerMeetings* meetings) {
#ifdef __CUDACC__
  // The block's writes are seen before its count is.
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(&meetings->finished, 1u) + 1 != gridDim.x) return;
  __threadfence_system();
#endif
  const uint64_t number = meetings->number + 1;
  meetings->finished = 0;
  meetings->decision = static_cast<uint32_t>(PeerDecision::kNone);
  meetings->number = number;
  // A launch that was ended may have updated nothing: the other ranks are not
  // told that this one has.
  bool goes_on = LoadShared(&meetings->waits->ended) == 0;
  for (uint32_t r = 0; goes_on && r < meetings->ranks; ++r) {
    TellPeer(*meetings, PeerFlag::kLeft, number, r);
  }
  for (uint32_t r = 0; goes_on && r < meetings->ranks; ++r) {
    goes_on = AwaitPeer(*meetings, PeerFlag::kLeft, number, r);
  }
  StoreShared(number, &meetings->waits->over);
}

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_PEERS_H_
