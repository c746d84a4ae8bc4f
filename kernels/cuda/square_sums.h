// SPDX-License-Identifier: Apache-2.0
//
// The sums of squares of whole parameters, in the order of
// kernels/cpu/ordered_sum.h: a warp adds a tile, then one adds a group of
// tiles, and each warp that needs the sum adds the groups.

#ifndef SHARD_KERNELS_CUDA_SQUARE_SUMS_H_
#define SHARD_KERNELS_CUDA_SQUARE_SUMS_H_

#include <cstdint>

#include "kernels/cpu/ordered_sum.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/element_tiles.h"
#include "kernels/cuda/tile.h"
#include "kernels/cuda/update_tensors.h"

namespace shard::cuda {

static_assert(kTile == kSquareTile && kLanes == kSumLanes);

// Returns the sum of squares of a tile, as SumSquares of kernels/cpu.
// `elements(value)` is where a lane has its eight.
template <class T, class Elements>
SHARD_DEVICE double SumTileSquares(const Elements& elements, Warp<T>* warp) {
  return warp->SumFoursInOrder([&](int, const T& v, int k) {
    const auto x = static_cast<double>(elements(v)[k]);
    const auto y = static_cast<double>(elements(v)[4 + k]);
    return MulAdd(y, y, x * x);
  });
}

// Returns the sum of a warp's values, as LaneSum. kAtOnce are loaded before the
// first is added, which takes registers.
template <int kAtOnce>
SHARD_DEVICE SquareSums SumOf(const SquareSums* values, uint32_t count) {
  Warp<SquareSums> lanes;
  lanes.Each([&](int lane, SquareSums& sum) {
    sum = {};
#ifdef __CUDACC__
#pragma unroll kAtOnce
#endif
    for (auto i = static_cast<uint32_t>(lane); i < count; i += kLanes) {
      sum.param += values[i].param;
      sum.update += values[i].update;
    }
  });
  return {lanes.SumInOrder([](int, const SquareSums& s) { return s.param; }),
          lanes.SumInOrder([](int, const SquareSums& s) { return s.update; })};
}

SHARD_DEVICE uint32_t GroupsOf(uint32_t tiles) {
  constexpr uint32_t kGroup = kTileGroup;
  return (tiles + kGroup - 1) / kGroup;
}
SHARD_DEVICE uint32_t TilesOf(const ElementSlice& slice) {
  return static_cast<uint32_t>((slice.count + kTile - 1) / kTile);
}

SHARD_DEVICE void StoreSums(const SquareSums& sums, SquareSums* to) {
  ForEachLane([&](int lane) {
    if (lane == 0) *to = sums;
  });
}

// Adds the tiles of one group.
SHARD_DEVICE void SumGroup(const UpdateTensorsArgs& args, uint32_t group) {
  const SquareTable& squares = args.squares;
  const uint32_t s =
      LastNotAfter(group, args.range.num_slices,
                   [&](uint32_t i) { return squares.first_groups[i]; });
  const ElementSlice& slice = args.range.slices[s];
  constexpr uint32_t kGroup = kTileGroup;
  const uint32_t begin = (group - squares.first_groups[s]) * kGroup;
  const uint32_t left = TilesOf(slice) - begin;
  StoreSums(SumOf<16>(squares.tiles + slice.first_tile + begin,
                      left < kGroup ? left : kGroup),
            squares.groups + group);
}

// Returns the sums of a parameter, whose groups have been added. They are few,
// and kernels that need the sums have other uses for registers.
SHARD_DEVICE SquareSums SumsOfSlice(const UpdateTensorsArgs& args,
                                    uint32_t slice) {
  return SumOf<1>(args.squares.groups + args.squares.first_groups[slice],
                  GroupsOf(TilesOf(args.range.slices[slice])));
}

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_SQUARE_SUMS_H_
