// SPDX-License-Identifier: Apache-2.0
//
// The allocator of a test program, which can be told to fail: malloc and its
// family, operator new, mmap, and the start of a thread. Linked into a program
// it stands before those of libc and libstdc++ for libshard.so too.
//
// Under the address sanitizer, whose own malloc, mmap and pthread_create have
// to stay, only operator new is replaced.
//
// Allocations of all threads count: the program itself allocates nothing while
// the allocator is armed.

#ifndef SHARD_TESTS_FAULT_FAILING_ALLOCATOR_H_
#define SHARD_TESTS_FAULT_FAILING_ALLOCATOR_H_

#include <cstdint>

namespace shard {

enum class Outage : int32_t {
  kNone,     // Only counts.
  kOnce,     // One allocation fails.
  kForGood,  // It and all that follow.
};

// Numbers allocations from 1 on, and lets number `at` fail.
void ArmAllocator(Outage outage, int64_t at);
// Returns how many allocations there were. All succeed from here on.
int64_t DisarmAllocator();
// Whether one failed since the allocator was armed.
bool AllocationFailed();

// What is allocated now: pieces of memory, and pages in bytes.
struct Allocated {
  int64_t pieces = 0;
  int64_t mapped_bytes = 0;

  bool operator==(const Allocated&) const = default;
};
Allocated AllocatedNow();

// Prints the stack of allocation `number` of those after Arm to stderr; 0: of
// none. To find what leaks, or where something ended the process.
void TraceAllocation(int64_t number);
// Prints the numbers of the pieces allocated since Arm that are there still.
void PrintLiveAllocations();

}  // namespace shard

#endif  // SHARD_TESTS_FAULT_FAILING_ALLOCATOR_H_
