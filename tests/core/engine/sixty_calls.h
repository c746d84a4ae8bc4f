// SPDX-License-Identifier: Apache-2.0
//
// The calls of an entry point that fail in the long form of a test, one call at
// a time.

#ifndef SHARD_TESTS_CORE_ENGINE_SIXTY_CALLS_H_
#define SHARD_TESTS_CORE_ENGINE_SIXTY_CALLS_H_

#include <cstdint>
#include <vector>

namespace shard {

// Returns the numbers of the first 20 calls, of the last 20, and of 20 between.
inline std::vector<uint64_t> SixtyOf(uint64_t calls) {
  constexpr uint64_t kEach = 20;
  std::vector<uint64_t> numbers;
  for (uint64_t n = 1; n <= calls; ++n) {
    // Counted from the first call of those between.
    const uint64_t at = n - kEach;
    const uint64_t between = calls - 2 * kEach;
    const bool is_at_an_end = n <= kEach || n + kEach > calls;
    if (is_at_an_end || at * kEach / between != (at - 1) * kEach / between) {
      numbers.push_back(n);
    }
  }
  return numbers;
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_SIXTY_CALLS_H_
