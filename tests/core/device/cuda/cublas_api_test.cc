// SPDX-License-Identifier: Apache-2.0
//
// Compares our declarations of cuBLASLt with cublasLt.h, where there is a
// toolkit: most of it when this file is compiled.

#include "core/device/cuda/cublas_api.h"

#include <gtest/gtest.h>

#include "tests/core/base/called_alike.h"

#ifdef SHARD_HAS_CUBLASLT_H

#include <cublasLt.h>

#include <cstddef>

namespace shard::cuda {
namespace {

using testing::CalledAlike;

#define SHARD_CHECK(name, symbol, parameters)                             \
  static_assert(                                                          \
      CalledAlike<decltype(CublasApi::name), decltype(&::symbol)>::value, \
      #symbol);
SHARD_CUBLAS(SHARD_CHECK)
#undef SHARD_CHECK

TEST(CublasApiTest, HasTheValuesOfTheHeader) {
  const auto is = [](auto ours, int header) {
    EXPECT_EQ(static_cast<int>(ours), header);
  };
  is(CublasResult::kSuccess, CUBLAS_STATUS_SUCCESS);
  is(CublasResult::kNotInitialized, CUBLAS_STATUS_NOT_INITIALIZED);
  is(CublasResult::kAllocFailed, CUBLAS_STATUS_ALLOC_FAILED);
  is(CublasResult::kInvalidValue, CUBLAS_STATUS_INVALID_VALUE);
  is(CublasResult::kArchMismatch, CUBLAS_STATUS_ARCH_MISMATCH);
  is(CublasResult::kExecutionFailed, CUBLAS_STATUS_EXECUTION_FAILED);
  is(CublasResult::kInternalError, CUBLAS_STATUS_INTERNAL_ERROR);
  is(CublasResult::kNotSupported, CUBLAS_STATUS_NOT_SUPPORTED);

  is(CublasProperty::kMajor, MAJOR_VERSION);
  is(CublasProperty::kMinor, MINOR_VERSION);
  is(CublasType::kF32, CUDA_R_32F);
  is(CublasType::kBF16, CUDA_R_16BF);
  is(CublasCompute::kF32, CUBLAS_COMPUTE_32F);
  is(CublasCompute::kTF32, CUBLAS_COMPUTE_32F_FAST_TF32);
  is(CublasOperation::kNone, CUBLAS_OP_N);
  is(CublasOperation::kTranspose, CUBLAS_OP_T);
  is(CublasMatmulAttribute::kTransposeA, CUBLASLT_MATMUL_DESC_TRANSA);
  is(CublasMatmulAttribute::kTransposeB, CUBLASLT_MATMUL_DESC_TRANSB);
  is(CublasLayoutAttribute::kBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
  is(CublasLayoutAttribute::kBatchStride,
     CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
  is(CublasPreferenceAttribute::kMaxWorkspaceBytes,
     CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  is(CublasPreferenceAttribute::kReductionSchemes,
     CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
  is(kCublasReduceInComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

TEST(CublasApiTest, HasTheLayoutOfTheHeader) {
  EXPECT_EQ(sizeof(CublasAlgorithm), sizeof(cublasLtMatmulAlgo_t));
  EXPECT_EQ(alignof(CublasAlgorithm), alignof(cublasLtMatmulAlgo_t));
  EXPECT_EQ(sizeof(CublasHeuristic), sizeof(cublasLtMatmulHeuristicResult_t));
  EXPECT_EQ(offsetof(CublasHeuristic, algorithm),
            offsetof(cublasLtMatmulHeuristicResult_t, algo));
  EXPECT_EQ(offsetof(CublasHeuristic, workspace_bytes),
            offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
  EXPECT_EQ(offsetof(CublasHeuristic, state),
            offsetof(cublasLtMatmulHeuristicResult_t, state));
  EXPECT_EQ(offsetof(CublasHeuristic, waves),
            offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));
}

}  // namespace
}  // namespace shard::cuda

#else

TEST(CublasApiTest, IsComparedWithTheHeader) {
  GTEST_SKIP() << "no CUDA toolkit was found, or one without cublasLt.h";
}

#endif  // SHARD_HAS_CUBLASLT_H
