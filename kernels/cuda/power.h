// SPDX-License-Identifier: Apache-2.0
//
// Powers of doubles, for norms of type p: functions of the argument alone, with
// the same bits on every GPU and in the host's form. CUDA's pow needs a stack.

#ifndef SHARD_KERNELS_CUDA_POWER_H_
#define SHARD_KERNELS_CUDA_POWER_H_

#include <cstdint>

#include "kernels/cuda/device.h"

namespace shard::cuda {

inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;

// Returns the base 2 logarithm. The error is below 2^-51 max(1, |log2 x|).
// REQUIRES: x is normal, finite and positive.
SHARD_DEVICE double Log2(double x) {
  // x = 2^exponent m, sqrt(1/2) <= m < sqrt(2).
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCD;
  const auto exponent = static_cast<int64_t>(BitsOf(x) - kSqrtHalf) >> 52;
  const double m =
      DoubleOf(BitsOf(x) - (static_cast<uint64_t>(exponent) << 52));
  // log m = 2 artanh s = 2 (s + s^3/3 + ...), |s| < 0.1716: what comes after
  // the last term is below 2^-63.
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double sum = 0;
  SHARD_UNROLL
  for (int i = 11; i > 0; --i) {
    sum = MulAdd(sum, square, 1.0 / (2 * i + 1));
  }
  const double log = MulAdd(s * square, sum, s) * (2 / kLn2);
  return log + static_cast<double>(exponent);
}

// Returns 2 to the power of y, with a relative error below 2^-51; 0 where the
// power is below 2^-1000, and infinity from 2^1023.5 up.
SHARD_DEVICE double Exp2(double y) {
  if (y < -1000.0) return 0;
  if (y >= 1023.5) return DoubleOf(uint64_t{0x7FF} << 52);
  // The nearest integer, which the lower bits of the sum have.
  constexpr double kRound = 0x1.8p52;
  const double rounded = y + kRound;
  const auto integer = BitsOf(rounded) - BitsOf(kRound);
  // |x| < 0.3466: what comes after x^14 / 14! is below 2^-62.
  const double x = (y - (rounded - kRound)) * kLn2;
  double sum = 1;
  SHARD_UNROLL
  for (int i = 14; i > 0; --i) sum = MulAdd(sum, x * (1.0 / i), 1.0);
  return DoubleOf(BitsOf(sum) + (integer << 52));
}

// Returns x to the power of y. The relative error is below
// 2^-50 max(1, |y| max(1, |log2 x|)). REQUIRES: x is 0, or normal, finite and
// positive; y is finite and positive.
SHARD_DEVICE double Power(double x, double y) {
  return x == 0 ? 0.0 : Exp2(y * Log2(x));
}

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_POWER_H_
