// SPDX-License-Identifier: Apache-2.0
//
// Checks whether an engine can train by a plan, on these ranks and this
// machine.

#ifndef SHARD_CORE_ENGINE_STEP_SUPPORTED_H_
#define SHARD_CORE_ENGINE_STEP_SUPPORTED_H_

#include <string>

#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/step/hypers.h"
#include "core/flat/plan.h"

namespace shard {

// Returns OK where this build can step what the plan describes, `comm` has the
// ranks that the plan is for, the host has the memory, and a checkpoint can
// hold the state. Local.
Status CheckSupported(const Plan& plan, const Communicator& comm);

// Loads the BLAS that the plan's optimizers need and returns its name; "" where
// none needs one. Local. BACKEND_UNAVAILABLE lists the names that were tried.
StatusOr<std::string> FindBlas(const Plan& plan, const Hypers& hypers,
                               Device* device);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_SUPPORTED_H_
