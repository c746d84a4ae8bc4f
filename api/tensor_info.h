// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_API_TENSOR_INFO_H_
#define SHARD_API_TENSOR_INFO_H_

#include <algorithm>
#include <cstdint>

#include "core/checkpoint/store/tensor_info.h"
#include "shard/shard.h"

namespace shard::api {

// Returns what a store of any kind knows of a tensor; the rest is unknown.
// REQUIRES: at most SHARD_MAX_DIMS dimensions.
inline shard_tensor_info ToTensorInfo(const TensorInfo& tensor) {
  shard_tensor_info info = SHARD_TENSOR_INFO_INIT;
  info.dtype = static_cast<int32_t>(tensor.type);
  info.role = static_cast<int32_t>(tensor.role);
  info.alias_of = tensor.alias_of;
  info.numel = tensor.numel;
  info.bytes = TensorBytes(tensor);
  info.ndim = static_cast<int32_t>(tensor.shape.size());
  std::copy(tensor.shape.begin(), tensor.shape.end(), info.shape);
  info.group = -1;
  info.step = -1;
  return info;
}

}  // namespace shard::api

#endif  // SHARD_API_TENSOR_INFO_H_
