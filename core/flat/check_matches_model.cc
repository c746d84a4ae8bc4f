// SPDX-License-Identifier: Apache-2.0

#include "core/flat/check_matches_model.h"

#include <string>

#include "core/flat/units.h"
#include "core/model/classes.h"
#include "core/model/names.h"

namespace shard {

Status CheckMatchesModel(const Model& model, const PlanOptions& options) {
  SHARD_RETURN_IF_ERROR(options.wrap.CheckMatches(model, F32Classes(options)));
  if (options.f32_classes.empty()) return Status();
  const ClassSet classes = ClassSet::Of(model);
  for (const std::string& name : options.f32_classes) {
    if (classes.Contains(name)) continue;
    return InvalidArgument("f32_classes names ", QuoteName(name),
                           ", but no module is of this class");
  }
  return Status();
}

}  // namespace shard
