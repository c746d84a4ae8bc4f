// SPDX-License-Identifier: Apache-2.0
//
// Compares our declarations of CUDA's driver API with cuda.h, where there is a
// toolkit: most of it when this file is compiled.

#include "core/device/cuda/driver_api.h"

#include <gtest/gtest.h>

#include "tests/core/base/called_alike.h"

#ifdef SHARD_HAS_CUDA_H

#include <cuda.h>

#include <cstddef>
#include <cstdint>

// As the driver has them, where the header means later versions.
#undef cuStreamGetCaptureInfo
extern "C" CUresult CUDAAPI cuStreamGetCaptureInfo(
    CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id);
#undef cuEventElapsedTime
extern "C" CUresult CUDAAPI cuEventElapsedTime(float* milliseconds,
                                               CUevent from, CUevent to);

namespace shard::cuda {
namespace {

using testing::CalledAlike;

#define SHARD_CHECK(name, symbol, parameters)                             \
  static_assert(                                                          \
      CalledAlike<decltype(DriverApi::name), decltype(&::symbol)>::value, \
      #symbol);
SHARD_CUDA_DRIVER(SHARD_CHECK)
#undef SHARD_CHECK

TEST(DriverApiTest, HasTheValuesOfTheHeader) {
  const auto is = [](auto ours, int header) {
    EXPECT_EQ(static_cast<int>(ours), header);
  };
  is(CuResult::kSuccess, CUDA_SUCCESS);
  is(CuResult::kInvalidValue, CUDA_ERROR_INVALID_VALUE);
  is(CuResult::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  is(CuResult::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
  is(CuResult::kDeinitialized, CUDA_ERROR_DEINITIALIZED);
  is(CuResult::kStubLibrary, CUDA_ERROR_STUB_LIBRARY);
  is(CuResult::kCallRequiresNewerDriver, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
  is(CuResult::kDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
  is(CuResult::kNoDevice, CUDA_ERROR_NO_DEVICE);
  is(CuResult::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
  is(CuResult::kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
  is(CuResult::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
  is(CuResult::kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
  is(CuResult::kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
  is(CuResult::kInvalidPtx, CUDA_ERROR_INVALID_PTX);
  is(CuResult::kUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  is(CuResult::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
  is(CuResult::kNotFound, CUDA_ERROR_NOT_FOUND);
  is(CuResult::kNotReady, CUDA_ERROR_NOT_READY);
  is(CuResult::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
  is(CuResult::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
  is(CuResult::kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
  is(CuResult::kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
  is(CuResult::kSystemDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
  is(CuResult::kMpsConnectionFailed, CUDA_ERROR_MPS_CONNECTION_FAILED);
  is(CuResult::kMpsRpcFailure, CUDA_ERROR_MPS_RPC_FAILURE);
  is(CuResult::kMpsServerNotReady, CUDA_ERROR_MPS_SERVER_NOT_READY);
  is(CuResult::kStreamCaptureUnsupported,
     CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  is(CuResult::kStreamCaptureInvalidated,
     CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  is(CuResult::kStreamCaptureMerge, CUDA_ERROR_STREAM_CAPTURE_MERGE);
  is(CuResult::kStreamCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  is(CuResult::kStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  is(CuResult::kCapturedEvent, CUDA_ERROR_CAPTURED_EVENT);
  is(CuResult::kUnknown, CUDA_ERROR_UNKNOWN);

  is(CuDeviceAttribute::kMultiprocessorCount,
     CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  is(CuDeviceAttribute::kUnifiedAddressing,
     CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
  is(CuDeviceAttribute::kComputeCapabilityMajor,
     CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  is(CuDeviceAttribute::kComputeCapabilityMinor,
     CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  is(CuDeviceAttribute::kMemoryPoolsSupported,
     CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  is(CuPointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  is(CuPointerAttribute::kIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
  is(CuPointerAttribute::kDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  is(CuMemoryType::kHost, CU_MEMORYTYPE_HOST);
  is(CuMemoryType::kDevice, CU_MEMORYTYPE_DEVICE);

  is(CuCaptureMode::kGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
  is(CuCaptureMode::kThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  is(CuCaptureMode::kRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
  is(CuCaptureStatus::kNone, CU_STREAM_CAPTURE_STATUS_NONE);
  is(CuCaptureStatus::kActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  is(CuCaptureStatus::kInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  is(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
  is(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
  is(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
  is(kHostAllocDeviceMap, CU_MEMHOSTALLOC_DEVICEMAP);
  EXPECT_EQ(reinterpret_cast<void*>(LegacyStream()),
            reinterpret_cast<void*>(CU_STREAM_LEGACY));
  EXPECT_EQ(reinterpret_cast<void*>(PerThreadStream()),
            reinterpret_cast<void*>(CU_STREAM_PER_THREAD));
}

TEST(DriverApiTest, HasTheLayoutOfTheHeader) {
  EXPECT_EQ(sizeof(CuUuid), sizeof(CUuuid));
  EXPECT_EQ(sizeof(CuMemoryPoolProps), sizeof(CUmemPoolProps));
  EXPECT_EQ(offsetof(CuMemoryPoolProps, handle_types),
            offsetof(CUmemPoolProps, handleTypes));
  EXPECT_EQ(offsetof(CuMemoryPoolProps, location_type),
            offsetof(CUmemPoolProps, location.type));
  EXPECT_EQ(offsetof(CuMemoryPoolProps, location_id),
            offsetof(CUmemPoolProps, location.id));
  EXPECT_EQ(offsetof(CuMemoryPoolProps, max_size),
            offsetof(CUmemPoolProps, maxSize));
  EXPECT_EQ(offsetof(CuMemoryPoolProps, usage),
            offsetof(CUmemPoolProps, usage));
  const CuMemoryPoolProps props;
  EXPECT_EQ(props.allocation_type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(props.location_type, CU_MEM_LOCATION_TYPE_DEVICE);
}

}  // namespace
}  // namespace shard::cuda

#else

TEST(DriverApiTest, IsComparedWithTheHeader) {
  GTEST_SKIP() << "no CUDA toolkit was found, so there is no cuda.h";
}

#endif  // SHARD_HAS_CUDA_H
