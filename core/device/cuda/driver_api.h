// SPDX-License-Identifier: Apache-2.0
//
// The part of CUDA's driver API that libshard uses, declared here so that it is
// built where no CUDA toolkit is. Types, values and names of symbols are those
// of cuda.h (driver_api_test compares them where there is one); libcuda.so.1 is
// loaded at run time (driver.h).

#ifndef SHARD_CORE_DEVICE_CUDA_DRIVER_API_H_
#define SHARD_CORE_DEVICE_CUDA_DRIVER_API_H_

#include <cstddef>
#include <cstdint>

namespace shard::cuda {

enum class CuResult : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kStubLibrary = 34,
  kCallRequiresNewerDriver = 36,
  kDeviceUnavailable = 46,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kEccUncorrectable = 214,
  kInvalidPtx = 218,
  kUnsupportedPtxVersion = 222,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kSystemDriverMismatch = 803,
  kMpsConnectionFailed = 805,
  kMpsRpcFailure = 806,
  kMpsServerNotReady = 807,
  // The first and the last of the errors that a capture of work makes.
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
  kStreamCaptureMerge = 902,
  kStreamCaptureIsolation = 905,
  kStreamCaptureImplicit = 906,
  kCapturedEvent = 907,
  kUnknown = 999,
};

using CuDevice = int;
using CuPointer = unsigned long long;
using CuContext = struct CUctx_st*;
using CuModule = struct CUmod_st*;
using CuFunction = struct CUfunc_st*;
using CuStream = struct CUstream_st*;
using CuEvent = struct CUevent_st*;
using CuMemoryPool = struct CUmemPoolHandle_st*;

struct CuUuid {
  char bytes[16];
};

// The host's stream where it names none.
inline CuStream LegacyStream() {
  return reinterpret_cast<CuStream>(uintptr_t{1});
}
// Another stream in each thread.
inline CuStream PerThreadStream() {
  return reinterpret_cast<CuStream>(uintptr_t{2});
}

// The calls that a thread may make while some stream is captured as a graph.
enum class CuCaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
enum class CuCaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kHostAllocDeviceMap = 2;

enum class CuDeviceAttribute : int {
  kMultiprocessorCount = 16,
  kUnifiedAddressing = 41,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMemoryPoolsSupported = 115,
};

enum class CuPointerAttribute : int {
  kMemoryType = 2,  // An unsigned: CuMemoryType.
  kIsManaged = 8,   // An unsigned.
  kDeviceOrdinal = 9,
};

enum class CuMemoryType : unsigned { kHost = 1, kDevice = 2 };

// CUmemPoolProps: memory of one device, which no other process is given.
struct CuMemoryPoolProps {
  int allocation_type = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types = 0;
  int location_type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  int location_id = 0;
  void* win32_security_attributes = nullptr;
  size_t max_size = 0;
  unsigned short usage = 0;
  unsigned char reserved[54] = {};
};

