// SPDX-License-Identifier: Apache-2.0
//
// The functions of checksum_target.cc, once per instruction set. xxHash chooses
// the set by the compiler's options, so each set is a build target with options
// of its own (BUILD.bazel).

#ifndef SHARD_KERNELS_CPU_CHECKSUM_TARGET_H_
#define SHARD_KERNELS_CPU_CHECKSUM_TARGET_H_

#include <cstddef>

#include "kernels/cpu/checksum.h"

namespace shard {

#define SHARD_CHECKSUM_DECLARE(Target)                                \
  namespace checksum_##Target {                                       \
    Xxh128 ChecksumBytes(const void* data, size_t bytes);             \
    Xxh128 CopyAndChecksum(void* to, const void* from, size_t bytes); \
  }
SHARD_CHECKSUM_DECLARE(baseline)
SHARD_CHECKSUM_DECLARE(avx2)
SHARD_CHECKSUM_DECLARE(avx512)
#undef SHARD_CHECKSUM_DECLARE

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_CHECKSUM_TARGET_H_
