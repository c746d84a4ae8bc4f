// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/matrix_slices.h"

#include <algorithm>
#include <limits>
#include <span>

namespace shard::cuda {

StatusOr<MatrixSlices> MatrixSlicesOf(const UpdateList& list,
                                      const UpdateRange& range) {
  MatrixSlices made;
  for (size_t i = 0; i < range.num_slices; ++i) {
    const TensorSlice& tensor = list.tensors[range.first_tensor + i];
    MatrixSlice slice = {};
    if (tensor.ndim >= 2) {
      const std::span<const int64_t> shape = list.ShapeOf(tensor);
      const Adafactor::Matrices all =
          Adafactor::MatricesOf(shape.data(), tensor.ndim);
      slice.batches = static_cast<uint64_t>(all.batches);
      slice.rows = static_cast<uint64_t>(all.rows);
      slice.cols = static_cast<uint64_t>(all.cols);
    }
    std::copy_n(tensor.state_begins.begin(), Adafactor::kNumStates,
                slice.state_begins);
    slice.first_sum = made.num_sums;
    slice.first_scale = made.num_scales;
    // A range with more blocks, or groups, is refused below.
    slice.first_block = static_cast<uint32_t>(made.num_blocks);
    slice.first_group = static_cast<uint32_t>(made.num_groups);
    made.slices.push_back(slice);
    made.num_sums += slice.batches * slice.sums();
    made.num_scales += slice.batches * (slice.rows + slice.cols);
    made.num_blocks += slice.batches * slice.blocks();
    made.num_groups += slice.batches * slice.groups();
  }
  const uint64_t most = std::max(made.num_blocks, made.num_groups);
  if (most > std::numeric_limits<uint32_t>::max()) {
    return InvalidArgument("a rank's part of a flat buffer has ", most,
                           " blocks of rows or columns, more than a kernel of "
                           "adafactor counts; plan more units or ranks");
  }
  return made;
}

MatrixTable MatrixTableOf(const UpdateRange& range, const MatrixSlices& made,
                          const MatrixSlice* slices, double* sums,
                          float* scales) {
  MatrixTable table = {};
  table.slices = slices;
  table.num_blocks = static_cast<uint32_t>(made.num_blocks);
  table.num_groups = static_cast<uint32_t>(made.num_groups);
  for (size_t s = 0; s < Adafactor::kNumStates; ++s) {
    table.states[s] = static_cast<float*>(range.states[s]);
  }
  table.sums = sums;
  table.scales = scales;
  return table;
}

}  // namespace shard::cuda
