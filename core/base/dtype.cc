// SPDX-License-Identifier: Apache-2.0

#include "core/base/dtype.h"

#include "core/base/element_type.h"

namespace shard {

namespace {

// Returns the row of a dtype; null for a value that is none, such as that of an
// ElementType that is only stored.
const ElementTypeInfo* FindDType(DType dtype) {
  const bool known = dtype >= DType::kF32 && dtype <= DType::kQ8;
  return known ? FindElementType(static_cast<int32_t>(dtype)) : nullptr;
}

}  // namespace

size_t DTypeSize(DType dtype) {
  const ElementTypeInfo* const info = FindDType(dtype);
  return info == nullptr ? 0 : info->size;
}

size_t DTypeBytes(DType dtype, int64_t numel) {
  const ElementTypeInfo* const info = FindDType(dtype);
  if (info == nullptr) return 0;
  const auto count = static_cast<size_t>(numel);
  size_t bytes = count * info->size;
  if (info->block > 0) {
    bytes += count / static_cast<size_t>(info->block) * sizeof(float);
  }
  return bytes;
}

const char* DTypeName(DType dtype) {
  const ElementTypeInfo* const info = FindDType(dtype);
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
