// SPDX-License-Identifier: Apache-2.0
//
// TensorInfo: the description of a stored tensor, in any file format.

#ifndef SHARD_CORE_CHECKPOINT_STORE_TENSOR_INFO_H_
#define SHARD_CORE_CHECKPOINT_STORE_TENSOR_INFO_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/model/names.h"

namespace shard {

// The type of a stored tensor's elements. 1 to 5 are DType's; the others are
// only stored by hosts, and copied as they are. The values go into files and
// are frozen.
enum class ElementType : int32_t {
  kF32 = 1,
  kBF16 = 2,
  kF16 = 3,
  kF64 = 4,
  kQ8 = 5,  // A code of one byte; its scales are a tensor of their own.
  kF8E4M3 = 6,
  kF8E5M2 = 7,
  kI8 = 16,
  kI16 = 17,
  kI32 = 18,
  kI64 = 19,
  kU8 = 20,
  kU16 = 21,
  kU32 = 22,
  kU64 = 23,
  kBool = 24,  // One byte, 0 or 1.
  // A type that is only copied, as bytes: TensorInfo has its name. Not written
  // to files of libshard's own format.
  kOpaque = 32,
};

inline ElementType ElementTypeOf(DType dtype) {
  return static_cast<ElementType>(dtype);
}

// Returns whether a value is one of the above that may be in a checkpoint: not
// kOpaque.
bool IsElementType(int32_t value);

// Returns the bytes of an element; 1 for kOpaque, which counts bytes. REQUIRES:
// one of the above.
size_t ElementSize(ElementType type);

// Returns the name of a type: "f32", "i64", ...; "opaque".
const char* ElementTypeName(ElementType type);

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
  // For kOpaque: the file's name of the type, and all bytes of the tensor.
  std::string_view opaque_type = {};
  uint64_t opaque_bytes = 0;
};

// Returns the type's name, also for kOpaque, with a NUL behind it.
inline std::string_view TypeNameOf(const TensorInfo& info) {
  return info.type == ElementType::kOpaque ? info.opaque_type
                                           : ElementTypeName(info.type);
}

// Returns the bytes of all elements.
inline uint64_t TensorBytes(const TensorInfo& info) {
  if (info.type == ElementType::kOpaque) return info.opaque_bytes;
  return static_cast<uint64_t>(info.numel) * ElementSize(info.type);
}

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_STORE_TENSOR_INFO_H_