// X(name, symbol, parameters): the entry points, each of which returns a
// CuResult. The symbols have the versions that cuda.h of CUDA 12 and 13 gives
// them, but for cuStreamGetCaptureInfo and cuEventElapsedTime, whose first
// versions all drivers have.
#define SHARD_CUDA_DRIVER(X)                                                  \
  X(Init, cuInit, (unsigned flags))                                           \
  X(DriverGetVersion, cuDriverGetVersion, (int* version))                     \
  X(GetErrorName, cuGetErrorName, (CuResult error, const char** text))        \
  X(GetErrorString, cuGetErrorString, (CuResult error, const char** text))    \
  X(DeviceGetCount, cuDeviceGetCount, (int* count))                           \
  X(DeviceGet, cuDeviceGet, (CuDevice * device, int ordinal))                 \
  X(DeviceGetName, cuDeviceGetName, (char* name, int size, CuDevice device))  \
  X(DeviceGetUuid, cuDeviceGetUuid_v2, (CuUuid * uuid, CuDevice device))      \
  X(DeviceTotalMem, cuDeviceTotalMem_v2, (size_t * bytes, CuDevice device))   \
  X(DeviceGetAttribute, cuDeviceGetAttribute,                                 \
    (int* value, CuDeviceAttribute attribute, CuDevice device))               \
  X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain,                         \
    (CuContext * context, CuDevice device))                                   \
  X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CuDevice device)) \
  X(CtxPushCurrent, cuCtxPushCurrent_v2, (CuContext context))                 \
  X(CtxPopCurrent, cuCtxPopCurrent_v2, (CuContext * context))                 \
  X(MemGetInfo, cuMemGetInfo_v2, (size_t * free, size_t * total))             \
  X(ModuleLoadData, cuModuleLoadData, (CuModule * module, const void* image)) \
  X(ModuleUnload, cuModuleUnload, (CuModule module))                          \
  X(ModuleGetFunction, cuModuleGetFunction,                                   \
    (CuFunction * function, CuModule module, const char* name))               \
  X(OccupancyMaxActiveBlocksPerMultiprocessor,                                \
    cuOccupancyMaxActiveBlocksPerMultiprocessor,                              \
    (int* blocks, CuFunction function, int threads, size_t shared_bytes))     \
  X(LaunchKernel, cuLaunchKernel,                                             \
    (CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,  \
     unsigned block_x, unsigned block_y, unsigned block_z,                    \
     unsigned shared_bytes, CuStream stream, void** params, void** extra))    \
  X(StreamCreate, cuStreamCreate, (CuStream * stream, unsigned flags))        \
  X(StreamDestroy, cuStreamDestroy_v2, (CuStream stream))                     \
  X(StreamWaitEvent, cuStreamWaitEvent,                                       \
    (CuStream stream, CuEvent event, unsigned flags))                         \
  X(StreamGetCtx, cuStreamGetCtx, (CuStream stream, CuContext * context))     \
  X(StreamIsCapturing, cuStreamIsCapturing,                                   \
    (CuStream stream, CuCaptureStatus * status))                              \
  X(StreamGetCaptureInfo, cuStreamGetCaptureInfo,                             \
    (CuStream stream, CuCaptureStatus * status, uint64_t * id))               \
  X(ThreadExchangeCaptureMode, cuThreadExchangeStreamCaptureMode,             \
    (CuCaptureMode * mode))                                                   \
  X(EventCreate, cuEventCreate, (CuEvent * event, unsigned flags))            \
  X(EventDestroy, cuEventDestroy_v2, (CuEvent event))                         \
  X(EventRecord, cuEventRecord, (CuEvent event, CuStream stream))             \
  X(EventQuery, cuEventQuery, (CuEvent event))                                \
  X(EventElapsedTime, cuEventElapsedTime,                                     \
    (float* milliseconds, CuEvent from, CuEvent to))                          \
  X(MemAlloc, cuMemAlloc_v2, (CuPointer * memory, size_t bytes))              \
  X(MemFree, cuMemFree_v2, (CuPointer memory))                                \
  X(MemGetAddressRange, cuMemGetAddressRange_v2,                              \
    (CuPointer * begin, size_t * bytes, CuPointer memory))                    \
  X(MemPoolCreate, cuMemPoolCreate,                                           \
    (CuMemoryPool * pool, const CuMemoryPoolProps* props))                    \
  X(MemPoolDestroy, cuMemPoolDestroy, (CuMemoryPool pool))                    \
  X(MemPoolTrimTo, cuMemPoolTrimTo, (CuMemoryPool pool, size_t bytes))        \
  X(MemAllocFromPoolAsync, cuMemAllocFromPoolAsync,                           \
    (CuPointer * memory, size_t bytes, CuMemoryPool pool, CuStream stream))   \
  X(MemFreeAsync, cuMemFreeAsync, (CuPointer memory, CuStream stream))        \
  X(MemHostAlloc, cuMemHostAlloc,                                             \
    (void** memory, size_t bytes, unsigned flags))                            \
  X(MemFreeHost, cuMemFreeHost, (void* memory))                               \
  X(MemcpyAsync, cuMemcpyAsync,                                               \
    (CuPointer to, CuPointer from, size_t bytes, CuStream stream))            \
  X(MemsetD8Async, cuMemsetD8Async,                                           \
    (CuPointer to, unsigned char value, size_t bytes, CuStream stream))       \
  X(PointerGetAttribute, cuPointerGetAttribute,                               \
    (void* value, CuPointerAttribute attribute, CuPointer pointer))

// The entry points, by name.
struct DriverApi {
#define SHARD_CUDA_POINTER(name, symbol, parameters) \
  CuResult(*name) parameters = nullptr;
  SHARD_CUDA_DRIVER(SHARD_CUDA_POINTER)
#undef SHARD_CUDA_POINTER
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_DRIVER_API_H_
