// SPDX-License-Identifier: Apache-2.0
//
// Newton-Schulz: makes the rows or columns of matrices nearly orthonormal, as
// Muon does with its direction. Formula and coefficients: kernels/formula/
// muon.h.
//
// One step does the following, where small and large are the lesser and the
// greater of rows and cols, and x stands for x^T where rows > cols:
//   gram = x x^T                         small^2 large FLOPs   (ssyrk)
//   poly = a I + b gram + c gram gram    small^3 FLOPs         (ssyrk)
//   x = poly x                           2 small^2 large FLOPs (sgemm)
// The term a I in poly gives a x, so nothing is added to x; the identity has
// the smaller side. The transpose is a flag of the products and is never
// formed.
//
// Matrices whose smaller side is at most kBatchedSide are multiplied several at
// a time where the BLAS can do that, with three whole products: a call and the
// threads it wakes cost more than ssyrk saves. With two threads, products of 16
// matrices of 32 x 32 take 1 / 1.5 (OpenBLAS 0.3.34) to 1 / 5.5 (MKL 2024.2) of
// the time; with one thread they take the same time, and more from 64 x 64 on.
//
// A matrix's result depends on the matrix, the BLAS and the number of its
// threads, but not on count, the other matrices, or its address: MKL's products
// depend on addresses modulo 64, so all are computed in the aligned workspace.
//
// Allocates nothing. Thread-safe; workspaces must differ.

#ifndef SHARD_KERNELS_CPU_NEWTON_SCHULZ_H_
#define SHARD_KERNELS_CPU_NEWTON_SCHULZ_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/blas.h"

namespace shard {

inline constexpr int64_t kBatchedSide = 32;
// The greatest number of matrices multiplied at a time: larger ones gain
// nothing measurable.
inline constexpr int kBatchedAtOnce = 16;
// Alignment of the workspace, in bytes.
inline constexpr size_t kWorkspaceAlignment = 64;

// Matrices of one shape, each row-major without gaps. REQUIRES: sizes that fit
// a 32-bit integer (Muon::ShapeError), stride >= rows * cols.
struct MatrixBatch {
  float* first;
  int64_t count;
  int64_t rows;
  int64_t cols;
  // Elements from one matrix to the next.
  int64_t stride;
};

// Returns the elements of the workspace for a batch: 2 rows * cols + 2 small^2,
// each a multiple of 16, for one matrix, or for each of the up to 16 small ones
// that are multiplied at a time. The number does not depend on the BLAS, so
// that a plan can be made without one.
size_t OrthogonalizeWorkspace(int64_t count, int64_t rows, int64_t cols);

// Divides each matrix by the greater of its Frobenius norm and `eps`, and makes
// `steps` steps, in place. A matrix of zeros stays as it is; a matrix with an
// element that is not finite becomes NaN throughout.
//
// REQUIRES: steps >= 1; OrthogonalizeWorkspace elements of workspace, aligned
// to kWorkspaceAlignment.
void Orthogonalize(const Blas& blas, const MatrixBatch& batch, int steps,
                   double eps, float* workspace);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_NEWTON_SCHULZ_H_
