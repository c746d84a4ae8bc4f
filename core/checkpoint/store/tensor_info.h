// SPDX-License-Identifier: Apache-2.0
//
// What is known of a tensor in a file, whatever the file's format.

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

// What the elements of a stored tensor are. 1 to 5 are DType's; the others are
// carried as they are, and only stored by hosts. The values go into files and
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
  // Of a type that is only carried, as bytes: TensorInfo has its name. Goes
  // into no file of ours.
  kOpaque = 32,
};

inline ElementType ElementTypeOf(DType dtype) {
  return static_cast<ElementType>(dtype);
}

// Whether a value is one of the above that may be in a checkpoint: not kOpaque.
bool IsElementType(int32_t value);

// Bytes of one; of kOpaque 1, for its bytes. REQUIRES: one of the above.
size_t ElementSize(ElementType type);

// "f32", "i64", ...; "opaque".
const char* ElementTypeName(ElementType type);

// What tensors are for. The values go into files and are frozen.
enum class TensorRole : int32_t {
  kParam = 1,
  kBuffer = 2,  // Of the host: neither stepped nor a parameter.
  kState = 3,   // Of the optimizer.
};

const char* TensorRoleName(TensorRole role);

// Views into what holds them; they live as long.
struct TensorInfo {
  // This and opaque_type: with a NUL behind it, and none in it.
  std::string_view key;
  ElementType type = ElementType::kF32;
  TensorRole role = TensorRole::kParam;
  std::span<const int64_t> shape;
  int64_t numel = 0;
  // The index of the tensor that this one is another name of; -1: none.
  int64_t alias_of = -1;
  // Of states in q8: the StateKind whose codes they are; -1: unknown.
  int32_t codebook = 0;
  // Of kOpaque: what the file calls the type, and all bytes of the tensor.
  std::string_view opaque_type = {};
  uint64_t opaque_bytes = 0;
};

// The type's name, also of kOpaque, with a NUL behind it.
inline std::string_view TypeNameOf(const TensorInfo& info) {
  return info.type == ElementType::kOpaque ? info.opaque_type
                                           : ElementTypeName(info.type);
}

// Of all elements.
inline uint64_t TensorBytes(const TensorInfo& info) {
  if (info.type == ElementType::kOpaque) return info.opaque_bytes;
  return static_cast<uint64_t>(info.numel) * ElementSize(info.type);
}

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_STORE_TENSOR_INFO_H_
