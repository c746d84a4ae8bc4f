// SPDX-License-Identifier: Apache-2.0
//
// A fake libcuda.so.1 that can only tell its version, which the build gives it.
// With SHARD_DRIVER_LACKS_ONE it has all other entry points but one, too.

#include "core/device/cuda/driver_api.h"

#ifdef SHARD_DRIVER_LACKS_ONE
// These two get other names: the one below, and the one that is missing.
#define cuDriverGetVersion cuDriverGetVersionElsewhere
#define cuDeviceGetUuid_v2 cuDeviceGetUuid
#define SHARD_DEFINE(name, symbol, parameters)      \
  extern "C" __attribute__((visibility("default"))) \
  CuResult symbol parameters {                      \
    return CuResult::kUnknown;                      \
  }
#pragma GCC diagnostic ignored "-Wunused-parameter"
namespace shard::cuda {
SHARD_CUDA_DRIVER(SHARD_DEFINE)
}  // namespace shard::cuda
#undef cuDriverGetVersion
#undef cuDeviceGetUuid_v2
#endif

extern "C" __attribute__((visibility("default"))) shard::cuda::CuResult
cuDriverGetVersion(int* version) {
  *version = SHARD_DRIVER_VERSION;
  return shard::cuda::CuResult::kSuccess;
}
