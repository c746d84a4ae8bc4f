// SPDX-License-Identifier: Apache-2.0

#include "core/optim/groups.h"

#include <cstddef>
#include <string>
#include <utility>

#include "core/base/strings.h"

namespace shard {

GroupOptions PlanGroup(const Optimizer& optimizer) {
  GroupOptions options;
  options.optimizer = optimizer.ToString();
  for (const std::string& name : optimizer.state_names()) {
    options.states.push_back({name, optimizer.state_dtype()});
  }
  options.tensor = optimizer.tensor();
  return options;
}

StatusOr<std::vector<GroupOptions>> PlanGroups(const Model& model,
                                               std::string_view optimizer) {
  SHARD_ASSIGN_OR_RETURN(const Optimizer base, Optimizer::Parse(optimizer));
  std::vector<GroupOptions> groups = {PlanGroup(base)};
  for (size_t g = 1; g < model.groups().size(); ++g) {
    const auto parsed = Optimizer::Parse(model.groups()[g].optimizer, &base);
    if (!parsed.ok()) {
      return parsed.status().WithContext(StrCat("param group ", g));
    }
    groups.push_back(PlanGroup(*parsed));
  }
  return groups;
}

}  // namespace shard
