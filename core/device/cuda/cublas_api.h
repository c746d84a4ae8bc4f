// SPDX-License-Identifier: Apache-2.0
//
// The part of cuBLASLt that libshard uses, declared here so that it is built
// where no CUDA toolkit is. Types, values and names of symbols are those of
// cublasLt.h, the same in the majors 12 and 13 (cublas_api_test compares them
// where there is a toolkit); the library is loaded at run time (cublas.h).

#ifndef SHARD_CORE_DEVICE_CUDA_CUBLAS_API_H_
#define SHARD_CORE_DEVICE_CUDA_CUBLAS_API_H_

#include <cstddef>
#include <cstdint>

#include "core/device/cuda/driver_api.h"

namespace shard::cuda {

enum class CublasResult : int {
  kSuccess = 0,
  kNotInitialized = 1,
  kAllocFailed = 3,
  kInvalidValue = 7,
  kArchMismatch = 8,
  kExecutionFailed = 13,
  kInternalError = 14,
  kNotSupported = 15,
};

enum class CublasProperty : int { kMajor = 0, kMinor = 1 };
enum class CublasType : int { kF32 = 0, kBF16 = 14 };
enum class CublasCompute : int { kF32 = 68, kTF32 = 77 };
enum class CublasOperation : int32_t { kNone = 0, kTranspose = 1 };
enum class CublasMatmulAttribute : int { kTransposeA = 3, kTransposeB = 4 };
enum class CublasLayoutAttribute : int { kBatchCount = 5, kBatchStride = 6 };
enum class CublasPreferenceAttribute : int {
  kMaxWorkspaceBytes = 1,
  kReductionSchemes = 3,
};
// Bits of kReductionSchemes: parts of a sum are added in the compute type.
inline constexpr uint32_t kCublasReduceInComputeType = 2;
// The alignment of matrices that algorithms are chosen for, unless told
// otherwise; in bytes.
inline constexpr size_t kCublasAlignment = 256;

using CublasHandle = struct cublasLtContext*;
using CublasMatmulDesc = struct CublasMatmulDescOpaque*;
using CublasLayout = struct CublasLayoutOpaque*;
using CublasPreference = struct CublasPreferenceOpaque*;

struct CublasAlgorithm {
  uint64_t data[8];
};

struct CublasHeuristic {
  CublasAlgorithm algorithm;
  size_t workspace_bytes;
  CublasResult state;
  float waves;
  int reserved[4];
};

// Each X(name, symbol, parameters); all return a CublasResult.
#define SHARD_CUBLAS(X)                                                       \
  X(Create, cublasLtCreate, (CublasHandle * handle))                          \
  X(Destroy, cublasLtDestroy, (CublasHandle handle))                          \
  X(GetProperty, cublasLtGetProperty, (CublasProperty property, int* value))  \
  X(MatmulDescCreate, cublasLtMatmulDescCreate,                               \
    (CublasMatmulDesc * desc, CublasCompute compute, CublasType scale))       \
  X(MatmulDescDestroy, cublasLtMatmulDescDestroy, (CublasMatmulDesc desc))    \
  X(MatmulDescSetAttribute, cublasLtMatmulDescSetAttribute,                   \
    (CublasMatmulDesc desc, CublasMatmulAttribute attribute,                  \
     const void* value, size_t bytes))                                        \
  X(MatrixLayoutCreate, cublasLtMatrixLayoutCreate,                           \
    (CublasLayout * layout, CublasType type, uint64_t rows, uint64_t cols,    \
     int64_t ld))                                                             \
  X(MatrixLayoutDestroy, cublasLtMatrixLayoutDestroy, (CublasLayout layout))  \
  X(MatrixLayoutSetAttribute, cublasLtMatrixLayoutSetAttribute,               \
    (CublasLayout layout, CublasLayoutAttribute attribute, const void* value, \
     size_t bytes))                                                           \
  X(MatmulPreferenceCreate, cublasLtMatmulPreferenceCreate,                   \
    (CublasPreference * preference))                                          \
  X(MatmulPreferenceDestroy, cublasLtMatmulPreferenceDestroy,                 \
    (CublasPreference preference))                                            \
  X(MatmulPreferenceSetAttribute, cublasLtMatmulPreferenceSetAttribute,       \
    (CublasPreference preference, CublasPreferenceAttribute attribute,        \
     const void* value, size_t bytes))                                        \
  X(MatmulAlgoGetHeuristic, cublasLtMatmulAlgoGetHeuristic,                   \
    (CublasHandle handle, CublasMatmulDesc desc, CublasLayout a,              \
     CublasLayout b, CublasLayout c, CublasLayout d,                          \
     CublasPreference preference, int wanted, CublasHeuristic* found,         \
     int* num_found))                                                         \
  X(Matmul, cublasLtMatmul,                                                   \
    (CublasHandle handle, CublasMatmulDesc desc, const void* alpha,           \
     const void* a, CublasLayout a_layout, const void* b,                     \
     CublasLayout b_layout, const void* beta, const void* c,                  \
     CublasLayout c_layout, void* d, CublasLayout d_layout,                   \
     const CublasAlgorithm* algorithm, void* workspace,                       \
     size_t workspace_bytes, CuStream stream))

struct CublasApi {
#define SHARD_CUBLAS_FUNCTION(name, symbol, parameters) \
  CublasResult(*name) parameters = nullptr;
  SHARD_CUBLAS(SHARD_CUBLAS_FUNCTION)
#undef SHARD_CUBLAS_FUNCTION
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_CUBLAS_API_H_
