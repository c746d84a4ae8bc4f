// SPDX-License-Identifier: Apache-2.0
//
// The argument of the kernels that update a range with an optimizer of whole
// parameters. The launches of an update do for the range what
// core/device/cpu/update_tensors.cc does for it, with the same bits but for
// those of a NaN. Their number does not depend on the number of parameters.
//
// LAMB, with bytes per element of f32 tensors and one source (Adafactor is in
// adafactor.h):
//   shard_lamb_moments  updates the moments; squares of p and u         24
//   shard_sum_squares   adds the squares of groups of tiles              0
//   shard_lamb_apply    updates the parameter; the sums are its first   16
//
// Useful warps: one for each tile of the range; of shard_sum_squares, one for
// each group.

#ifndef SHARD_KERNELS_CUDA_UPDATE_TENSORS_H_
#define SHARD_KERNELS_CUDA_UPDATE_TENSORS_H_

#include <cstdint>
#include <type_traits>

#include "core/device/step_block.h"
#include "kernels/cuda/update_elements.h"

namespace shard::cuda {

// Sums of squares of a parameter p and its update u.
struct alignas(16) SquareSums {
  double param;
  double update;
};

// Where the sums of a range's parameters are added: a TileSum each
// (kernels/cpu/ordered_sum.h), whose tiles are those of the range's slices.
struct SquareTable {
  // By slice: the number of groups of tiles in the slices before.
  const uint32_t* first_groups;
  uint32_t num_groups;  // Of all slices.
  // Scratch memory, written before it is read.
  SquareSums* tiles;
  SquareSums* groups;
};

// The slices of `range` are whole parameters, and by_param is true.
struct UpdateTensorsArgs {
  ElementRange range;
  SquareTable squares;
  const StepBlock* block;
};
static_assert(std::is_trivially_copyable_v<UpdateTensorsArgs>);

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_UPDATE_TENSORS_H_
