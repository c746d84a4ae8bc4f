// SPDX-License-Identifier: Apache-2.0
//
// A communicator of the fake. Never freed before Reset, so that its use after
// its end is seen.

#ifndef SHARD_TESTS_FAKE_NCCL_COMM_H_
#define SHARD_TESTS_FAKE_NCCL_COMM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/cuda/driver_api.h"
#include "tests/fake_nccl/abi.h"
#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/segment.h"

namespace shard::testing::fake_nccl {

// The work of a call that waits for other ranks: called again and again until
// it no longer returns kInProgress. Where it waits, its first call only tells
// the others that this rank has come: no result is stored before the caller
// polls.
using Job = std::function<Result()>;

struct WindowRecord {
  uint64_t round = 0;  // The same on all ranks.
  const std::byte* memory = nullptr;
  size_t bytes = 0;
  // Each rank's memory, or null out of reach.
  std::vector<std::byte*> peers = {};
};

struct Comm {
  // "rank 1 of 2 (communicator 3)".
  std::string Describe() const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(size) +
           " (communicator " + std::to_string(id) + ")";
  }
  bool Is(const Target& target) const {
    return (target.rank < 0 || target.rank == world_rank) &&
           (target.size == 0 || target.size == size);
  }

  // Constant once the communicator is initialized.
  uint64_t id = 0;
  std::string name;  // The segment's name.
  std::shared_ptr<Segment> segment;
  int rank = 0;
  int size = 0;
  int world_rank = 0;
  int device = 0;
  cuda::CuContext context = nullptr;
  bool is_blocking = true;

  // GUARDED_BY(State::mutex):
  Job job;                             // The call in progress, or null.
  Result early = Result::kInProgress;  // Its result, which is not told yet.
  int polls = 0;                       // Answers kInProgress that are left.
  Result result = Result::kSuccess;    // The answer to the next poll.
  std::string error_text;              // Describes an error in `early`.
  bool is_finalized = false;
  bool is_revoked = false;
  bool is_mismatched = false;      // Ranks are in different calls.
  const char* ended_by = nullptr;  // "ncclCommAbort", "ncclCommDestroy".
  uint64_t rounds = 0;             // Those to which this rank has come.
  uint64_t splits = 0;
  uint64_t shrinks = 0;
  // By handle: memory and its bytes.
  std::map<const void*, std::pair<const void*, size_t>> registrations;
  // By handle.
  std::map<const void*, WindowRecord> windows;
  // The place of the handle of a window that is being made.
  Window** made_window = nullptr;
  // A launch that a fault holds back.
  std::function<Result()> held_launch;

  // GUARDED_BY(State::records_mutex): the thread in a call on it, or in a group
  // with one, and the call.
  std::thread::id caller;
  const char* called = nullptr;

  // Kernels do nothing from now on: aborted or revoked.
  std::atomic<bool> is_stopped = false;
  std::atomic<bool> is_in_kernel = false;
  // Kernels that got a place in a stream, and that ended.
  std::atomic<uint64_t> begun = 0;
  std::atomic<uint64_t> ended = 0;
  // Set by FailAsyncAt.
  std::atomic<Result> async_error = Result::kSuccess;
};

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_COMM_H_
