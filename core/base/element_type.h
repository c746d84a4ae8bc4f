// SPDX-License-Identifier: Apache-2.0
//
// Element types of tensors in memory and in files: a table of their names,
// sizes and kinds.
//
// Other places list types as well, and a new type may have to be added there:
//   - shard_dtype in the public headers, and DTypeFromValue for parameters;
//   - schema::ElementType of checkpoints, with a new version of their format
//     (core/checkpoint/manifest/manifest.h), and the order of types in
//     safetensors (core/checkpoint/safetensors/safetensors_layout.cc);
//   - the opaque types, of which the new one may have been one until then
//     (core/checkpoint/store/opaque_type.h);
//   - the code that computes with them: core/device/cpu/update_elements.cc
//     and kernels/cpu/fused_step.cc.
//
// Pure. The values go into files and are frozen.

#ifndef SHARD_CORE_BASE_ELEMENT_TYPE_H_
#define SHARD_CORE_BASE_ELEMENT_TYPE_H_

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"

namespace shard {

// The type of a stored tensor's elements. 1 to 5 are DType's; the others are
// only stored by hosts, and copied as they are.
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
  // A type that is only copied, as bytes: TensorInfo has its name. Only files
  // have such tensors.
  kOpaque = 32,
};

struct ElementTypeInfo {
  ElementType type;
  const char* name;         // As in messages, texts and the manifest's schema.
  const char* safetensors;  // In that format; null: not in it.
  uint8_t size;             // Bytes; of q8 those of the code alone.
  bool is_convertible;      // A float that is converted to the other ones.
  // Elements that share a scale in fp32, beside the codes; 0: no scales.
  int32_t block;
};

inline constexpr ElementTypeInfo kElementTypes[] = {
    {ElementType::kF32, "f32", "F32", 4, true, 0},
    {ElementType::kBF16, "bf16", "BF16", 2, true, 0},
    {ElementType::kF16, "f16", "F16", 2, true, 0},
    {ElementType::kF64, "f64", "F64", 8, true, 0},
    {ElementType::kQ8, "q8", nullptr, 1, false, kQ8Block},
    {ElementType::kF8E4M3, "f8_e4m3", "F8_E4M3", 1, false, 0},
    {ElementType::kF8E5M2, "f8_e5m2", "F8_E5M2", 1, false, 0},
    {ElementType::kI8, "i8", "I8", 1, false, 0},
    {ElementType::kI16, "i16", "I16", 2, false, 0},
    {ElementType::kI32, "i32", "I32", 4, false, 0},
    {ElementType::kI64, "i64", "I64", 8, false, 0},
    {ElementType::kU8, "u8", "U8", 1, false, 0},
    {ElementType::kU16, "u16", "U16", 2, false, 0},
    {ElementType::kU32, "u32", "U32", 4, false, 0},
    {ElementType::kU64, "u64", "U64", 8, false, 0},
    {ElementType::kBool, "bool", "BOOL", 1, false, 0},
    {ElementType::kOpaque, "opaque", nullptr, 1, false, 0},
};

// Returns the row of a value, or null.
constexpr const ElementTypeInfo* FindElementType(int32_t value) {
  for (const ElementTypeInfo& info : kElementTypes) {
    if (static_cast<int32_t>(info.type) == value) return &info;
  }
  return nullptr;
}

// Returns whether a value is one of the above.
constexpr bool IsElementType(int32_t value) {
  return FindElementType(value) != nullptr;
}

constexpr ElementType ElementTypeOf(DType dtype) {
  return static_cast<ElementType>(dtype);
}

// Return the row of a type. REQUIRES: one of the above, as for ElementSize and
// ElementTypeName.
constexpr const ElementTypeInfo& InfoOf(ElementType type) {
  return *FindElementType(static_cast<int32_t>(type));
}
constexpr const ElementTypeInfo& InfoOf(DType dtype) {
  return InfoOf(ElementTypeOf(dtype));
}

// Returns the bytes of an element; 1 for kOpaque, which counts bytes.
constexpr size_t ElementSize(ElementType type) { return InfoOf(type).size; }

// Returns the name of a type: "f32", "i64", ...; "opaque".
constexpr const char* ElementTypeName(ElementType type) {
  return InfoOf(type).name;
}

template <typename Type>
concept AnyElementType =
    std::same_as<Type, ElementType> || std::same_as<Type, DType>;

// The functions below return false for a value that is no type: hosts pass
// values that are not checked yet.

// Returns whether a type is a float that is converted to and from the other
// ones: not one of 8 bits, which is only copied.
template <AnyElementType Type>
constexpr bool IsConvertibleFloat(Type type) {
  const auto* const info = FindElementType(static_cast<int32_t>(type));
  return info != nullptr && info->is_convertible;
}

// Returns whether a type is a float of 2 bytes.
template <AnyElementType Type>
constexpr bool IsHalf(Type type) {
  return IsConvertibleFloat(type) && InfoOf(type).size == 2;
}

// Returns whether elements are codes that need scales.
template <AnyElementType Type>
constexpr bool IsQuantized(Type type) {
  const auto* const info = FindElementType(static_cast<int32_t>(type));
  return info != nullptr && info->block > 0;
}

}  // namespace shard

#endif  // SHARD_CORE_BASE_ELEMENT_TYPE_H_
