// SPDX-License-Identifier: Apache-2.0

#include "core/flat/check_matches_model.h"

#include "core/flat/units.h"
#include "core/model/classes.h"

namespace shard {

Status CheckMatchesModel(const Model& model, const PlanOptions& options) {
  SHARD_RETURN_IF_ERROR(options.wrap.CheckMatches(model, F32Classes(options)));
  if (options.f32_classes.empty()) return Status();
  return ClassSet::Of(model).CheckContains("f32_classes", options.f32_classes);
}

}  // namespace shard
