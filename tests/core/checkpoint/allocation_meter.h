// SPDX-License-Identifier: Apache-2.0
//
// How much memory operator new has given out, in this process: for tests of
// functions that promise a bound. Replaces operator new and delete.

#ifndef SHARD_TESTS_CORE_CHECKPOINT_ALLOCATION_METER_H_
#define SHARD_TESTS_CORE_CHECKPOINT_ALLOCATION_METER_H_

#include <cstdint>

namespace shard {

// Bytes that are allocated now.
int64_t AllocatedBytes();
// The most at a time since ResetAllocatedPeak(), which makes it the present.
int64_t AllocatedPeak();
void ResetAllocatedPeak();

}  // namespace shard

#endif  // SHARD_TESTS_CORE_CHECKPOINT_ALLOCATION_METER_H_
