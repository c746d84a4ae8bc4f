// SPDX-License-Identifier: Apache-2.0
//
// Migration: from the memory of one assembly to that of another, whose plan
// has the same parameters in other places: some were frozen or unfrozen, or
// have another group.
//
// What moves: every parameter; every optimizer state (master weights among
// them) of a parameter that is trainable in both plans and keeps a state of
// that name and dtype. Other states are as new: zeros, and master weights from
// their parameter.

#ifndef SHARD_CORE_ENGINE_STATE_MIGRATE_H_
#define SHARD_CORE_ENGINE_STATE_MIGRATE_H_

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/step/assembly.h"

namespace shard {

// COLLECTIVE, both. States take a piece of 1 MiB per rank at a time over the
// communicator, parameters the old plan's slots; where ranks share memory those
// are copied where they lie. REQUIRES: queues that are drained, and equal
// model sizes.
Status MigrateParams(const Assembly& from, const Assembly& to,
                     Communicator* comm, const Deadline& deadline);
// After it, and after master weights were filled.
Status MigrateStates(const Assembly& from, const Assembly& to,
                     Communicator* comm, Device* device,
                     const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_MIGRATE_H_
