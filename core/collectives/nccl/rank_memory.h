// SPDX-License-Identifier: Apache-2.0
//
// RankMemory: the memory of ncclMemAlloc that one rank has, registered with
// each of its communicators.
//
// NCCL writes the handle of a window from a thread of its own, until the call
// or an abort has ended. So handles lie in what RankComms keeps until then
// (slots()).
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
#include <memory>
#include <mutex>
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
  StatusOr<NcclWindow> OpenWindow(size_t comm, std::byte* memory,
                                  const Check& check);
  Status CloseWindows(std::byte* memory, const Check& check);
  NcclWindow FindWindow(std::byte* memory) const;
  // Returns why the memory is left to FreeRest.
  Status Free(std::byte* memory);
  // Frees what was not deregistered. REQUIRES: the context is current; the
  // communicators have ended.
  void FreeRest();

  // Returns the bytes that are not freed yet.
  size_t bytes() const { return bytes_; }
  // Returns those of them that are in windows.
  size_t window_bytes() const;
  bool IsEmpty() const;
  // Returns what NCCL writes to until the communicators have ended.
  std::shared_ptr<void> slots() const { return memory_; }

 private:
  struct Registered {
    size_t bytes = 0;
    // By communicator; null: there is none. NCCL may write a window while its
    // call is in progress.
    std::vector<void*> handles;
    std::vector<NcclWindow> windows;
    bool has_windows = false;  // Or may get one.
  };

  // Returns the error of ncclMemAlloc.
  Status AllocationError(NcclResult result, std::string_view what,
                         size_t bytes) const;
  // Returns null for other memory.
  Registered* Find(std::byte* memory) const;
  Status Register(std::byte* memory, Registered* registered,
                  const Check& check);
  Status Deregister(Registered* registered, const Check& check);
  Status CloseWindows(Registered* registered, const Check& check);

  RankComms* const comms_;
  std::atomic<size_t> bytes_ = 0;  // Of `memory_`.
  mutable std::mutex mutex_;       // Held during no call of NCCL.
  using Memory = std::map<std::byte*, Registered>;
  // By address; elements stay where they are. GUARDED_BY(mutex_)
  const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
};

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_RANK_MEMORY_H_
