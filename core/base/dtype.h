// SPDX-License-Identifier: Apache-2.0
//
// Element types. The values are those of shard_dtype in shard.h; they go into
// fingerprints and files, and are frozen.

#ifndef SHARD_CORE_BASE_DTYPE_H_
#define SHARD_CORE_BASE_DTYPE_H_

#include <cstddef>
#include <cstdint>

#include "core/base/status.h"

namespace shard {

enum class DType : int32_t {
  kF32 = 1,
  kBF16 = 2,
  kF16 = 3,
  kF64 = 4,
  // Only for optimizer states: 8-bit codes relative to the largest magnitude of
  // their block, which is in fp32. A tensor is its codes, followed by the
  // scales of its blocks.
  kQ8 = 5,
};

// Number of elements that share a scale in kQ8.
inline constexpr int64_t kQ8Block = 256;

// Returns the bytes per element; for kQ8 those of the code alone. 0 for a value
// that is none of the above, here and below.
size_t DTypeSize(DType dtype);

// Returns the bytes of a tensor. REQUIRES: for kQ8, `numel` is a multiple of
// kQ8Block.
size_t DTypeBytes(DType dtype, int64_t numel);

// Returns the name: "f32", "bf16", ...; "unknown" for a value that is none of
// the above.
const char* DTypeName(DType dtype);

// Returns the parameter dtype with the given value. The error for any other
// value names it and lists the known ones.
StatusOr<DType> DTypeFromValue(int32_t value);

}  // namespace shard

#endif  // SHARD_CORE_BASE_DTYPE_H_
