// SPDX-License-Identifier: Apache-2.0
//
// Who owns which trainable parameter, where parameters are kept whole.

#ifndef SHARD_CORE_FLAT_OWNERS_H_
#define SHARD_CORE_FLAT_OWNERS_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/flat/inventory.h"
#include "core/flat/plan.h"
#include "core/model/model.h"

namespace shard {

// Whether such parameters have one owner each: trainable ones, in every
// partition but kEven, and where the group's optimizer steps whole parameters.
bool IsOwnedWhole(const PlanOptions& options, bool trainable, GroupId group);

// owners[b][i] owns parameter i of inventory.buffers[b]; a buffer that is not
// owned whole gets an empty list.
//
// kGreedy gives out group after group, as ZeroRedundancyOptimizer does: frozen
// parameters count, and loads carry over. Groups whose optimizer steps whole
// parameters are given out by its costs, also in kEven; their frozen parameters
// have none, and loads in the units of one optimizer are not added to
// another's.
// REQUIRES: options that Plan::Create checked.
StatusOr<std::vector<std::vector<int32_t>>> ChooseOwners(
    const Model& model, const PlanOptions& options, const Inventory& inventory);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_OWNERS_H_
