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
};

// Bytes per element.
size_t DTypeSize(DType dtype);

// "f32", "bf16", ...
const char* DTypeName(DType dtype);

// The dtype with that value; an error that names the value and the known ones.
StatusOr<DType> DTypeFromValue(int32_t value);

}  // namespace shard

#endif  // SHARD_CORE_BASE_DTYPE_H_
