// SPDX-License-Identifier: Apache-2.0
//
// Lookup of parameters by ids that a host gives, which may be wrong.

#ifndef SHARD_CORE_ENGINE_MEMORY_PARAM_PLACE_H_
#define SHARD_CORE_ENGINE_MEMORY_PARAM_PLACE_H_

#include <cstdint>
#include <string_view>

#include "core/base/status.h"
#include "core/flat/plan.h"

namespace shard {

// Returns the place of a parameter in the plan's buffers. Errors: an id that
// does not exist, and an ignored parameter.
StatusOr<const ParamPlace*> PlaceOf(const Plan& plan, ParamId param);

// Returns the place of a trainable parameter. The error for a frozen one says
// that the parameter has no `without`.
StatusOr<const ParamPlace*> TrainablePlaceOf(const Plan& plan, ParamId param,
                                             std::string_view without);

// Returns the number of a parameter's elements. REQUIRES: a parameter of the
// plan.
int64_t NumelOf(const Plan& plan, ParamId param);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_MEMORY_PARAM_PLACE_H_
