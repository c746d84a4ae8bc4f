// SPDX-License-Identifier: Apache-2.0
//
// A fake libcuda.so.1 that can only tell its version, which the build gives it.

#include "core/device/cuda/driver_api.h"

extern "C" __attribute__((visibility("default"))) shard::cuda::CuResult
cuDriverGetVersion(int* version) {
  *version = SHARD_DRIVER_VERSION;
  return shard::cuda::CuResult::kSuccess;
}
