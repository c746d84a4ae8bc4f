// SPDX-License-Identifier: Apache-2.0

#include "core/base/dtype.h"

namespace shard {

size_t DTypeSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF64:
      return 8;
    case DType::kQ8:
      return 1;
  }
  return 0;
}

size_t DTypeBytes(DType dtype, int64_t numel) {
  const auto count = static_cast<size_t>(numel);
  size_t bytes = count * DTypeSize(dtype);
  if (dtype == DType::kQ8) {
    bytes += count / static_cast<size_t>(kQ8Block) * sizeof(float);
  }
  return bytes;
}

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF64:
      return "f64";
    case DType::kQ8:
      return "q8";
  }
  return "unknown";
}

StatusOr<DType> DTypeFromValue(int32_t value) {
  if (value < 1 || value > 4) {
    return InvalidArgument("unknown dtype ", value,
                           "; known: 1 (f32), 2 (bf16), 3 (f16), 4 (f64)");
  }
  return static_cast<DType>(value);
}

}  // namespace shard
