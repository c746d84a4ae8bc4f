// SPDX-License-Identifier: Apache-2.0
//
// Chooses the owner of each trainable parameter that is kept whole.

#ifndef SHARD_CORE_FLAT_OWNERS_H_
#define SHARD_CORE_FLAT_OWNERS_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/flat/inventory.h"
#include "core/flat/plan.h"
#include "core/model/model.h"

namespace shard {

// Returns true when such parameters have one owner each: trainable ones, in
// every partition but kEven, and where the group's optimizer steps whole
// parameters.
bool IsOwnedWhole(const PlanOptions& options, bool trainable, GroupId group);

// Returns the owners of the parameters of all buffers, one buffer after the
// other; 0 in a buffer that is not owned whole. Empty when no buffer is.
//
// kGreedy assigns group after group, as ZeroRedundancyOptimizer does: frozen
// parameters count, and loads carry over. Groups whose optimizer steps whole
// parameters are assigned by its costs, also in kEven; their frozen parameters
// cost nothing, and loads in the cost units of one optimizer are not added to
// those of another. REQUIRES: options that Plan::Create checked.
StatusOr<std::vector<int32_t>> ChooseOwners(const Model& model,
                                            const PlanOptions& options,
                                            const Inventory& inventory);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_OWNERS_H_
