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
  // Optimizer states only: 8-bit codes relative to the largest magnitude of
  // their block, in fp32. A tensor is its codes, then its blocks' scales.
  kQ8 = 5,
};

// Elements that share a scale in kQ8.
inline constexpr int64_t kQ8Block = 256;

// Bytes per element; of kQ8 its code alone.
size_t DTypeSize(DType dtype);

// Bytes of a tensor. REQUIRES: for kQ8, a multiple of kQ8Block.
size_t DTypeBytes(DType dtype, int64_t numel);

// "f32", "bf16", ...
const char* DTypeName(DType dtype);

// The dtype of a parameter with that value; an error that names the value and
// the known ones.
StatusOr<DType> DTypeFromValue(int32_t value);

}  // namespace shard

#endif  // SHARD_CORE_BASE_DTYPE_H_
