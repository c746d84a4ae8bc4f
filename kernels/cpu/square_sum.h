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

// A tile is summed to as many doubles as the widest vector has, in vectors of
// this tag.
inline constexpr size_t kTileLanes = 8;
using TileDoubles = hn::CappedTag<double, kTileLanes>;
using TileFloats = hn::Rebind<float, TileDoubles>;

// Returns the sum of the squares of the vectors at x, x + kStride and so on, up
// to kSquareTile.
template <size_t kStride>
HWY_INLINE hn::Vec<TileDoubles> SumStridedSquares(const float* x) {
  if constexpr (kStride == kSquareTile) {
    const auto wide = hn::PromoteTo(TileDoubles(), hn::LoadU(TileFloats(), x));
    return hn::Mul(wide, wide);
  } else {
    return hn::Add(SumStridedSquares<2 * kStride>(x),
                   SumStridedSquares<2 * kStride>(x + kStride));
  }
}

// Returns the sum of the squares of a whole tile.
HWY_INLINE double SumSquares(const float* tile) {
  double lanes[kTileLanes];
  for (size_t i = 0; i < kTileLanes; i += hn::Lanes(TileDoubles())) {
    hn::StoreU(SumStridedSquares<kTileLanes>(tile + i), TileDoubles(),
               lanes + i);
  }
  return SumOfLanes(lanes, kTileLanes);
}

// Returns that of a tile that has only its first `count` elements: the others
// count as zeros.
HWY_INLINE double SumSquares(const float* tile, size_t count) {
  if (count == kSquareTile) return SumSquares(tile);
  float whole[kSquareTile];
  std::fill(std::copy_n(tile, count, whole), whole + kSquareTile, 0.0f);
  return SumSquares(whole);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_SQUARE_SUM_H_
