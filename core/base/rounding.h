// SPDX-License-Identifier: Apache-2.0
//
// Rounding of sizes and offsets to multiples.

#ifndef SHARD_CORE_BASE_ROUNDING_H_
#define SHARD_CORE_BASE_ROUNDING_H_

#include <concepts>
#include <type_traits>

namespace shard {

// Return the largest multiple of `multiple` up to `value`, and the smallest
// from `value` on. REQUIRES: value >= 0 and multiple > 0, and value + multiple
// is within the type.
template <std::integral Int>
constexpr Int RoundDown(Int value, std::type_identity_t<Int> multiple) {
  return value / multiple * multiple;
}
template <std::integral Int>
constexpr Int RoundUp(Int value, std::type_identity_t<Int> multiple) {
  return RoundDown<Int>(value + multiple - 1, multiple);
}

}  // namespace shard

#endif  // SHARD_CORE_BASE_ROUNDING_H_
