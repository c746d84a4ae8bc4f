// SPDX-License-Identifier: Apache-2.0
//
// The memory of the fake's devices, and the host's pinned memory: allocations,
// and the accesses of operations to them, which are checked for an order.
//
// No address is used twice, so that the use of freed memory is known, and
// faults. New memory has no zeros.
//
// Not thread-safe.

#ifndef SHARD_TESTS_FAKE_CUDA_MEMORY_MAP_H_
#define SHARD_TESTS_FAKE_CUDA_MEMORY_MAP_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/device/cuda/driver_api.h"
#include "tests/fake_cuda/clock.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace shard::testing::fake_cuda {

// An operation, to the checks of order.
struct Actor {
  std::string name;
  size_t stream = Clock::kHost;
  uint64_t number = 0;
};

enum class Use {
  kRead,
  kWrite,
  kKernel,  // Reads or writes something of the allocation.
  kAllocate,
  kFree,
};

enum class MemoryKind { kDevice, kPool, kPinned };

struct Allocation {
  struct Past {
    Use use;
    uintptr_t begin, end;
    Actor actor;
  };

  MemoryKind kind;
  int device;
  uint64_t context;
  uintptr_t begin, end;
  uint64_t pool = 0;  // Of kPool.
  std::vector<Past> past;
  bool is_freed = false;  // A call has freed it:
  std::string freed_by;
  bool is_released = false;  // The device has come to that.
};

class MemoryMap {
 public:
  MemoryMap() = default;
  ~MemoryMap() { Clear(); }
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  // Returns null where the address space is used up. REQUIRES: bytes > 0.
  Allocation* Allocate(MemoryKind kind, int device, uint64_t context,
                       size_t bytes);
  // Returns the allocation in which, or right behind which, `address` lies, be
  // it freed; null for other memory.
  Allocation* Find(uintptr_t address);
  // Gives memory back. Returns whether something was written behind its end.
  bool Release(Allocation* allocation);
  void Clear();

  // Notes that `actor`, which happens at `clock`, uses memory of an allocation,
  // and adds the violations that follow.
  void Check(Allocation* allocation, Use use, uintptr_t begin, uintptr_t end,
             const Actor& actor, const Clock& clock,
             std::vector<Violation>* violations);

  // Makes memory of devices inaccessible, or accessible.
  void set_guard(bool guard) { guard_ = guard; }
  void Protect(bool accessible);

  // Of what is not freed.
  const std::map<uintptr_t, Allocation>& allocations() const { return map_; }

 private:
  std::map<uintptr_t, Allocation> map_;  // By `begin`.
  char* arena_ = nullptr;
  size_t arena_used_ = 0;
  bool guard_ = false;
};

}  // namespace shard::testing::fake_cuda

#endif  // SHARD_TESTS_FAKE_CUDA_MEMORY_MAP_H_
