// SPDX-License-Identifier: Apache-2.0
//
// TileGroups: how the sums of squares of a range's parameters are laid out, for
// the CUDA kernels that update whole parameters.

#ifndef SHARD_CORE_DEVICE_CUDA_TILE_GROUPS_H_
#define SHARD_CORE_DEVICE_CUDA_TILE_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/update_elements.h"
#include "kernels/cuda/update_tensors.h"

namespace shard::cuda {

struct TileGroups {
  std::vector<uint32_t> first;  // SquareTable::first_groups.
  uint32_t num_groups = 0;
  uint32_t num_tiles = 0;

  // The number of SquareSums that the range needs at the same time.
  size_t num_sums() const { return size_t{num_tiles} + num_groups; }
};

// Returns the groups of the slices, which are whole parameters.
TileGroups GroupTiles(const std::vector<ElementSlice>& slices);

// Returns the table of a range, with the sums in `scratch`. `first_groups` is
// where the device has TileGroups::first.
SquareTable SquareTableOf(const TileGroups& groups,
                          const uint32_t* first_groups, SquareSums* scratch);

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_TILE_GROUPS_H_
