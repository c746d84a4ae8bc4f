// SPDX-License-Identifier: Apache-2.0
//
// A fake of cuBLAS over the fake of the driver, with the one product that
// samples/gpt uses: cublasSgemmStridedBatched, as one kernel of the handle's
// stream. libshard itself uses cuBLASLt, whose fake is cublas.cc.
//
// As cuBLAS, it takes a workspace of any size, and finds at a product that its
// algorithms need more.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/device/cuda/driver_api.h"
#include "tests/fake_cuda/fake_cuda.h"

#define SHARD_FAKE_CUBLAS_API extern "C" __attribute__((visibility("default")))

namespace shard::testing::fake_cuda {

namespace {

using cuda::CuResult;
using cuda::CuStream;

// cublasStatus_t
enum : int {
  kBlasSuccess = 0,
  kBlasNotInitialized = 1,
  kBlasAllocFailed = 3,
  kBlasInvalidValue = 7,
  kBlasExecutionFailed = 13,
  kBlasNotSupported = 15,
};

constexpr int kMajorVersion = 0;  // libraryPropertyType

constexpr int kBlasTranspose = 1;  // cublasOperation_t

int ResultOf(CuResult result) {
  switch (result) {
    case CuResult::kSuccess:
      return kBlasSuccess;
    case CuResult::kNotInitialized:
    case CuResult::kInvalidContext:
      return kBlasNotInitialized;
    case CuResult::kOutOfMemory:
      return kBlasAllocFailed;
    case CuResult::kInvalidValue:
      return kBlasInvalidValue;
    case CuResult::kNotSupported:
      return kBlasNotSupported;
    default:
      return kBlasExecutionFailed;
  }
}

constexpr size_t kWorkspaceAlignment = 256;

struct Handle {
  CuStream stream = nullptr;
  // The host's, which products overwrite; null: cuBLAS's own.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// A batch of matrices, column-major.
struct Matrices {
  const float* data;
  int rows;
  int cols;
  int ld;
  int64_t stride;  // Elements.

  bool Fits() const {
    return data != nullptr && ld >= rows &&
           reinterpret_cast<uintptr_t>(data) % alignof(float) == 0;
  }
  // Returns the bytes from the first element to behind the last.
  size_t Bytes(int count) const {
    return static_cast<size_t>((count - 1) * stride + int64_t{cols - 1} * ld +
                               rows) *
           sizeof(float);
  }
  size_t At(int matrix, int row, int col) const {
    return static_cast<size_t>(matrix * stride + int64_t{col} * ld + row);
  }
};

struct Product {
  bool transpose_a;
  bool transpose_b;
  int inner;
  float alpha;
  float beta;
  Matrices a;
  Matrices b;
  Matrices c;
  int count;

