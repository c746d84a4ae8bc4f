// SPDX-License-Identifier: Apache-2.0
//
// SumSquares: the sum of squares of a tile of floats, in double, where the
// square of a float is exact and finite. The squares of the tile's upper half
// are added to those of its lower half, element by element, until one is left:
//
//   s(j) = x(j)^2 + x(j + 128)^2      j < 128
//   s(j) = s(j) + s(j + 64)           j < 64, and so on
//
// Vectors of any size add so without a shuffle, and so do the lanes of a GPU,
// which load four elements each.
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

// The vectors that a tile is read in: of a size that is known when this is
// compiled.
inline constexpr size_t kTileLanes = HWY_HAVE_SCALABLE ? 1 : 8;
using TileDoubles = hn::CappedTag<double, kTileLanes>;
using TileFloats = hn::Rebind<float, TileDoubles>;
inline constexpr size_t kTileVector = hn::MaxLanes(TileDoubles());

// Returns the sum of the lanes of v, in the order of SumOfLanes.
template <class D>
HWY_INLINE double SumOfVector([[maybe_unused]] D d, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR  // Which has no half vectors.
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return SumOfVector(half,
                       hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
#endif
  return hn::GetLane(v);
}

// Adds the upper half of `count` sums to the lower until one is left, and
// returns it: for the target whose vectors have one lane. `count` is a power
// of 2.
HWY_INLINE double SumOfHalves(double* sums, size_t count) {
  for (size_t half = count / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

// Returns the sum of the squares of the vectors at x, x + kStride and so on, up
// to kSquareTile.
template <size_t kStride>
HWY_INLINE hn::Vec<TileDoubles> SumStridedSquares(const float* x) {
  if constexpr (2 * kStride == kSquareTile) {
    const TileDoubles wide;
    const auto low = hn::PromoteTo(wide, hn::LoadU(TileFloats(), x));
    const auto high = hn::PromoteTo(wide, hn::LoadU(TileFloats(), x + kStride));
    return hn::MulAdd(high, high, hn::Mul(low, low));
  } else {
    return hn::Add(SumStridedSquares<2 * kStride>(x),
                   SumStridedSquares<2 * kStride>(x + kStride));
  }
}

// Returns the sum of the squares of a tile's first `count` elements, as that of
// a tile with zeros behind them.
HWY_INLINE double SumSquares(const float* tile, size_t count) {
  // The sum, in which no loop is left, is there once for both.
  float whole[kSquareTile];
  if (count != kSquareTile) {
    std::fill(std::copy_n(tile, count, whole), whole + kSquareTile, 0.0f);
    tile = whole;
  }
#if HWY_TARGET == HWY_SCALAR
  // In loops: an operation for each element takes long to compile.
  double sums[kSquareTile / 2];
  for (size_t j = 0; j < kSquareTile / 2; ++j) {
    const double low = tile[j];
    const double high = tile[j + kSquareTile / 2];
    sums[j] = low * low + high * high;
  }
  return SumOfHalves(sums, kSquareTile / 2);
#else
  return SumOfVector(TileDoubles(), SumStridedSquares<kTileVector>(tile));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_SQUARE_SUM_H_
