// SPDX-License-Identifier: Apache-2.0
//
// The names of CUDA devices in a spec: what comes after "cuda:". A machine
// without the device, or without a driver, can read them.

#ifndef SHARD_CORE_DEVICE_CUDA_DEVICE_NAME_H_
#define SHARD_CORE_DEVICE_CUDA_DEVICE_NAME_H_

#include <string>
#include <string_view>

#include "core/base/status.h"

namespace shard::cuda {

struct DeviceName {
  int ordinal;
  // In small letters and without "GPU-" or "MIG-"; "" where the ordinal counts.
  std::string uuid;
};

// Reads "0", or "GPU-6f3c...", or "MIG-...". kInvalidArgument otherwise.
StatusOr<DeviceName> ParseDeviceName(std::string_view text);

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_DEVICE_NAME_H_
