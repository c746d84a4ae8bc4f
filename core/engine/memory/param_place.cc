// SPDX-License-Identifier: Apache-2.0

#include "core/engine/memory/param_place.h"

#include <cstddef>

namespace shard {

StatusOr<const ParamPlace*> PlaceOf(const Plan& plan, ParamId param) {
  const auto& places = plan.places();
  if (param < 0 || static_cast<size_t>(param) >= places.size()) {
    return InvalidArgument("parameter ", param,
                           " does not exist; the plan has ", places.size());
  }
  const ParamPlace& place = places[static_cast<size_t>(param)];
  if (place.buffer < 0) {
    return FailedPrecondition("parameter ", param,
                              " is ignored: libshard does not store it");
  }
  return &place;
}

StatusOr<const ParamPlace*> TrainablePlaceOf(const Plan& plan, ParamId param,
                                             std::string_view without) {
  SHARD_ASSIGN_OR_RETURN(const ParamPlace* place, PlaceOf(plan, param));
  if (!plan.buffer(place->buffer).trainable) {
    return FailedPrecondition("parameter ", param, " is frozen: it has no ",
                              without);
  }
  return place;
}

int64_t NumelOf(const Plan& plan, ParamId param) {
  return plan.model().params()[static_cast<size_t>(param)].numel;
}

}  // namespace shard
