// SPDX-License-Identifier: Apache-2.0
//
// Import of optimizer states from another program: whole tensors in fp32, of
// which each rank stores the elements that it owns, in the dtype of its plan.

#ifndef SHARD_CORE_ENGINE_STATE_IMPORT_STATE_H_
#define SHARD_CORE_ENGINE_STATE_IMPORT_STATE_H_

#include <cstddef>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/host_access.h"
#include "core/device/stream.h"
#include "core/engine/memory/buffers.h"
#include "core/optim/optimizer.h"

namespace shard {

// Returns the index of the state `name` in `plan.states`. kNotFound for a name
// that is not a state of the buffer's parameters (master weights are one),
// listing those that are.
StatusOr<size_t> FindState(const FlatBufferPlan& plan, std::string_view name);

// Stores this rank's elements of an optimizer state. Local. `range`: this
// rank's, Plan::RangeOf. `values`: the `count` elements of `state`, an index
// into `buffer.plan->states`, of the parameter at `place`; `optimizer` is that
// of its group. Narrower states are rounded to nearest, by kernels of `stream`;
// `access` is to the tensors of `buffer`. Errors: a count that is not the
// state's; values that are not finite, or are negative where the formula says
// that the state is one of squares (StateKind). REQUIRES: a trainable parameter
// that is not empty.
Status ImportState(const EngineBuffer& buffer, const Optimizer& optimizer,
                   int range, const ParamPlace& place, size_t state,
                   const float* values, size_t count, HostAccess* access,
                   Stream* stream, const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_IMPORT_STATE_H_
