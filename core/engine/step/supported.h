// SPDX-License-Identifier: Apache-2.0
//
// Checks whether an engine can train by a plan, on these ranks and this
// machine.

#ifndef SHARD_CORE_ENGINE_STEP_SUPPORTED_H_
#define SHARD_CORE_ENGINE_STEP_SUPPORTED_H_

#include <cstdint>
#include <string>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/step/hypers.h"
#include "core/flat/plan.h"

namespace shard {

// Returns whether the ranks of engines on `device` read and write each other's
// tensors where they lie. One rank has no others.
inline bool SharesTensors(const Communicator& comm, const Device& device) {
  return comm.direct() &&
         (device.ReachesSharedMemory() || comm.world_size() == 1);
}

// Returns the bytes that this host still has to give to the engines of `plan`
// on all its ranks, all of them on such a device, with the staging memory of
// collectives where the host does not reach tensors. `before` is null, or the
// plan that `plan` replaces, as for EngineMemory::Allocate. The memory of
// `before` stays allocated meanwhile, and its host tensors and collectives
// serve both plans.
uint64_t HostBytesToAllocate(const Plan& plan, const Communicator& comm,
                             const Device& device, const Plan* before);

// Returns OK where this build can step what the plan describes, `comm` has the
// ranks that the plan is for, and a checkpoint can hold the state. Where the
// device has no memory of its own, the host has HostBytesToAllocate, too.
// Local.
Status CheckSupported(const Plan& plan, const Communicator& comm,
                      const Device& device, const Plan* before);

// Returns kResourceExhausted on all ranks where a device with memory of its own
// has not enough of it for `plan`, once for each rank on it, or the host has
// not HostBytesToAllocate. COLLECTIVE, for ranks on devices of one kind. OK is
// no promise that the plan will fit.
Status CheckDeviceMemory(const Plan& plan, Communicator* comm, Device* device,
                         const Plan* before, const Deadline& deadline);

// Loads the BLAS that the plan's optimizers need and returns its name; "" where
// none needs one. Local. BACKEND_UNAVAILABLE lists the names that were tried.
StatusOr<std::string> FindBlas(const Plan& plan, const Hypers& hypers,
                               Device* device);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_SUPPORTED_H_
