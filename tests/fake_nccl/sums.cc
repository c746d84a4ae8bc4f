// SPDX-License-Identifier: Apache-2.0

#include "tests/fake_nccl/sums.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace shard::testing::fake_nccl {

namespace {

struct TypeInfo {
  const char* name;
  size_t bytes;
};

constexpr TypeInfo kTypes[kNumTypes] = {
    {"i8", 1},  {"u8", 1},   {"i32", 4},    {"u32", 4},
    {"i64", 8}, {"u64", 8},  {"f16", 2},    {"f32", 4},
    {"f64", 8}, {"bf16", 2}, {"f8e4m3", 1}, {"f8e5m2", 1},
};

bool IsType(DataType type) {
  return static_cast<int>(type) >= 0 && static_cast<int>(type) < kNumTypes;
}

// Rounds to nearest even.
uint16_t ToBF16(float x) {
  const auto word = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>(word >> 16 | 0x40);
  return static_cast<uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
}
float FromBF16(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

float FromF16(uint16_t x) {
  const int exponent = x >> 10 & 31;
  const int mantissa = x & 1023;
  float value = 0;
  if (exponent == 31) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    value = std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  }
  return (x & 0x8000) == 0 ? value : -value;
}
// Rounds to nearest even, as the host's rounding mode.
uint16_t ToF16(float x) {
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const float size = std::fabs(x);
  if (std::isnan(x)) return static_cast<uint16_t>(sign | 0x7E00);
  constexpr float kOverflow = 65520;  // Half way behind the largest, 65504.
  if (size >= kOverflow) return static_cast<uint16_t>(sign | 0x7C00);
  // The numbers of an exponent, and below them all, are 2^(exponent - 10)
  // apart.
  int exponent = -14;
  if (size >= std::ldexp(1.0f, -14)) exponent = std::ilogb(size);
  const auto steps =
      static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  // A mantissa that rounds up to 2048 carries into the exponent.
  const int bits = steps < 1024 ? steps : ((exponent + 14) << 10) + steps;
  return static_cast<uint16_t>(sign | bits);
}

template <typename T, typename Add>
void AddAll(void* sums, const void* addends, size_t count, Add add) {
  auto* const to = static_cast<std::byte*>(sums);
  const auto* const from = static_cast<const std::byte*>(addends);
  for (size_t i = 0; i < count; ++i) {
    T x = {};
    T y = {};
    std::memcpy(&x, to + i * sizeof(T), sizeof(T));
    std::memcpy(&y, from + i * sizeof(T), sizeof(T));
    x = add(x, y);
    std::memcpy(to + i * sizeof(T), &x, sizeof(T));
  }
}

template <typename T>
void AddPlain(void* sums, const void* addends, size_t count) {
  AddAll<T>(sums, addends, count,
            [](T x, T y) { return static_cast<T>(x + y); });
}

}  // namespace

size_t SizeOf(DataType type) {
  return IsType(type) ? kTypes[static_cast<int>(type)].bytes : 0;
}

const char* NameOf(DataType type) {
  return IsType(type) ? kTypes[static_cast<int>(type)].name : "no type";
}

bool HasSums(DataType type) {
  return IsType(type) && type != DataType::kFloat8e4m3 &&
         type != DataType::kFloat8e5m2;
}

void AddTo(void* sums, const void* addends, size_t count, DataType type) {
  switch (type) {
    // Two's complement: the sum has the same bits with a sign and without.
    case DataType::kInt8:
    case DataType::kUint8:
      return AddPlain<uint8_t>(sums, addends, count);
    case DataType::kInt32:
    case DataType::kUint32:
      return AddPlain<uint32_t>(sums, addends, count);
    case DataType::kInt64:
    case DataType::kUint64:
      return AddPlain<uint64_t>(sums, addends, count);
    case DataType::kFloat32:
      return AddPlain<float>(sums, addends, count);
    case DataType::kFloat64:
      return AddPlain<double>(sums, addends, count);
    // fp32 has more than twice their mantissas, so that one rounding behind
    // another is the same as one.
    case DataType::kFloat16:
      return AddAll<uint16_t>(sums, addends, count, [](uint16_t x, uint16_t y) {
        return ToF16(FromF16(x) + FromF16(y));
      });
    case DataType::kBfloat16:
      return AddAll<uint16_t>(sums, addends, count, [](uint16_t x, uint16_t y) {
        return ToBF16(FromBF16(x) + FromBF16(y));
      });
    case DataType::kFloat8e4m3:
    case DataType::kFloat8e5m2:
      return;
  }
}

}  // namespace shard::testing::fake_nccl
