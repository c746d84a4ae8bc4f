// SPDX-License-Identifier: Apache-2.0
//
// SumSquares: the sum of squares of a tile of floats, in double, where the
// square of a float is exact and finite. The order of the sum is that of
// ordered_sum.h. Lane i has the elements from 4 i and those from 128 + 4 i on,
// four of each, as a lane of a GPU loads them:
//
//   s(j) = x(4 i + j)^2 + x(128 + 4 i + j)^2
//   lane i = (s(0) + s(1)) + (s(2) + s(3))
//
// Compiled once per SIMD target, like the .cc that includes it; the include
// guard admits it once per target.

#if defined(SHARD_KERNELS_CPU_SQUARE_SUM_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_SQUARE_SUM_H_
#undef SHARD_KERNELS_CPU_SQUARE_SUM_H_
#else
#define SHARD_KERNELS_CPU_SQUARE_SUM_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "kernels/cpu/ordered_sum.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kHalfTile = kSquareTile / 2;
static_assert(kHalfTile == 4 * kSumLanes, "a lane has four of each half");

// Returns x x + y y.
template <class D>
HWY_INLINE hn::Vec<D> SumTwoSquares(D wide,
                                    hn::Vec<hn::Rebind<float, D>> narrow_x,
                                    hn::Vec<hn::Rebind<float, D>> narrow_y) {
  const auto x = hn::PromoteTo(wide, narrow_x);
  const auto y = hn::PromoteTo(wide, narrow_y);
  return hn::MulAdd(y, y, hn::Mul(x, x));
}

// Returns the sum of the squares of a whole tile.
HWY_INLINE double SumSquares(const float* tile) {
  const hn::CappedTag<double, kSumLanes> wide;
  const hn::Rebind<float, decltype(wide)> narrow;
  double lanes[kSumLanes];
  for (size_t i = 0; i < kSumLanes; i += hn::Lanes(wide)) {
    hn::Vec<decltype(narrow)> x0, x1, x2, x3, y0, y1, y2, y3;
    hn::LoadInterleaved4(narrow, tile + 4 * i, x0, x1, x2, x3);
    hn::LoadInterleaved4(narrow, tile + kHalfTile + 4 * i, y0, y1, y2, y3);
    const auto low =
        hn::Add(SumTwoSquares(wide, x0, y0), SumTwoSquares(wide, x1, y1));
    const auto high =
        hn::Add(SumTwoSquares(wide, x2, y2), SumTwoSquares(wide, x3, y3));
    hn::StoreU(hn::Add(low, high), wide, lanes + i);
  }
  return SumOfLanes(lanes);
}

// Returns that of a tile that has only its first `count` elements.
HWY_INLINE double SumSquares(const float* tile, size_t count) {
  if (count == kSquareTile) return SumSquares(tile);
  double squares[kHalfTile];
  std::fill_n(squares, (std::min(count, kHalfTile) + 3) / 4 * 4, 0.0);
  for (size_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(tile[i]);
    squares[i % kHalfTile] += x * x;
  }
  double lanes[kSumLanes] = {};
  for (size_t i = 0; i < kSumLanes && 4 * i < count; ++i) {
    const double* const s = squares + 4 * i;
    lanes[i] = (s[0] + s[1]) + (s[2] + s[3]);
  }
  return SumOfLanes(lanes);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_SQUARE_SUM_H_
