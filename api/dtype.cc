// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/store/tensor_info.h"
#include "shard/base.h"

using shard::ElementType;

extern "C" {

const char* shard_dtype_name(shard_dtype dtype) noexcept {
  if (!shard::IsElementType(dtype)) return "unknown";
  return shard::ElementTypeName(static_cast<ElementType>(dtype));
}

size_t shard_dtype_size(shard_dtype dtype) noexcept {
  if (!shard::IsElementType(dtype) || dtype == SHARD_OPAQUE) return 0;
  return shard::ElementSize(static_cast<ElementType>(dtype));
}

}  // extern "C"
