// SPDX-License-Identifier: Apache-2.0
//
// Migration: copies parameters and states from the memory of one runtime to
// that of another, whose plan has the same parameters in other places: some
// were frozen or unfrozen, or have another group.
//
// Copied are every parameter, and every optimizer state (master weights among
// them) of a parameter that is trainable in both plans and keeps a state of
// that name and dtype. Other states are initialized: zeros, and master weights
// from their parameter.

#ifndef SHARD_CORE_ENGINE_PARAMS_MIGRATE_H_
#define SHARD_CORE_ENGINE_PARAMS_MIGRATE_H_

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/step/engine_runtime.h"

namespace shard {

// Copies the parameters. COLLECTIVE, as MigrateStates. States are sent in
// pieces of 1 MiB per rank, parameters by way of the old plan's slots; where
// ranks share memory, parameters are copied where they lie. REQUIRES: drained
// queues, and models of equal size.
Status MigrateParams(const EngineRuntime& from, const EngineRuntime& to,
                     Communicator* comm, const Deadline& deadline);
// Copies the optimizer states. REQUIRES: MigrateParams was called, and master
// weights were filled.
Status MigrateStates(const EngineRuntime& from, const EngineRuntime& to,
                     Communicator* comm, Device* device,
                     const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_MIGRATE_H_
