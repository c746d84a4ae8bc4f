// SPDX-License-Identifier: Apache-2.0
//
// The host as a device: memory is the host's, kernels are those of kernels/cpu,
// and a stream either runs in the caller's thread (inline_stream.h) or has a
// thread of its own (worker_stream.h).

#ifndef SHARD_CORE_DEVICE_CPU_CPU_DEVICE_H_
#define SHARD_CORE_DEVICE_CPU_CPU_DEVICE_H_

#include <memory>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/work_queue/work_queue.h"

namespace shard::cpu {

// Opens "cpu", whose compute streams are inline. On both devices the host's
// stream is, too.
StatusOr<std::shared_ptr<Device>> OpenDevice();

// Opens "cpu-async": every stream has a thread, and the threads pause.
StatusOr<std::shared_ptr<Device>> OpenAsyncDevice(const Pauses& pauses);

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_CPU_DEVICE_H_
