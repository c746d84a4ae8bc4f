// SPDX-License-Identifier: Apache-2.0
//
// The host tensors of an engine: tensors that are neither trained nor sharded,
// of which every rank has a copy that its host reads and writes. The copies of
// the ranks are the same after a broadcast and after a load, and as the hosts
// make them otherwise.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_PARAMS_HOST_TENSORS_H_
#define SHARD_CORE_ENGINE_PARAMS_HOST_TENSORS_H_

#include <span>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/step/engine_runtime.h"
#include "core/flat/plan.h"
#include "core/model/model.h"

namespace shard {

// Replaces the host tensors of all ranks by those of rank `root`. COLLECTIVE.
// `known`: an error of the call on this rank alone, which becomes an error on
// all ranks, as a `root` does that is no rank. DESYNC where roots differ.
Status BroadcastHostTensors(const EngineRuntime& runtime, int root,
                            const Status& known, Communicator* comm,
                            const Deadline& deadline);

// Sends some host tensors from `root` to all ranks, within another operation.
// COLLECTIVE. REQUIRES: the same `ids` on all ranks, in module-walk order.
Status SendHostTensors(const Plan& plan, const EngineMemory& memory,
                       std::span<const HostTensorId> ids, int root,
                       Communicator* comm, const Deadline& deadline);

// Fills this rank's copies with zeros.
void ZeroHostTensors(const Plan& plan, const EngineMemory& memory,
                     std::span<const HostTensorId> ids);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_HOST_TENSORS_H_
