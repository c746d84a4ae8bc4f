// SPDX-License-Identifier: Apache-2.0
//
// What Plan::Create refuses. Errors carry the value and the remedy.

#ifndef SHARD_CORE_FLAT_PLAN_CHECKS_H_
#define SHARD_CORE_FLAT_PLAN_CHECKS_H_

#include <cstddef>
#include <vector>

#include "core/base/status.h"
#include "core/flat/inventory.h"
#include "core/flat/plan.h"
#include "core/model/model.h"

namespace shard {

// All but `groups` and `manual_owners`.
Status CheckOptions(const PlanOptions& options);

// `expected`: how many groups the model has.
Status CheckGroups(const std::vector<GroupOptions>& groups, size_t expected);

// That no two tensors have the same key in state dicts and on disk, under any
// of their names, and no tensor that of a number.
Status CheckKeys(const Model& model, const PlanOptions& options);

// That every optimizer can step what it is given.
Status CheckSteps(const Model& model, const PlanOptions& options,
                  const Inventory& inventory);

Status CheckManualOwners(const Model& model, const PlanOptions& options,
                         const Inventory& inventory);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_PLAN_CHECKS_H_
