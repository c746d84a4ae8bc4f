// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_FLAT_KEPT_WHOLE_H_
#define SHARD_CORE_FLAT_KEPT_WHOLE_H_

#include <string>

#include "core/flat/plan.h"

namespace shard {

// Returns the tensors that the stage would shard and the plan keeps whole, with
// the reason and the remedy; "" when there are none. One rank has nothing to
// shard.
std::string KeptWhole(const Plan& plan);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_KEPT_WHOLE_H_
