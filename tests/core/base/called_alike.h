// SPDX-License-Identifier: Apache-2.0
//
// For tests that compare our declarations of a library with its header.

#ifndef SHARD_TESTS_CORE_BASE_CALLED_ALIKE_H_
#define SHARD_TESTS_CORE_BASE_CALLED_ALIKE_H_

#include <type_traits>

namespace shard::testing {

// Whether a caller passes both types in the same way.
template <typename A, typename B>
constexpr bool kPassedAlike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

// Whether a caller calls functions of both types in the same way.
template <typename A, typename B>
struct CalledAlike : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
requires(sizeof...(A) ==
         sizeof...(B)) struct CalledAlike<R (*)(A...), S (*)(B...)>
    : std::bool_constant<kPassedAlike<R, S> && (kPassedAlike<A, B> && ...)> {
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_BASE_CALLED_ALIKE_H_