  void Run() const {
    auto* const out = const_cast<float*>(c.data);
    // Elements from one that is multiplied to the next.
    const ptrdiff_t a_step = transpose_a ? 1 : a.ld;
    const ptrdiff_t b_step = transpose_b ? b.ld : 1;
    for (int m = 0; m < count; ++m) {
      for (int j = 0; j < c.cols; ++j) {
        for (int i = 0; i < c.rows; ++i) {
          const float* x =
              a.data + (transpose_a ? a.At(m, 0, i) : a.At(m, i, 0));
          const float* y =
              b.data + (transpose_b ? b.At(m, j, 0) : b.At(m, 0, j));
          float sum = 0;
          for (int k = 0; k < inner; ++k, x += a_step, y += b_step) {
            sum += *x * *y;
          }
          float value = alpha * sum;
          // A matrix that is multiplied by 0 is not read.
          if (beta != 0) value += beta * out[c.At(m, i, j)];
          out[c.At(m, i, j)] = value;
        }
      }
    }
  }
};

bool Overlap(const Matrices& x, const Matrices& y, int count) {
  const auto a = reinterpret_cast<uintptr_t>(x.data);
  const auto b = reinterpret_cast<uintptr_t>(y.data);
  return a < b + y.Bytes(count) && b < a + x.Bytes(count);
}

}  // namespace

SHARD_FAKE_CUBLAS_API int cublasGetProperty(int property, int* value) {
  *value = property == kMajorVersion ? SHARD_FAKE_MAJOR : 8;
  return kBlasSuccess;
}

SHARD_FAKE_CUBLAS_API const char* cublasGetStatusName(int status) {
  switch (status) {
    case kBlasNotInitialized:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case kBlasAllocFailed:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case kBlasInvalidValue:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case kBlasNotSupported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}

SHARD_FAKE_CUBLAS_API int cublasCreate_v2(void** handle) {
  const CuResult entered = EnterLibrary("cublasCreate");
  if (entered != CuResult::kSuccess) return ResultOf(entered);
  *handle = new Handle();
  CountLibraryObject(1);
  return kBlasSuccess;
}

SHARD_FAKE_CUBLAS_API int cublasDestroy_v2(void* handle) {
  if (handle == nullptr) return kBlasNotInitialized;
  delete static_cast<Handle*>(handle);
  CountLibraryObject(-1);
  return kBlasSuccess;
}

SHARD_FAKE_CUBLAS_API int cublasSetStream_v2(void* handle, CuStream stream) {
  if (handle == nullptr) return kBlasNotInitialized;
  // With cuBLAS's own workspace, as in cuBLAS.
  *static_cast<Handle*>(handle) = {.stream = stream};
  return kBlasSuccess;
}

SHARD_FAKE_CUBLAS_API int cublasSetWorkspace_v2(void* handle, void* workspace,
                                                size_t bytes) {
  const CuResult entered = EnterLibrary("cublasSetWorkspace");
  if (entered != CuResult::kSuccess) return ResultOf(entered);
  if (handle == nullptr) return kBlasNotInitialized;
  if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0) {
    return kBlasInvalidValue;
  }
  auto* const made = static_cast<Handle*>(handle);
  made->workspace = workspace;
  made->workspace_bytes = bytes;
  return kBlasSuccess;
}

SHARD_FAKE_CUBLAS_API int cublasSgemmStridedBatched(
    void* handle, int transpose_a, int transpose_b, int rows, int cols,
    int inner, const float* alpha, const float* a, int a_ld, long long a_stride,
    const float* b, int b_ld, long long b_stride, const float* beta, float* c,
    int c_ld, long long c_stride, int count) {
  const CuResult entered = EnterLibrary("cublasSgemmStridedBatched");
  if (entered != CuResult::kSuccess) return ResultOf(entered);
  const bool ta = transpose_a == kBlasTranspose;
  const bool tb = transpose_b == kBlasTranspose;
  const Product product = {
      ta,
      tb,
      inner,
      *alpha,
      *beta,
      {a, ta ? inner : rows, ta ? rows : inner, a_ld, a_stride},
      {b, tb ? cols : inner, tb ? inner : cols, b_ld, b_stride},
      {c, rows, cols, c_ld, c_stride},
      count};
  if (rows < 1 || cols < 1 || inner < 1 || count < 1 || !product.a.Fits() ||
      !product.b.Fits() || !product.c.Fits() ||
      Overlap(product.a, product.c, count) ||
      Overlap(product.b, product.c, count)) {
    return kBlasInvalidValue;
  }
  const auto& blas = *static_cast<const Handle*>(handle);
  // cuBLAS makes the allocation of a workspace a part of the graph, which then
  // has other bits than a plain product, and memory of its own.
  if (blas.workspace == nullptr && IsCaptured(blas.stream)) {
    return kBlasAllocFailed;
  }
  const size_t most = blas.workspace == nullptr
                          ? std::numeric_limits<size_t>::max()
                          : blas.workspace_bytes;
  size_t needed = 0;
  if (!FindProductAlgorithm(most, &needed)) return kBlasAllocFailed;
  std::vector<Access> accesses = {{a, product.a.Bytes(count), false},
                                  {b, product.b.Bytes(count), false},
                                  {c, product.c.Bytes(count), true}};
  if (blas.workspace != nullptr) {
    accesses.push_back({blas.workspace, blas.workspace_bytes, true});
  }
  return ResultOf(LaunchInLibrary(blas.stream, "cublasSgemmStridedBatched",
                                  accesses, [product] { product.Run(); }));
}

}  // namespace shard::testing::fake_cuda
