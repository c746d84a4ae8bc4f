// SPDX-License-Identifier: Apache-2.0
//
// Elements of one float type as another: those of files, which are little-
// endian like this machine, in the host's memory.

#ifndef SHARD_CORE_CHECKPOINT_STORE_CONVERT_H_
#define SHARD_CORE_CHECKPOINT_STORE_CONVERT_H_

#include <cstddef>

#include "core/base/dtype.h"
#include "core/checkpoint/store/tensor_info.h"

namespace shard {

// To nearest, by way of fp32. Neither needs to be aligned.
// REQUIRES: f32, bf16, f16 or f64, both.
void ConvertElements(ElementType from, const std::byte* data, DType to,
                     std::byte* out, size_t count);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_STORE_CONVERT_H_
