// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_PARAMS_OPEN_ACCESS_H_
#define SHARD_CORE_ENGINE_PARAMS_OPEN_ACCESS_H_

#include <memory>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/event.h"
#include "core/device/host_access.h"
#include "core/engine/step/engine_runtime.h"

namespace shard {

// Returns an event after all work on the tensors of `runtime` that streams were
// given so far. REQUIRES: a drained queue.
inline Event AllWork(const EngineRuntime& runtime) {
  return runtime.compute().Record();
}

// Opens the access of the host's code to the tensors of `runtime`, once that
// work is done.
inline StatusOr<std::unique_ptr<HostAccess>> OpenAccess(
    const EngineRuntime& runtime, Device* device, const Deadline& deadline) {
  return HostAccess::Open(device, AllWork(runtime), deadline);
}

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_OPEN_ACCESS_H_
