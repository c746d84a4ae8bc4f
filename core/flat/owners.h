// SPDX-License-Identifier: Apache-2.0
//
// Who owns which trainable parameter, for the partitions that keep parameters
// whole.

#ifndef SHARD_CORE_FLAT_OWNERS_H_
#define SHARD_CORE_FLAT_OWNERS_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/flat/inventory.h"
#include "core/flat/plan.h"
#include "core/model/model.h"

namespace shard {

// owners[b][i] owns params[i] of inventory.buffers[b]; frozen buffers get an
// empty list. All parameters, of whatever dtype, are one group, in which frozen
// ones count for kGreedy alone.
// REQUIRES: options.partition != kEven, options that Plan::Create checked.
StatusOr<std::vector<std::vector<int32_t>>> ChooseOwners(
    const Model& model, const PlanOptions& options, const Inventory& inventory);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_OWNERS_H_
