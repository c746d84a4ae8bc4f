// SPDX-License-Identifier: Apache-2.0
//
// A GPU as a device. Tensors lie in its memory, and the host's stream is a
// CUstream (a cudaStream_t is the same) of the device's primary context; null
// is the legacy default stream.

#ifndef SHARD_CORE_DEVICE_CUDA_CUDA_DEVICE_H_
#define SHARD_CORE_DEVICE_CUDA_CUDA_DEVICE_H_

#include <memory>
#include <string_view>

#include "core/base/status.h"
#include "core/device/cuda/context.h"
#include "core/device/device.h"

namespace shard::cuda {

// Opens the device that `id` names: an ordinal, "0", in the order of the driver
// (CUDA_VISIBLE_DEVICES), or a UUID as nvidia-smi -L lists it, "GPU-..." or
// "MIG-...". Errors: kInvalidArgument for a device that is not there, which
// lists those that are; kBackendUnavailable without a driver, or with one that
// cannot run the kernels.
StatusOr<std::shared_ptr<Device>> OpenDevice(std::string_view id);

// Returns the context in which a device has its memory and streams. REQUIRES:
// the device is one of OpenDevice.
std::shared_ptr<Context> ContextOf(const Device& device);

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_CUDA_DEVICE_H_
