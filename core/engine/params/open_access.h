// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_PARAMS_OPEN_ACCESS_H_
#define SHARD_CORE_ENGINE_PARAMS_OPEN_ACCESS_H_

#include <memory>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/host_access.h"
#include "core/engine/step/engine_runtime.h"

namespace shard {

// Opens the access of the host's code to the tensors of `runtime`, once
// streams, the host's too, have done all work on them that they were given so
// far. REQUIRES: a drained queue.
inline StatusOr<std::unique_ptr<HostAccess>> OpenAccess(
    const EngineRuntime& runtime, Device* device, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(runtime.host().Synchronize(deadline));
  return HostAccess::Open(device, runtime.compute().Record(), deadline);
}

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_OPEN_ACCESS_H_
