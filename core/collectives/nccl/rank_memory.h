// SPDX-License-Identifier: Apache-2.0
//
// RankMemory: the memory of ncclMemAlloc that one rank has, registered with
// each of its communicators.
//
// No lock is held while memory is allocated or freed: the driver may wait for
// other work on the device, which may be ended by an abort alone.
//
// Thread-safe, but for FreeRest.

#ifndef SHARD_CORE_COLLECTIVES_NCCL_RANK_MEMORY_H_
#define SHARD_CORE_COLLECTIVES_NCCL_RANK_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/collectives/nccl/nccl_api.h"

namespace shard::nccl {

class RankComms;

class RankMemory {
 public:
  using Check = std::function<Status()>;
  struct Allocated {
    std::byte* data = nullptr;
    size_t taken_bytes = 0;  // Of the device, as the driver counts them.
    bool is_registered = false;
  };

  // `comms` owns this.
  explicit RankMemory(RankComms* comms) : comms_(comms) {}
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  // As RankComms's. REQUIRES: the context is current.
  StatusOr<Allocated> Allocate(std::string_view what, size_t bytes,
                               const Check& check);
  // The windows that NCCL has made are added to `windows`.
  Status OpenWindows(std::span<std::byte* const> memory, const Check& check,
                     std::vector<NcclWindow>* windows);
  // Returns why the memory is left to FreeRest.
  Status Free(std::byte* memory);
  // Frees what was not deregistered. REQUIRES: the context is current; the
  // communicators have ended.
  void FreeRest();

  // Returns the bytes that are not freed yet.
  size_t bytes() const { return bytes_; }
  bool IsEmpty() const;

 private:
  struct Registered {
    size_t bytes = 0;
    std::vector<void*> handles;  // By communicator; null: there is none.
    // The window of all ranks. NCCL may write it while its call is in progress.
    NcclWindow window = nullptr;
    bool is_window = false;  // Or may become one.
  };

  // Returns the error of ncclMemAlloc.
  Status AllocationError(NcclResult result, std::string_view what,
                         size_t bytes) const;
  Status Register(std::byte* memory, Registered* registered,
                  const Check& check);
  Status Deregister(Registered* registered, const Check& check);

  RankComms* const comms_;
  std::atomic<size_t> bytes_ = 0;  // Of `memory_`.
  mutable std::mutex mutex_;       // Held during no call of NCCL.
  // By address; elements stay where they are. GUARDED_BY(mutex_)
  std::map<std::byte*, Registered> memory_;
};

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_RANK_MEMORY_H_
