// SPDX-License-Identifier: Apache-2.0
//
// The rest of the CBLAS that samples/gpt calls, beside blas.cc: a product in
// double, which only its check by finite differences takes, of matrices with a
// few hundred elements; and a call of OpenBLAS alone.

#include <cstddef>

namespace {

// The value of CBLAS's enumeration.
constexpr int kTranspose = 112;

double At(const double* matrix, int ld, int transpose, int i, int j) {
  return transpose == kTranspose ? matrix[std::ptrdiff_t{j} * ld + i]
                                 : matrix[std::ptrdiff_t{i} * ld + j];
}

}  // namespace

// REQUIRES: row-major matrices.
extern "C" void cblas_dgemm(int /*layout*/, int transpose_a, int transpose_b,
                            int m, int n, int k, double alpha, const double* a,
                            int lda, const double* b, int ldb, double beta,
                            double* c, int ldc) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int l = 0; l < k; ++l) {
        sum += At(a, lda, transpose_a, i, l) * At(b, ldb, transpose_b, l, j);
      }
      double* const to = c + std::ptrdiff_t{i} * ldc + j;
      *to = alpha * sum + (beta == 0 ? 0 : beta * *to);
    }
  }
}

// The threads of blas.cc are those of a single product: there are none to set.
extern "C" void openblas_set_num_threads(int /*count*/) {}
