// SPDX-License-Identifier: Apache-2.0
//
// The functions of the fake NCCL, by their names in NCCL.

#ifndef SHARD_TESTS_FAKE_NCCL_ENTRY_POINTS_H_
#define SHARD_TESTS_FAKE_NCCL_ENTRY_POINTS_H_

#include "tests/fake_nccl/abi.h"

namespace shard::testing::fake_nccl {

// Callers declare NCCL's types anew, as they do for the real library, which is
// not built with the sanitizer that compares the types of functions.
#ifdef __clang__
#define SHARD_FAKE_NCCL_EXPORT \
  __attribute__((visibility("default"), no_sanitize("function")))
#else
#define SHARD_FAKE_NCCL_EXPORT __attribute__((visibility("default")))
#endif

extern "C" {
#define SHARD_FAKE_NCCL_DECLARE(symbol, parameters) \
  SHARD_FAKE_NCCL_EXPORT Result symbol parameters;
#define SHARD_FAKE_NCCL_DECLARE_LATER(symbol, since, parameters) \
  SHARD_FAKE_NCCL_DECLARE(symbol, parameters)
SHARD_FAKE_NCCL(SHARD_FAKE_NCCL_DECLARE)
SHARD_FAKE_NCCL_LATER(SHARD_FAKE_NCCL_DECLARE_LATER)
SHARD_FAKE_NCCL_DEVICE(SHARD_FAKE_NCCL_DECLARE_LATER)
#undef SHARD_FAKE_NCCL_DECLARE_LATER
#undef SHARD_FAKE_NCCL_DECLARE
SHARD_FAKE_NCCL_EXPORT const char* ncclGetErrorString(Result result);
SHARD_FAKE_NCCL_EXPORT const char* ncclGetLastError(const Comm* comm);
}

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_ENTRY_POINTS_H_
