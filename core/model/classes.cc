// SPDX-License-Identifier: Apache-2.0

#include "core/model/classes.h"

#include <algorithm>
#include <set>

namespace shard {

ClassSet::ClassSet(const std::vector<std::string>& names)
    : sorted_(names.begin(), names.end()) {
  std::sort(sorted_.begin(), sorted_.end());
}

bool ClassSet::Contains(std::string_view name) const {
  return std::binary_search(sorted_.begin(), sorted_.end(), name);
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
