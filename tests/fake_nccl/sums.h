// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of the fake's sums.

#ifndef SHARD_TESTS_FAKE_NCCL_SUMS_H_
#define SHARD_TESTS_FAKE_NCCL_SUMS_H_

#include <cstddef>

#include "tests/fake_nccl/abi.h"

namespace shard::testing::fake_nccl {

// Returns the bytes of an element, or 0 for a number that is no type.
size_t SizeOf(DataType type);
const char* NameOf(DataType type);
// Returns whether the fake has sums of a type: of all but those of 8 bits that
// are floats.
bool HasSums(DataType type);
// Adds `count` elements to others, and rounds each sum to the type. Integers
// wrap.
void AddTo(void* sums, const void* addends, size_t count, DataType type);

// Returns the rank with which the sum of an element begins.
inline int FirstRank(int block, size_t element, size_t slice_elements,
                     int nranks) {
  return static_cast<int>(
      (static_cast<size_t>(block) + 1 + element / slice_elements) %
      static_cast<size_t>(nranks));
}

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_SUMS_H_
