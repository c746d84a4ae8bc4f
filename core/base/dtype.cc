// SPDX-License-Identifier: Apache-2.0

#include "core/base/dtype.h"

#include "core/base/element_type.h"

namespace shard {

size_t DTypeSize(DType dtype) {
  const auto* const info = FindElementType(static_cast<int32_t>(dtype));
  return info == nullptr ? 0 : info->size;
}

size_t DTypeBytes(DType dtype, int64_t numel) {
  const auto count = static_cast<size_t>(numel);
  size_t bytes = count * DTypeSize(dtype);
  if (IsQuantized(dtype)) {
    bytes += count / static_cast<size_t>(InfoOf(dtype).block) * sizeof(float);
  }
  return bytes;
}

const char* DTypeName(DType dtype) {
  const auto* const info = FindElementType(static_cast<int32_t>(dtype));
  return info == nullptr ? "unknown" : info->name;
}

StatusOr<DType> DTypeFromValue(int32_t value) {
  if (value < 1 || value > 4) {
    return InvalidArgument("unknown dtype ", value,
                           "; known: 1 (f32), 2 (bf16), 3 (f16), 4 (f64)");
  }
  return static_cast<DType>(value);
}

}  // namespace shard
