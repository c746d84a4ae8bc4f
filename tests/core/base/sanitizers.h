// SPDX-License-Identifier: Apache-2.0
//
// Tells which sanitizer the code is compiled for, if any. Tests that try every
// case try only some under a sanitizer: instrumented code is ten times slower.

#ifndef SHARD_TESTS_CORE_BASE_SANITIZERS_H_
#define SHARD_TESTS_CORE_BASE_SANITIZERS_H_

// clang has a feature test for a sanitizer, gcc a macro.
#if defined(__has_feature)
#define SHARD_TESTS_HAS_FEATURE(feature) __has_feature(feature)
#else
#define SHARD_TESTS_HAS_FEATURE(feature) 0
#endif

// 1 under the address sanitizer, 0 otherwise.
#if defined(__SANITIZE_ADDRESS__) || SHARD_TESTS_HAS_FEATURE(address_sanitizer)
#define SHARD_TESTS_ADDRESS_SANITIZER 1
#else
#define SHARD_TESTS_ADDRESS_SANITIZER 0
#endif

// 1 under the thread sanitizer, 0 otherwise.
#if defined(__SANITIZE_THREAD__) || SHARD_TESTS_HAS_FEATURE(thread_sanitizer)
#define SHARD_TESTS_THREAD_SANITIZER 1
#else
#define SHARD_TESTS_THREAD_SANITIZER 0
#endif

namespace shard {

inline constexpr bool kAddressSanitized = SHARD_TESTS_ADDRESS_SANITIZER;
inline constexpr bool kSanitized =
    SHARD_TESTS_ADDRESS_SANITIZER || SHARD_TESTS_THREAD_SANITIZER;

}  // namespace shard

#endif  // SHARD_TESTS_CORE_BASE_SANITIZERS_H_
