// SPDX-License-Identifier: Apache-2.0
//
// Element types, ids and shapes.

#ifndef SHARD_TYPES_HPP_
#define SHARD_TYPES_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "shard/base.h"
#include "shard/error.hpp"

// On what a function returns: clang warns when it outlives the object, or the
// argument, that it points into.
#if defined(__has_cpp_attribute) && __has_cpp_attribute(clang::lifetimebound)
#define SHARD_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define SHARD_LIFETIMEBOUND
#endif

namespace shard {

// ---- Element types ----------------------------------------------------------

// The types of elements: shard_dtype in shard/base.h. A newer library may have
// others than these.
enum class DType : shard_dtype {
  f32 = SHARD_F32,
  bf16 = SHARD_BF16,
  f16 = SHARD_F16,
  f64 = SHARD_F64,
  q8 = SHARD_Q8,
  f8_e4m3 = SHARD_F8_E4M3,
  f8_e5m2 = SHARD_F8_E5M2,
  i8 = SHARD_I8,
  i16 = SHARD_I16,
  i32 = SHARD_I32,
  i64 = SHARD_I64,
  u8 = SHARD_U8,
  u16 = SHARD_U16,
  u32 = SHARD_U32,
  u64 = SHARD_U64,
  boolean = SHARD_BOOL,
  opaque = SHARD_OPAQUE
};

// Returns the name of an element type: "f32". Any thread.
inline const char* dtype_name(DType dtype) noexcept {
  return shard_dtype_name(static_cast<shard_dtype>(dtype));
}

// Returns the bytes of an element; 0 for opaque. Any thread.
inline std::size_t dtype_size(DType dtype) noexcept {
  return shard_dtype_size(static_cast<shard_dtype>(dtype));
}

// The bits of a bf16 or f16 element, for hosts without a type of their own.
struct BF16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

// The element type of a C++ type. A host may add its own:
//
//   template <>
//   struct shard::ElementType<my::half> {
//     static constexpr shard::DType value = shard::DType::f16;
//   };
template <class T>
struct ElementType {
  static_assert(!std::is_same_v<T, T>,
                "T is no element type; specialize shard::ElementType for it, "
                "or use std::byte for elements of any type");
};
template <DType kValue>
struct ElementTypeOf {
  static constexpr DType value = kValue;
};
template <>
struct ElementType<float> : ElementTypeOf<DType::f32> {};
template <>
struct ElementType<double> : ElementTypeOf<DType::f64> {};
template <>
struct ElementType<BF16> : ElementTypeOf<DType::bf16> {};
template <>
struct ElementType<F16> : ElementTypeOf<DType::f16> {};
template <>
struct ElementType<std::int8_t> : ElementTypeOf<DType::i8> {};
template <>
struct ElementType<std::int16_t> : ElementTypeOf<DType::i16> {};
template <>
struct ElementType<std::int32_t> : ElementTypeOf<DType::i32> {};
template <>
struct ElementType<std::int64_t> : ElementTypeOf<DType::i64> {};
template <>
struct ElementType<std::uint8_t> : ElementTypeOf<DType::u8> {};
template <>
struct ElementType<std::uint16_t> : ElementTypeOf<DType::u16> {};
template <>
struct ElementType<std::uint32_t> : ElementTypeOf<DType::u32> {};
template <>
struct ElementType<std::uint64_t> : ElementTypeOf<DType::u64> {};
template <>
struct ElementType<bool> : ElementTypeOf<DType::boolean> {};

template <class T>
inline constexpr DType dtype_of = ElementType<std::remove_cv_t<T>>::value;

// ---- Ids --------------------------------------------------------------------

// Numbers from 0 up of what a model or a plan has; each kind is a type, so that
// a unit is not taken for a parameter. ParamId{3} makes one of a number.
enum class ModuleId : std::int32_t {};
enum class ParamId : std::int32_t {};
enum class ModelBufferId : std::int32_t {};  // From Model::add_buffer.
enum class GroupId : std::int32_t {};
enum class UnitId : std::int32_t {};
enum class BufferId : std::int32_t {};  // Flat buffers.
enum class NameId : std::int32_t {};

inline constexpr ModuleId root_module{0};
inline constexpr GroupId default_group{0};
inline constexpr GroupId all_groups{-1};
inline constexpr std::int32_t all_ranks = -1;

// The ids from 0 up to a number, to loop over.
template <class Id>
class Ids {
 public:
  class Iterator {
   public:
    constexpr explicit Iterator(std::int32_t at) noexcept : at_(at) {}
    constexpr Id operator*() const noexcept { return Id{at_}; }
    constexpr Iterator& operator++() noexcept {
      ++at_;
      return *this;
    }
    constexpr bool operator==(const Iterator&) const noexcept = default;

   private:
    std::int32_t at_;
  };

  constexpr explicit Ids(std::int32_t count) noexcept : count_(count) {}
  constexpr Iterator begin() const noexcept { return Iterator(0); }
  constexpr Iterator end() const noexcept { return Iterator(count_); }
  constexpr std::int32_t size() const noexcept { return count_; }

 private:
  std::int32_t count_;
};

// ---- Shapes -----------------------------------------------------------------

// The dimensions of a tensor, at most SHARD_MAX_DIMS; none for a scalar.
class Shape {
 public:
  constexpr Shape() noexcept = default;
  constexpr Shape(std::initializer_list<std::int64_t> dims)
      : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}
  constexpr explicit Shape(std::span<const std::int64_t> dims) {
    if (dims.size() > SHARD_MAX_DIMS) {
      throw Error(Code::invalid_argument, "a shape has " +
                                              std::to_string(dims.size()) +
                                              " dimensions; allowed: 0 to " +
                                              std::to_string(SHARD_MAX_DIMS));
    }
    for (const std::int64_t dim : dims) dims_[ndim_++] = dim;
  }

  constexpr std::size_t size() const noexcept { return ndim_; }
  constexpr const std::int64_t* data() const noexcept SHARD_LIFETIMEBOUND {
    return dims_.data();
  }
  constexpr const std::int64_t* begin() const noexcept SHARD_LIFETIMEBOUND {
    return data();
  }
  constexpr const std::int64_t* end() const noexcept SHARD_LIFETIMEBOUND {
    return data() + ndim_;
  }
  // REQUIRES: index < size().
  constexpr std::int64_t operator[](std::size_t index) const noexcept {
    return dims_[index];
  }

  constexpr bool operator==(const Shape&) const noexcept = default;

 private:
  std::array<std::int64_t, SHARD_MAX_DIMS> dims_ = {};
  std::size_t ndim_ = 0;
};

}  // namespace shard

#endif  // SHARD_TYPES_HPP_
