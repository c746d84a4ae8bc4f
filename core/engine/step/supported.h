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
#include "core/base/transport.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/step/explain_misfit.h"
#include "core/engine/step/hypers.h"
#include "core/flat/plan.h"

namespace shard {

// Returns whether `device` reaches memory that ranks share. One rank has no
// others.
inline bool ReachesRanks(const Communicator& comm, const Device& device) {
  return device.ReachesSharedMemory() || comm.world_size() == 1;
}

// Returns whether the ranks of engines on `device` read and write each other's
// tensors where they lie.
inline bool SharesTensors(const Communicator& comm, const Device& device) {
  return comm.direct() && ReachesRanks(comm, device);
}

// Returns where the ranks of this host have their memory, all of them on such a
// device, each alone on it. `allow_missing`, `one_kernel`: as RankPlacement.
RankPlacement PlacementOf(const Communicator& comm, const Device& device,
                          Transport transport = Transport::kStaged,
                          bool allow_missing = false, bool one_kernel = false);

// Returns OK where this build can step what the plan describes, `comm` has the
// ranks that the plan is for, and a checkpoint can hold the state. Where the
// device has no memory of its own, the host has room for NeedOf, too. `before`
// as there. Local; an error leaves time before `deadline` to tell other ranks.
Status CheckSupported(const Plan& plan, const Communicator& comm,
                      const RankPlacement& placement,
                      const ReplacedPlan* before, const Deadline& deadline);

// Returns kResourceExhausted on all ranks where a device with memory of its own
// has not enough of it for `plan`, once for each rank on it, or the host has
// not. `placement`: that of PlacementOf. COLLECTIVE, for ranks on devices of
// one kind. OK is no promise that the plan will fit.
Status CheckDeviceMemory(const Plan& plan, Communicator* comm, Device* device,
                         RankPlacement placement, const ReplacedPlan* before,
                         const Deadline& deadline);

// Loads the BLAS that the plan's optimizers need and returns its name; "" where
// none needs one. Local. BACKEND_UNAVAILABLE lists the names that were tried.
StatusOr<std::string> FindBlas(const Plan& plan, const Hypers& hypers,
                               Device* device);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_SUPPORTED_H_
