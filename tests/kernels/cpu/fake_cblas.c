/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake CBLAS: plain loops in double that count their calls. It is built
 * several times, with or without functions that real libraries have or lack:
 *   FAKE_BATCH     has cblas_sgemm_batch
 *   FAKE_NO_SGEMM  has no cblas_sgemm
 *   FAKE_NO_SSYRK  has no cblas_ssyrk
 *   FAKE_ILP64     takes 64-bit integers
 * Wrong arguments have NaN as their result. As in the reference BLAS, an
 * element of B that is 0 is passed over: its factor may be NaN. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef FAKE_ILP64
typedef int64_t blas_int;
#else
typedef int32_t blas_int;
#endif

#define EXPORT __attribute__((visibility("default")))

enum { kRowMajor = 101, kNoTranspose = 111, kTranspose = 112, kLower = 122 };

/* The number of calls so far, and of the matrices in all batches. Ranks that
 * are threads count together. */
EXPORT _Atomic int fake_sgemm_calls = 0;
EXPORT _Atomic int fake_ssyrk_calls = 0;
EXPORT _Atomic int fake_batch_calls = 0;
EXPORT _Atomic int fake_batch_matrices = 0;
/* The number of multiplications and additions of all calls. */
EXPORT _Atomic int64_t fake_flops = 0;
/* The number of arguments that are not aligned to 64 bytes, on which real
 * results may depend. */
EXPORT _Atomic int fake_unaligned = 0;

static void look_at(const float* matrix) {
  if ((uintptr_t)matrix % 64 != 0) ++fake_unaligned;
}

static double at(int transpose, const float* a, blas_int lda, blas_int row,
                 blas_int col) {
  if (transpose != kNoTranspose && transpose != kTranspose) return NAN;
  return transpose == kTranspose ? (double)a[(ptrdiff_t)col * lda + row]
                                 : (double)a[(ptrdiff_t)row * lda + col];
}

static void set(float* c, double beta, double product) {
  /* As in every BLAS, C is not read where beta is 0: it may be NaN. */
  *c = (float)(beta == 0 ? product : beta * (double)*c + product);
}

#ifndef FAKE_NO_SGEMM
static void multiply(int layout, int transa, int transb, blas_int m, blas_int n,
                     blas_int k, float alpha, const float* a, blas_int lda,
                     const float* b, blas_int ldb, float beta, float* c,
                     blas_int ldc) {
  look_at(a), look_at(b), look_at(c);
  fake_flops += 2 * (int64_t)m * n * k;
  const int wrong = layout != kRowMajor ||
                    lda < (transa == kTranspose ? m : k) ||
                    ldb < (transb == kTranspose ? k : n) || ldc < n;
  for (blas_int i = 0; i < m; ++i) {
    for (blas_int j = 0; j < n; ++j) {
      double sum = wrong ? NAN : 0;
      for (blas_int l = 0; l < k && !wrong; ++l) {
        const double right = at(transb, b, ldb, l, j);
        if (right != 0) sum += at(transa, a, lda, i, l) * right;
      }
      set(&c[(ptrdiff_t)i * ldc + j], (double)beta, (double)alpha * sum);
    }
  }
}

EXPORT void cblas_sgemm(int layout, int transa, int transb, blas_int m,
                        blas_int n, blas_int k, float alpha, const float* a,
                        blas_int lda, const float* b, blas_int ldb, float beta,
                        float* c, blas_int ldc) {
  ++fake_sgemm_calls;
  multiply(layout, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c,
           ldc);
}
#endif

#ifndef FAKE_NO_SSYRK
EXPORT void cblas_ssyrk(int layout, int triangle, int trans, blas_int n,
                        blas_int k, float alpha, const float* a, blas_int lda,
                        float beta, float* c, blas_int ldc) {
  ++fake_ssyrk_calls;
  look_at(a), look_at(c);
  fake_flops += ((int64_t)n + 1) * n * k;
  const int wrong = layout != kRowMajor || triangle != kLower || ldc < n ||
                    lda < (trans == kTranspose ? n : k);
  for (blas_int i = 0; i < n; ++i) {
    for (blas_int j = 0; j <= i; ++j) {
      double sum = wrong ? NAN : 0;
      for (blas_int l = 0; l < k && !wrong; ++l) {
        const double right = at(trans, a, lda, j, l);
        if (right != 0) sum += at(trans, a, lda, i, l) * right;
      }
      set(&c[(ptrdiff_t)i * ldc + j], (double)beta, (double)alpha * sum);
    }
  }
}
#endif

#ifdef FAKE_BATCH
EXPORT void cblas_sgemm_batch(int layout, const int* transa, const int* transb,
                              const blas_int* m, const blas_int* n,
                              const blas_int* k, const float* alpha,
                              const float** a, const blas_int* lda,
                              const float** b, const blas_int* ldb,
                              const float* beta, float** c, const blas_int* ldc,
                              blas_int group_count,
                              const blas_int* group_size) {
  ++fake_batch_calls;
  for (blas_int group = 0; group < group_count; ++group) {
    for (blas_int i = 0; i < group_size[group]; ++i) {
      ++fake_batch_matrices;
      multiply(layout, transa[group], transb[group], m[group], n[group],
               k[group], alpha[group], *a++, lda[group], *b++, ldb[group],
               beta[group], *c++, ldc[group]);
    }
  }
}
#endif

/* Returns the index of the largest |x|, from 0; 0 where there is none. */
EXPORT size_t cblas_isamax(blas_int n, const float* x, blas_int incx) {
  size_t best = 0;
  for (blas_int i = 1; i < n; ++i) {
    if (fabsf(x[i * incx]) > fabsf(x[(blas_int)best * incx])) best = (size_t)i;
  }
  return best;
}
