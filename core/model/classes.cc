// SPDX-License-Identifier: Apache-2.0

#include "core/model/classes.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/spec.h"
#include "core/base/strings.h"

namespace shard {

ClassSet::ClassSet(const std::vector<std::string>& names)
    : sorted_(names.begin(), names.end()) {
  std::sort(sorted_.begin(), sorted_.end());
}

bool ClassSet::Contains(std::string_view name) const {
  return std::binary_search(sorted_.begin(), sorted_.end(), name);
}

bool HasClass(const Model& model, std::string_view class_name) {
  return std::any_of(model.modules().begin(), model.modules().end(),
                     [class_name](const Model::Module& module) {
                       return module.class_name == class_name;
                     });
}

Status CheckWrapClasses(const Model& model, std::string_view wrap) {
  if (wrap.empty()) return Status();
  for (const std::string_view policy : Split(wrap, '|')) {
    SHARD_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(policy));
    if (spec.name() != "class") continue;
    const std::string names = spec.TakeString("names", "");
    const std::vector<std::string_view> classes = Split(names, ',');
    const bool any = std::any_of(
        classes.begin(), classes.end(),
        [&model](std::string_view name) { return HasClass(model, name); });
    if (any) continue;
    return InvalidArgument("wrap policy '", policy,
                           "' matches nothing: no module is of class '", names,
                           "'");
  }
  return Status();
}

}  // namespace shard
