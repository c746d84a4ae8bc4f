// SPDX-License-Identifier: Apache-2.0
//
// Whether this is compiled for a sanitizer of gcc: tests that try every case
// there is take ten times as long then, and try some.

#ifndef SHARD_TESTS_CORE_BASE_SANITIZERS_H_
#define SHARD_TESTS_CORE_BASE_SANITIZERS_H_

namespace shard {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace shard

#endif  // SHARD_TESTS_CORE_BASE_SANITIZERS_H_
