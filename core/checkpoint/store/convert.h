// SPDX-License-Identifier: Apache-2.0
//
// Conversion of elements between float types: from files, which are
// little-endian like this machine, into the host's memory.

#ifndef SHARD_CORE_CHECKPOINT_STORE_CONVERT_H_
#define SHARD_CORE_CHECKPOINT_STORE_CONVERT_H_

#include <cstddef>

#include "core/base/dtype.h"
#include "core/checkpoint/store/tensor_info.h"

namespace shard {

// Converts elements, rounding to nearest, by way of fp32. Neither `data` nor
// `out` needs to be aligned. REQUIRES: both types are f32, bf16, f16 or f64.
void ConvertElements(ElementType from, const std::byte* data, DType to,
                     std::byte* out, size_t count);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_STORE_CONVERT_H_
