// SPDX-License-Identifier: Apache-2.0
//
// EqualMatrices: how the matrices that Muon steps together on a GPU lie in the
// workspace. A plan counts these bytes before there is a GPU.

#ifndef SHARD_KERNELS_CUDA_EQUAL_MATRICES_H_
#define SHARD_KERNELS_CUDA_EQUAL_MATRICES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/rounding.h"

namespace shard::cuda {

// The alignment of a matrix, in bytes: the one that cuBLAS may use.
inline constexpr size_t kMatrixAlignment = 256;

// The matrices of a batch: row-major, `stride` bytes apart; and the square ones
// of the smaller side, `small_stride` bytes apart. Matrices of bf16 have the
// places of f32, which they share with directions.
struct EqualMatrices {
  int64_t rows;
  int64_t cols;
  size_t count;

  constexpr size_t stride() const { return BytesOf(rows, cols); }
  constexpr size_t small_stride() const {
    const int64_t small = std::min(rows, cols);
    return BytesOf(small, small);
  }
  // Returns the bytes of all of them in the workspace: two of each.
  constexpr size_t workspace_bytes() const {
    return 2 * count * (stride() + small_stride());
  }

 private:
  static constexpr size_t BytesOf(int64_t rows, int64_t cols) {
    return RoundUp(static_cast<size_t>(rows * cols) * sizeof(float),
                   kMatrixAlignment);
  }
};

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_EQUAL_MATRICES_H_
