// SPDX-License-Identifier: Apache-2.0
//
// Measures the memory that operator new has allocated in this process, for
// tests of functions that promise a bound. Replaces operator new and delete.

#ifndef SHARD_TESTS_CORE_CHECKPOINT_ALLOCATION_METER_H_
#define SHARD_TESTS_CORE_CHECKPOINT_ALLOCATION_METER_H_

#include <cstdint>

namespace shard {

// Returns the bytes that are allocated now.
int64_t AllocatedBytes();
// Returns the most bytes that were allocated at a time since the last call of
// ResetAllocatedPeak(), which sets the peak to the present bytes.
int64_t AllocatedPeak();
void ResetAllocatedPeak();
// Returns the bytes that were ever allocated, a count of work.
int64_t AllocatedInAll();

}  // namespace shard

#endif  // SHARD_TESTS_CORE_CHECKPOINT_ALLOCATION_METER_H_
