// SPDX-License-Identifier: Apache-2.0

#include "core/model/classes.h"

#include <algorithm>
#include <set>

#include "core/model/names.h"

namespace shard {

ClassSet::ClassSet(const std::vector<std::string>& names)
    : sorted_(names.begin(), names.end()) {
  std::sort(sorted_.begin(), sorted_.end());
}

bool ClassSet::Contains(std::string_view name) const {
  return std::binary_search(sorted_.begin(), sorted_.end(), name);
}

Status ClassSet::CheckContains(std::string_view option,
                               const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    if (Contains(name)) continue;
    return InvalidArgument(option, " names ", QuoteName(name),
                           ", but no module is of this class");
  }
  return Status();
}

ClassSet ClassSet::Of(const Model& model) {
  std::set<std::string_view> names;
  for (const Model::Module& module : model.modules()) {
    names.insert(module.class_name);
  }
  ClassSet classes;
  classes.sorted_.assign(names.begin(), names.end());
  return classes;
}

}  // namespace shard
