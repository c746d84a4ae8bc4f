// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/tile_groups.h"

#include "kernels/cpu/ordered_sum.h"

namespace shard::cuda {

namespace {

uint32_t CountUp(uint64_t count, uint64_t unit) {
  return static_cast<uint32_t>((count + unit - 1) / unit);
}

}  // namespace

TileGroups GroupTiles(const std::vector<ElementSlice>& slices) {
  TileGroups groups;
  for (const ElementSlice& slice : slices) {
    const uint32_t tiles = CountUp(slice.count, kSquareTile);
    groups.first.push_back(groups.num_groups);
    groups.num_groups += CountUp(tiles, kTileGroup);
    groups.num_tiles += tiles;
  }
  return groups;
}

SquareTable SquareTableOf(const TileGroups& groups,
                          const uint32_t* first_groups, SquareSums* scratch) {
  return {first_groups, groups.num_groups, scratch, scratch + groups.num_tiles};
}

}  // namespace shard::cuda
