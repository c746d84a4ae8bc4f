// SPDX-License-Identifier: Apache-2.0
//
// Import of optimizer states from another program: whole tensors in fp32, of
// which each rank stores the elements that it owns, in the dtype of its plan.

#ifndef SHARD_CORE_ENGINE_STATE_IMPORT_STATE_H_
#define SHARD_CORE_ENGINE_STATE_IMPORT_STATE_H_

#include <cstddef>
#include <string_view>

#include "core/base/status.h"
#include "core/device/stream.h"
#include "core/engine/memory/buffers.h"
#include "core/optim/optimizer.h"

namespace shard {

// Stores this rank's elements of an optimizer state. Local. Enqueues on
// `stream`, which reads `values` until it is done. `range`: this rank's,
// Plan::RangeOf. `values`: the `count` elements of the state `name` of the
// parameter at `place`; `optimizer` is that of its group. Narrower states are
// rounded to nearest. Errors: kNotFound for a name that is not one of the
// parameter's states (master weights are one), listing them; a count that is
// not the state's; values that are not finite, or are negative where the
// formula says that the state is one of squares (StateKind). REQUIRES: a
// trainable parameter that is not empty.
Status ImportState(const EngineBuffer& buffer, const Optimizer& optimizer,
                   int range, const ParamPlace& place, std::string_view name,
                   const float* values, size_t count, Stream* stream);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_IMPORT_STATE_H_
