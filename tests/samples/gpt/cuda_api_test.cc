// SPDX-License-Identifier: Apache-2.0
//
// Compares the sample's declarations of CUDA's driver API and of cuBLAS with
// cuda.h and cublas_v2.h, where there is a toolkit, when this file is compiled.

#include "gtest/gtest.h"
#include "samples/gpt/cuda/api.h"
#include "tests/core/base/called_alike.h"

#if defined(SHARD_HAS_CUDA_H) && __has_include(<cublas_v2.h>)

#include <cublas_v2.h>
#include <cuda.h>

namespace cuda_api_test {
namespace {

using shard::testing::CalledAlike;

#define CHECK(table, name, symbol)                                    \
  static_assert(                                                      \
      CalledAlike<decltype(table::name), decltype(&::symbol)>::value, \
      #symbol);
#define CHECK_DRIVER(name, symbol, parameters) CHECK(gpu_driver, name, symbol)
#define CHECK_BLAS(name, symbol, parameters) CHECK(gpu_blas, name, symbol)
GPU_DRIVER(CHECK_DRIVER)
GPU_BLAS(CHECK_BLAS)
CHECK(gpu_blas, status_name, cublasGetStatusName)

TEST(CudaApiTest, HasTheValuesOfTheHeaders) {
  EXPECT_EQ(CUDA_SUCCESS, 0);
  EXPECT_EQ(CUBLAS_STATUS_SUCCESS, 0);
  EXPECT_EQ(int{kStreamNonBlocking}, int{CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(int{kHostMemoryPortable}, CU_MEMHOSTALLOC_PORTABLE);
  EXPECT_EQ(int{kCaptureOfThread}, int{CU_STREAM_CAPTURE_MODE_THREAD_LOCAL});
  EXPECT_EQ(int{kComputeCapabilityMajor},
            int{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR});
  EXPECT_EQ(int{kMajorVersion}, int{MAJOR_VERSION});
  EXPECT_EQ(int{kBlasNone}, int{CUBLAS_OP_N});
  EXPECT_EQ(int{kBlasTranspose}, int{CUBLAS_OP_T});
}

}  // namespace
}  // namespace cuda_api_test

#else

TEST(CudaApiTest, HasNoHeadersToCompareWith) {
  GTEST_SKIP() << "no CUDA toolkit with cublas_v2.h";
}

#endif
