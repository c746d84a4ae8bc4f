// SPDX-License-Identifier: Apache-2.0
//
// Optimizer states from another program: whole tensors in fp32, of which each
// rank stores what it owns, in the form it keeps.

#ifndef SHARD_CORE_ENGINE_STATE_IMPORT_STATE_H_
#define SHARD_CORE_ENGINE_STATE_IMPORT_STATE_H_

#include <cstddef>
#include <string_view>

#include "core/base/status.h"
#include "core/device/stream.h"
#include "core/engine/memory/buffers.h"
#include "core/optim/optimizer.h"

namespace shard {

// Local. Enqueues on `stream`; `values` is read until it is done. `range`: this
// rank's, Plan::RangeOf. `values` is the state `name`, `count` elements, of the
// parameter whose place is `place`; `optimizer` is its group's. Narrower states
// are rounded to nearest. Errors: kNotFound for a name that is none of its
// states (master weights are one), listing them; a count that is not the
// state's; values that are not finite, or are negative where a formula says
// that the state is one of squares (StateKind). REQUIRES: a trainable parameter
// that is not empty.
Status ImportState(const EngineBuffer& buffer, const Optimizer& optimizer,
                   int range, const ParamPlace& place, std::string_view name,
                   const float* values, size_t count, Stream* stream);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_IMPORT_STATE_H_
