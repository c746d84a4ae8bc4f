// SPDX-License-Identifier: Apache-2.0
//
// The checks of Plan::Create. Errors carry the value and the remedy.

#ifndef SHARD_CORE_FLAT_PLAN_CHECKS_H_
#define SHARD_CORE_FLAT_PLAN_CHECKS_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/flat/inventory.h"
#include "core/flat/plan.h"
#include "core/model/model.h"

namespace shard {

// Checks all options but `groups` and `manual_owners`.
Status CheckOptions(const PlanOptions& options);

// Checks the groups' options. `expected` is the number of groups of the model.
Status CheckGroups(const std::vector<GroupOptions>& groups, size_t expected);

// Returns true for the name of a module below which a key may differ from the
// FQN, or below which a key may begin as those that libshard adds. Where no
// module has such a name no two keys are equal, because the FQNs of a model
// differ.
bool KeysMayCollide(std::string_view module_name);

// Checks that all keys in state dicts and on disk are unique: no two tensors
// have the same key under any of their names, and no tensor has that of a
// number.
Status CheckKeys(const Model& model, const PlanOptions& options);

// Checks that every optimizer can step its parameters.
Status CheckSteps(const Model& model, const PlanOptions& options,
                  const Inventory& inventory);

Status CheckManualOwners(const Model& model, const PlanOptions& options,
                         const Inventory& inventory);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_PLAN_CHECKS_H_
