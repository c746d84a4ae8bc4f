// SPDX-License-Identifier: Apache-2.0
//
// The host as a device: memory is the host's, kernels are those of kernels/cpu,
// and a stream either runs in the caller's thread (inline_stream.h) or has one
// of its own (worker_stream.h).

#ifndef SHARD_CORE_DEVICE_CPU_CPU_DEVICE_H_
#define SHARD_CORE_DEVICE_CPU_CPU_DEVICE_H_

#include <memory>

#include "core/base/status.h"
#include "core/device/cpu/work_queue.h"
#include "core/device/device.h"

namespace shard::cpu {

// "cpu": compute streams are inline.
StatusOr<std::shared_ptr<Device>> OpenDevice();

// "cpu-async": no stream is, and their threads pause.
StatusOr<std::shared_ptr<Device>> OpenAsyncDevice(const Pauses& pauses);

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_CPU_DEVICE_H_
