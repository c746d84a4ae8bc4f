// SPDX-License-Identifier: Apache-2.0
//
// Blas: any CBLAS of this machine, found when it is first needed. libshard.so
// does not link one: it works where there is none, and shares the one that the
// host has loaded.
//
// Invariants: all required functions exist, and take 32-bit integers (LP64).
// Loading changes no setting of the library, in particular not its number of
// threads: that is the host's choice (OPENBLAS_NUM_THREADS, MKL_NUM_THREADS).
// The library is never unloaded, since it may have started threads.
//
// Matrices are fp32 and row-major; ld is the distance of two rows, in elements.
//
// Immutable and cheap to copy. Thread-safe as far as the library is, which all
// those named at Load are.

#ifndef SHARD_KERNELS_CPU_BLAS_H_
#define SHARD_KERNELS_CPU_BLAS_H_

#include <string>
#include <vector>

#include "core/base/status.h"

namespace shard {

// The arguments of C = alpha op(A) op(B) + beta C without the matrices: op(A)
// is m x k, op(B) k x n, C m x n.
struct GemmArgs {
  bool transpose_a = false;
  bool transpose_b = false;
  int m = 0;
  int n = 0;
  int k = 0;
  float alpha = 1;
  int lda = 0;
  int ldb = 0;
  float beta = 0;
  int ldc = 0;
};

class Blas {
 public:
  // Loads the library that the environment variable SHARD_BLAS_LIBRARY names,
  // as a file name or a path. Where the variable is unset or empty, loads the
  // first usable one of the usual libraries: OpenBLAS, MKL, BLIS, FlexiBLAS,
  // the reference.
  static StatusOr<Blas> Load();

  // Loads the first usable one of `names`. The message of kBackendUnavailable
  // gives the reason for each of them, and the remedy.
  static StatusOr<Blas> LoadOneOf(const std::vector<std::string>& names);

  // Returns the name under which the library was found: "libopenblas.so.0".
  const std::string& name() const { return name_; }

  void Gemm(const GemmArgs& args, const float* a, const float* b,
            float* c) const;

  // Computes the lower triangle of C = alpha A A^T + beta C, or A^T A with
  // `transpose`; C is n x n, k the other size of A. Elements above the diagonal
  // are neither read nor written.
  void Syrk(bool transpose, int n, int k, float alpha, const float* a, int lda,
            float beta, float* c, int ldc) const;

  // Makes `count` products as Gemm in one call, which can use threads where one
  // small product cannot. MKL has it, OpenBLAS since 0.3.29. REQUIRES:
  // has_batch().
  bool has_batch() const { return gemm_batch_ != nullptr; }
  void GemmBatch(const GemmArgs& args, int count, const float** a,
                 const float** b, float** c) const;

 private:
  // CBLAS declares these parameters as enumerations, which callers pass as
  // ints.
  using GemmFunction = void(int layout, int transpose_a, int transpose_b, int m,
                            int n, int k, float alpha, const float* a, int lda,
                            const float* b, int ldb, float beta, float* c,
                            int ldc);
  using SyrkFunction = void(int layout, int triangle, int transpose, int n,
                            int k, float alpha, const float* a, int lda,
                            float beta, float* c, int ldc);
  using GemmBatchFunction = void(int layout, const int* transpose_a,
                                 const int* transpose_b, const int* m,
                                 const int* n, const int* k, const float* alpha,
                                 const float** a, const int* lda,
                                 const float** b, const int* ldb,
                                 const float* beta, float** c, const int* ldc,
                                 int groups, const int* group_sizes);

  Blas() = default;
  static StatusOr<Blas> Open(const std::string& name);

  std::string name_;
  GemmFunction* gemm_ = nullptr;
  SyrkFunction* syrk_ = nullptr;
  GemmBatchFunction* gemm_batch_ = nullptr;
};

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_BLAS_H_
