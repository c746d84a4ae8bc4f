// SPDX-License-Identifier: Apache-2.0
//
// The checks of Plan::Create. Errors carry the value and the remedy.

#ifndef SHARD_CORE_FLAT_PLAN_CHECKS_H_
#define SHARD_CORE_FLAT_PLAN_CHECKS_H_

#include <cstddef>
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
