// SPDX-License-Identifier: Apache-2.0
//
// How the kernels of several ranks, one on each GPU, meet: before they read
// each other's gradients, and after they have stored parameters on all GPUs.
//
// Each rank has flags in memory that all GPUs reach: for each rank the number
// of the last meeting that it has come to, and then that of the last one that
// it has left. A kernel waits for flags of its own GPU alone. No block waits
// for another one of the same launch, so that it does not matter how many of
// them run at once: each of them says that its rank has come, and the last one
// to end says that it leaves.

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
};

// The halves of the flags.
enum class PeerFlag : uint32_t { kCome, kLeft };

// Read and write words that other GPUs, or the host, write and read.
template <class T>
SHARD_DEVICE T LoadShared(const T* from) {
#ifdef __CUDACC__
  const T value = *static_cast<const volatile T*>(from);
  __threadfence_system();
  return value;
#else
  return std::atomic_ref(*const_cast<T*>(from)).load();
#endif
}
// All that this thread has written or seen is seen before.
template <class T>
SHARD_DEVICE void StoreShared(T value, T* to) {
#ifdef __CUDACC__
  __threadfence_system();
  *static_cast<volatile T*>(to) = value;
  __threadfence_system();
#else
  std::atomic_ref(*to).store(value);
#endif
}

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
  while (LoadShared(flag) < number) {
    if (LoadShared(&meetings.waits->ended) != 0) return false;
    __nanosleep(kNanoseconds);
  }
  return true;
#else
  return LoadShared(flag) >= number;
#endif
}

// Comes to the next meeting, and waits for the kernels of the other ranks.
// Returns false where the host ends that. REQUIRES: all threads of a block call
// this, and LeavePeers afterwards.
SHARD_DEVICE bool MeetPeers(const PeerMeetings& meetings) {
  const uint64_t number = meetings.number + 1;
#ifdef __CUDACC__
  const uint32_t first = threadIdx.x;
  const uint32_t step = blockDim.x;
#else
  constexpr uint32_t first = 0;
  constexpr uint32_t step = 1;
#endif
  bool met = true;
  if (first == 0) {
    StoreShared(number, &meetings.waits->begun);
    met = LoadShared(&meetings.waits->ended) == 0;
  }
  for (uint32_t r = first; met && r < meetings.ranks; r += step) {
    TellPeer(meetings, PeerFlag::kCome, number, r);
  }
  for (uint32_t r = first; met && r < meetings.ranks; r += step) {
    met = AwaitPeer(meetings, PeerFlag::kCome, number, r);
  }
#ifdef __CUDACC__
  return __syncthreads_and(met ? 1 : 0) != 0;
#else
  return met;
#endif
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
  meetings->number = number;
  // Other ranks must not take what an ended wait has left out for an update.
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
