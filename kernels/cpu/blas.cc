// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/blas.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <iterator>

#include "core/base/strings.h"

namespace shard {

namespace {

// The values of CBLAS's enumerations, the same in every implementation.
constexpr int kRowMajor = 101;
constexpr int kNoTranspose = 111;
constexpr int kTranspose = 112;
constexpr int kLower = 122;

constexpr char kVariable[] = "SHARD_BLAS_LIBRARY";

// The versioned names are those of the libraries, the others those of their
// development packages. The reference is last, because it is many times slower.
constexpr const char* kUsualNames[] = {
    "libopenblas.so.0",  "libopenblas.so", "libmkl_rt.so.2", "libmkl_rt.so",
    "libblis.so.4",      "libblis.so",     "libblis-mt.so",  "libarmpl_lp64.so",
    "libflexiblas.so.3", "libcblas.so.3",  "libcblas.so",    "libblas.so.3",
    "libblas.so",
};

int Flag(bool transpose) { return transpose ? kTranspose : kNoTranspose; }

// Returns true when the library reads integers as 64 bits. The length passed is
// 3 in its lower half and negative as a whole. A function of 32-bit integers
// reads the lower half of the register and finds the greatest of three, at 1;
// one of 64-bit integers finds nothing and returns 0. That holds for the
// calling conventions of x86-64 and AArch64.
bool ReadsLongIntegers(void* library) {
  void* const symbol = dlsym(library, "cblas_isamax");
  if (symbol == nullptr) return false;
  const auto isamax =
      reinterpret_cast<int (*)(int64_t, const float*, int64_t)>(symbol);
  constexpr float kValues[] = {1, 3, 2};
  constexpr int64_t kThreeOrNegative = INT64_MIN + 3;
  return isamax(kThreeOrNegative, kValues, 1) != 1;
}

template <typename Function>
Status Find(void* library, const char* name, Function** function) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) return NotFound("it has no ", name);
  *function = reinterpret_cast<Function*>(symbol);
  return Status();
}

}  // namespace

StatusOr<Blas> Blas::Load() {
  if (const char* chosen = std::getenv(kVariable);
      chosen != nullptr && *chosen != '\0') {
    return LoadOneOf({chosen});
  }
  return LoadOneOf({std::begin(kUsualNames), std::end(kUsualNames)});
}

StatusOr<Blas> Blas::LoadOneOf(const std::vector<std::string>& names) {
  std::string tried;
  for (const std::string& name : names) {
    StatusOr<Blas> blas = Open(name);
    if (blas.ok()) return blas;
    StrAppend(&tried, tried.empty() ? "" : "; ", name, ": ",
              blas.status().message());
  }
  return BackendUnavailable(
      "no usable CBLAS library: ", tried,
      "; install one (Debian: libopenblas0) or set ", kVariable,
      " to the file name or path of one with 32-bit integers (LP64)");
}

StatusOr<Blas> Blas::Open(const std::string& name) {
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return NotFound(reason != nullptr ? reason : "dlopen gives no reason");
  }
  // A library that cannot be used stays open, too: closing it would remove the
  // code of threads that it may have started.
  Blas blas;
  blas.name_ = name;
  SHARD_RETURN_IF_ERROR(Find(library, "cblas_sgemm", &blas.gemm_));
  SHARD_RETURN_IF_ERROR(Find(library, "cblas_ssyrk", &blas.syrk_));
  if (ReadsLongIntegers(library)) {
    return FailedPrecondition("it has 64-bit integers (ILP64)");
  }
  // A missing function is no error: has_batch() is false then.
  static_cast<void>(Find(library, "cblas_sgemm_batch", &blas.gemm_batch_));
  return blas;
}

void Blas::Gemm(const GemmArgs& args, const float* a, const float* b,
                float* c) const {
  gemm_(kRowMajor, Flag(args.transpose_a), Flag(args.transpose_b), args.m,
        args.n, args.k, args.alpha, a, args.lda, b, args.ldb, args.beta, c,
        args.ldc);
}

void Blas::Syrk(bool transpose, int n, int k, float alpha, const float* a,
                int lda, float beta, float* c, int ldc) const {
  syrk_(kRowMajor, kLower, Flag(transpose), n, k, alpha, a, lda, beta, c, ldc);
}

void Blas::GemmBatch(const GemmArgs& args, int count, const float** a,
                     const float** b, float** c) const {
  const int transpose_a = Flag(args.transpose_a);
  const int transpose_b = Flag(args.transpose_b);
  gemm_batch_(kRowMajor, &transpose_a, &transpose_b, &args.m, &args.n, &args.k,
              &args.alpha, a, &args.lda, b, &args.ldb, &args.beta, c, &args.ldc,
              /*groups=*/1, &count);
}

}  // namespace shard
