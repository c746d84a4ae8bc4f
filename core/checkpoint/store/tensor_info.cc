// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/store/tensor_info.h"

#include <cstdint>

namespace shard {

namespace {

struct ElementTypeTraits {
  ElementType type;
  size_t size;
  const char* name;
};

constexpr ElementTypeTraits kTypes[] = {
    {ElementType::kF32, 4, "f32"},        {ElementType::kBF16, 2, "bf16"},
    {ElementType::kF16, 2, "f16"},        {ElementType::kF64, 8, "f64"},
    {ElementType::kQ8, 1, "q8"},          {ElementType::kF8E4M3, 1, "f8_e4m3"},
    {ElementType::kF8E5M2, 1, "f8_e5m2"}, {ElementType::kI8, 1, "i8"},
    {ElementType::kI16, 2, "i16"},        {ElementType::kI32, 4, "i32"},
    {ElementType::kI64, 8, "i64"},        {ElementType::kU8, 1, "u8"},
    {ElementType::kU16, 2, "u16"},        {ElementType::kU32, 4, "u32"},
    {ElementType::kU64, 8, "u64"},        {ElementType::kBool, 1, "bool"},
};

const ElementTypeTraits* FindType(int32_t value) {
  for (const ElementTypeTraits& traits : kTypes) {
    if (static_cast<int32_t>(traits.type) == value) return &traits;
  }
  return nullptr;
}

}  // namespace

bool IsElementType(int32_t value) { return FindType(value) != nullptr; }

size_t ElementSize(ElementType type) {
  if (type == ElementType::kOpaque) return 1;
  return FindType(static_cast<int32_t>(type))->size;
}

const char* ElementTypeName(ElementType type) {
  if (type == ElementType::kOpaque) return "opaque";
  return FindType(static_cast<int32_t>(type))->name;
}

const char* TensorRoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kParam:
      return "param";
    case TensorRole::kBuffer:
      return "buffer";
    case TensorRole::kState:
      return "state";
  }
  return "unknown";
}

}  // namespace shard
