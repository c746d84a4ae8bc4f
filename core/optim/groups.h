// SPDX-License-Identifier: Apache-2.0
//
// The param groups of a model, in the form that a plan needs.

#ifndef SHARD_CORE_OPTIM_GROUPS_H_
#define SHARD_CORE_OPTIM_GROUPS_H_

#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/optim/optimizer.h"

namespace shard {

// Returns the plan's options for a group that `optimizer` steps.
GroupOptions PlanGroup(const Optimizer& optimizer);

// Returns the options of every group, by GroupId. `optimizer` is the default
// group's; the text of another group may begin with '?': then it is that
// optimizer with other values. Errors are those of Optimizer::Parse and name
// the group.
StatusOr<std::vector<GroupOptions>> PlanGroups(const Model& model,
                                               std::string_view optimizer);

}  // namespace shard

#endif  // SHARD_CORE_OPTIM_GROUPS_H_
