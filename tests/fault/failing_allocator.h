// SPDX-License-Identifier: Apache-2.0
//
// The allocator of a test program, which can be told to fail: malloc and its
// family, operator new, mmap, and the start of a thread. In a program that
// links this allocator, it replaces those of libc and libstdc++, for
// libshard.so too.
//
// Under the address sanitizer, whose own malloc, mmap and pthread_create must
// stay, only operator new is replaced.
//
// Allocations of all threads count. The program itself allocates nothing while
// the allocator is armed.

#ifndef SHARD_TESTS_FAULT_FAILING_ALLOCATOR_H_
#define SHARD_TESTS_FAULT_FAILING_ALLOCATOR_H_

#include <cstdint>

namespace shard {

enum class Outage : int32_t {
  kNone,     // Only counts allocations.
  kOnce,     // One allocation fails.
  kForGood,  // One allocation and all later ones fail.
};

// Numbers allocations from 1 on, and makes number `at` fail.
void ArmAllocator(Outage outage, int64_t at);
// Disarms the allocator and returns how many allocations there were. All later
// ones succeed.
int64_t DisarmAllocator();
// Returns true when an allocation has failed since the allocator was armed.
bool AllocationFailed();

// The memory that is allocated now: the number of pieces, and the bytes of
// pages.
struct Allocated {
  int64_t pieces = 0;
  int64_t mapped_bytes = 0;

  bool operator==(const Allocated&) const = default;
};
Allocated AllocatedNow();

// Prints the stack of allocation `number` after arming to stderr; 0 prints
// none. Use it to find a leak, or the allocation at which the process ended.
void TraceAllocation(int64_t number);
// Prints the numbers of the pieces that were allocated since arming and not
// freed.
void PrintLiveAllocations();

}  // namespace shard

#endif  // SHARD_TESTS_FAULT_FAILING_ALLOCATOR_H_
