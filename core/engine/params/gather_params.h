// SPDX-License-Identifier: Apache-2.0
//
// Gathers whole parameters on every rank, one unit after the other, in the
// memory of the plan: where parameters are sharded, in the unit's first slot.

#ifndef SHARD_CORE_ENGINE_PARAMS_GATHER_PARAMS_H_
#define SHARD_CORE_ENGINE_PARAMS_GATHER_PARAMS_H_

#include <functional>
#include <span>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/step/engine_runtime.h"
#include "core/flat/plan.h"

namespace shard {

// A whole parameter: all elements of `slot`, a slot of the layout of `buffer`,
// at `data`.
struct GatheredParam {
  const EngineBuffer* buffer;
  const Slot* slot;
  const unsigned char* data;
};

// Receives the parameters of a unit, those without elements left out, and is
// done with them when it returns. An empty sink: this rank has no use for the
// parameters.
using ParamSink = std::function<Status(std::span<const GatheredParam> params)>;

// Passes the parameters of the chosen units to `sink`, one unit after the
// other. COLLECTIVE, also with an empty sink. `units`: by unit, the same on all
// ranks. An error of this rank alone ends the group. REQUIRES: a drained queue,
// and slots that are not in use.
Status GatherParams(const EngineRuntime& runtime,
                    const std::vector<bool>& units, Communicator* comm,
                    const ParamSink& sink, const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_GATHER_PARAMS_H_
