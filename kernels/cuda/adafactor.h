// SPDX-License-Identifier: Apache-2.0
//
// The argument of the kernels that update a range with Adafactor, which keeps
// means of rows and columns. Bytes per element of f32 tensors and one source,
// where parameters have two dimensions and more:
//   shard_adafactor_sums     adds the squares of blocks of matrices        4
//   shard_adafactor_states   row_var and col_var; scales of columns        0
//   shard_adafactor_scales   scales of rows                                0
//   shard_adafactor_squares  squares of p and u                            8
//   shard_sum_squares        adds the squares of groups of tiles           0
//   shard_adafactor_apply    updates the parameter                        12
// and where they have fewer:
//   shard_adafactor_squares  variance; squares of p and u                 16
//   shard_adafactor_apply    updates the parameter                        16
//
// Useful warps: one for each block, line group, line group, tile, group of
// tiles, and tile.

#ifndef SHARD_KERNELS_CUDA_ADAFACTOR_H_
#define SHARD_KERNELS_CUDA_ADAFACTOR_H_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/tile.h"
#include "kernels/cuda/update_tensors.h"
#include "kernels/formula/adafactor.h"

namespace shard::cuda {

// The rows and columns that one warp sums.
inline constexpr uint64_t kBlockRows = Adafactor::kRowBlock;
inline constexpr uint64_t kBlockCols = kTile;
// The rows, or columns, whose means one warp makes: rows have few sums, and
// columns have many.
inline constexpr uint64_t kGroupRows = Adafactor::kRowGroup;
inline constexpr uint64_t kGroupCols = kLanes;

SHARD_DEVICE constexpr uint64_t PartsOf(uint64_t count, uint64_t size) {
  return (count + size - 1) / size;
}

// A parameter of a range as its matrices, row-major, one after the other. One
// of fewer than two dimensions has none, and rows and cols of 0.
struct MatrixSlice {
  uint64_t batches;
  uint64_t rows;
  uint64_t cols;
  uint64_t state_begins[Adafactor::kNumStates];  // In MatrixTable::states.
  uint64_t first_sum;                            // In MatrixTable::sums.
  uint64_t first_scale;                          // In MatrixTable::scales.
  // The numbers of blocks, and of groups of lines, in the slices before.
  uint32_t first_block;
  uint32_t first_group;

  SHARD_DEVICE constexpr uint64_t row_blocks() const {
    return PartsOf(rows, kBlockRows);
  }
  SHARD_DEVICE constexpr uint64_t col_blocks() const {
    return PartsOf(cols, kBlockCols);
  }
  SHARD_DEVICE constexpr uint64_t row_groups() const {
    return PartsOf(rows, kGroupRows);
  }
  SHARD_DEVICE constexpr uint64_t col_groups() const {
    return PartsOf(cols, kGroupCols);
  }

  // The numbers for one matrix; a slice has those of all matrices in order.
  SHARD_DEVICE constexpr uint64_t blocks() const {
    return row_blocks() * col_blocks();
  }
  SHARD_DEVICE constexpr uint64_t groups() const {
    return row_groups() + col_groups();
  }
  // The sums of rows in a column of blocks: [col_blocks][rows].
  SHARD_DEVICE constexpr uint64_t row_sums() const {
    return col_blocks() * rows;
  }
  // The sums of columns in a row of blocks: [row_blocks][cols].
  SHARD_DEVICE constexpr uint64_t col_sums() const {
    return row_blocks() * cols;
  }
  // Row sums, column sums, and the sums of row_var: [row_groups].
  SHARD_DEVICE constexpr uint64_t sums() const {
    return row_sums() + col_sums() + row_groups();
  }
};

struct MatrixTable {
  const MatrixSlice* slices;  // By slice of the range.
  uint32_t num_blocks;        // Of all slices.
  uint32_t num_groups;
  float* states[Adafactor::kNumStates];  // From the range's begin.
  // Scratch memory, written before it is read. The scales of a slice are those
  // of all rows of all its matrices, then those of all columns.
  double* sums;
  float* scales;
};

// `tensors.range` has no states.
struct AdafactorArgs {
  UpdateTensorsArgs tensors;
  MatrixTable matrices;
};
static_assert(std::is_trivially_copyable_v<AdafactorArgs>);

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_ADAFACTOR_H_
