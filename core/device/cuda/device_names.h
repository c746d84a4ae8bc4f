// SPDX-License-Identifier: Apache-2.0
//
// The names of devices: ordinals, in the order of the driver
// (CUDA_VISIBLE_DEVICES), and UUIDs as nvidia-smi -L lists them.

#ifndef SHARD_CORE_DEVICE_CUDA_DEVICE_NAMES_H_
#define SHARD_CORE_DEVICE_CUDA_DEVICE_NAMES_H_

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/device/cuda/driver_api.h"

namespace shard::cuda {

// Returns "0a1b2c3d-...", without "GPU-" or "MIG-", which the driver does not
// tell.
std::string UuidText(const CuUuid& uuid);

// Returns the ordinal of the device that `name` names: "0", or a UUID with or
// without its prefix. Errors: kInvalidArgument for a name of no device, which
// lists those that are there; for a UUID those of Driver::Load.
StatusOr<int> OrdinalOf(std::string_view name);

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_DEVICE_NAMES_H_
