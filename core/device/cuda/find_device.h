// SPDX-License-Identifier: Apache-2.0
//
// Finds devices by their names (device_name.h): ordinals, in the order of the
// driver (CUDA_VISIBLE_DEVICES), and UUIDs as nvidia-smi -L lists them.

#ifndef SHARD_CORE_DEVICE_CUDA_FIND_DEVICE_H_
#define SHARD_CORE_DEVICE_CUDA_FIND_DEVICE_H_

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/device/cuda/driver.h"
#include "core/device/cuda/driver_api.h"

namespace shard::cuda {

// Returns "GPU-0a1b2c3d-...", or "MIG-..." for a MIG instance, as nvidia-smi -L
// lists the device. The driver tells no prefix: a MIG instance has "MIG" as a
// word of its name ("NVIDIA A100-SXM4-40GB MIG 1g.5gb").
StatusOr<std::string> UuidOf(const Driver* driver, CuDevice device);

// Returns the ordinal of the device that `name` names: "0", or a UUID with or
// without its prefix. Errors: kInvalidArgument for a name of no device, which
// lists those that are there; for a UUID those of Driver::Load.
StatusOr<int> OrdinalOf(std::string_view name);

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_FIND_DEVICE_H_
