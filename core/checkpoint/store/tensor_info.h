// SPDX-License-Identifier: Apache-2.0
//
// TensorInfo: the description of a stored tensor, in any file format.

#ifndef SHARD_CORE_CHECKPOINT_STORE_TENSOR_INFO_H_
#define SHARD_CORE_CHECKPOINT_STORE_TENSOR_INFO_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/element_type.h"
#include "core/base/status.h"
#include "core/model/names.h"

namespace shard {

// The role of a tensor. The values go into files and are frozen.
enum class TensorRole : int32_t {
  kParam = 1,
  kBuffer = 2,  // A tensor of the host that is not trained.
  kState = 3,   // A state of the optimizer.
};

const char* TensorRoleName(TensorRole role);

// The description of a tensor. Its views are valid as long as the store or
// manifest that returned it.
struct TensorInfo {
  // `key` and `opaque_type` have a NUL behind them, and none inside.
  std::string_view key;
  ElementType type = ElementType::kF32;
  TensorRole role = TensorRole::kParam;
  std::span<const int64_t> shape;
  int64_t numel = 0;
  // The index of the tensor that this one is an alias of; -1: none.
  int64_t alias_of = -1;
  // For states in q8: the StateKind of their codes; -1: unknown.
  int32_t codebook = 0;
  // For kOpaque: the file's name of the type, and all bytes of the tensor, less
  // than 2^63.
  std::string_view opaque_type = {};
  uint64_t opaque_bytes = 0;
};

// Returns the type's name, also for kOpaque, with a NUL behind it.
inline std::string_view TypeNameOf(const TensorInfo& info) {
  return info.type == ElementType::kOpaque ? info.opaque_type
                                           : ElementTypeName(info.type);
}

// Returns the number of stored elements, in which slices and requests count:
// those of the shape; for kOpaque, whose elements may have any size, bytes.
inline int64_t StoredNumel(const TensorInfo& info) {
  return info.type == ElementType::kOpaque
             ? static_cast<int64_t>(info.opaque_bytes)
             : info.numel;
}

// Returns the bytes of all elements.
inline uint64_t TensorBytes(const TensorInfo& info) {
  return static_cast<uint64_t>(StoredNumel(info)) * ElementSize(info.type);
}

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_STORE_TENSOR_INFO_H_
