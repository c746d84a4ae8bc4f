// SPDX-License-Identifier: Apache-2.0
//
// Conversions of single bf16 and f16 numbers by their definitions, for tests to
// compare the kernels with.

#ifndef SHARD_TESTS_KERNELS_CPU_HALVES_H_
#define SHARD_TESTS_KERNELS_CPU_HALVES_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/base/dtype.h"

namespace shard {

// Converts a number from its sign, exponent and mantissa. `mantissa_bits` is 7
// for bf16 and 10 for f16.
inline double HalfToDouble(DType dtype, uint16_t bits) {
  const int mantissa_bits = dtype == DType::kBF16 ? 7 : 10;
  const int bias = dtype == DType::kBF16 ? 127 : 15;
  const int exponent = (bits & 0x7FFF) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  double value = 0;
  if (exponent == 2 * bias + 1) {
    value = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1 << mantissa_bits),
                       exponent - bias - mantissa_bits);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

// Rounds to nearest, ties to even. Bisection finds the neighbors of |x|,
// because magnitudes have the order of their bits. REQUIRES: x is not NaN.
inline uint16_t HalfFromFloat(DType dtype, float x) {
  const double magnitude = std::abs(static_cast<double>(x));
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const uint16_t infinity = dtype == DType::kBF16 ? 0x7F80 : 0x7C00;
  if (std::isinf(x)) return sign | infinity;
  uint16_t low = 0;
  uint16_t high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (HalfToDouble(dtype, middle) <= magnitude ? low : high) = middle;
  }
  // The number after the largest one stands for infinity.
  const double below = HalfToDouble(dtype, low);
  const double above =
      high == infinity
          ? below +
                (below - HalfToDouble(dtype, static_cast<uint16_t>(low - 1)))
          : HalfToDouble(dtype, high);
  const double up = above - magnitude;
  const double down = magnitude - below;
  const bool to_high = up < down || (up == down && high % 2 == 0);
  return sign | (to_high ? high : low);
}

}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_CPU_HALVES_H_
