// SPDX-License-Identifier: Apache-2.0
//
// Compares the sample's declarations of CUDA's driver API and of cuBLAS with
// cuda.h and cublas_v2.h, where there is a toolkit, when this file is compiled.

#include "gtest/gtest.h"
#include "samples/gpt/cuda/api.h"

#if defined(SHARD_HAS_CUDA_H) && __has_include(<cublas_v2.h>)

#include <cublas_v2.h>
#include <cuda.h>

#include <type_traits>

namespace cuda_api_test {
namespace {

// Whether a caller passes both types in the same way.
template <typename A, typename B>
constexpr bool kPassedAlike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <typename A, typename B>
struct CalledAlike : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
requires(sizeof...(A) ==
         sizeof...(B)) struct CalledAlike<R (*)(A...), S (*)(B...)>
    : std::bool_constant<kPassedAlike<R, S> && (kPassedAlike<A, B> && ...)> {
};

#define CHECK(table, name, symbol)                                    \
  static_assert(                                                      \
      CalledAlike<decltype(table::name), decltype(&::symbol)>::value, \
      #symbol);
#define CHECK_DRIVER(name, symbol, parameters) CHECK(gpu_driver, name, symbol)
#define CHECK_BLAS(name, symbol, parameters) CHECK(gpu_blas, name, symbol)
GPU_DRIVER(CHECK_DRIVER)
GPU_BLAS(CHECK_BLAS)

TEST(CudaApiTest, HasTheValuesOfTheHeaders) {
  EXPECT_EQ(CUDA_SUCCESS, 0);
  EXPECT_EQ(CUBLAS_STATUS_SUCCESS, 0);
  EXPECT_EQ(int{kStreamNonBlocking}, int{CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(int{kHostMemoryPortable}, CU_MEMHOSTALLOC_PORTABLE);
  EXPECT_EQ(int{kCaptureOfThread}, int{CU_STREAM_CAPTURE_MODE_THREAD_LOCAL});
  EXPECT_EQ(int{kComputeCapabilityMajor},
            int{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR});
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
