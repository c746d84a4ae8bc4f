// SPDX-License-Identifier: Apache-2.0
//
// MatrixSlices: the parameters of a range as matrices, and how the sums of
// their rows and columns are laid out, for the CUDA kernels of Adafactor.

#ifndef SHARD_CORE_DEVICE_CUDA_MATRIX_SLICES_H_
#define SHARD_CORE_DEVICE_CUDA_MATRIX_SLICES_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/device/update_list.h"
#include "kernels/cuda/adafactor.h"

namespace shard::cuda {

struct MatrixSlices {
  std::vector<MatrixSlice> slices;
  uint64_t num_blocks = 0;
  uint64_t num_groups = 0;
  uint64_t num_sums = 0;
  uint64_t num_scales = 0;
};

// Returns the matrices of a range. Errors: kInvalidArgument for more blocks or
// groups than a kernel counts. REQUIRES: the range's formula is Adafactor.
StatusOr<MatrixSlices> MatrixSlicesOf(const UpdateList& list,
                                      const UpdateRange& range);

// Returns the table of the range. `slices` is where the device has
// MatrixSlices::slices, and sums and scales are scratch memory.
MatrixTable MatrixTableOf(const UpdateRange& range, const MatrixSlices& made,
                          const MatrixSlice* slices, double* sums,
                          float* scales);

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_MATRIX_SLICES_H_
