// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_PARAMS_LOG_WARNINGS_H_
#define SHARD_CORE_ENGINE_PARAMS_LOG_WARNINGS_H_

#include <string>
#include <vector>

#include "core/flat/plan.h"
#include "core/observe/observer.h"

namespace shard {

// Returns the warnings of `plan` that `before` (nullptr for none) does not
// have.
std::vector<std::string> NewWarnings(const Plan& plan, const Plan* before);

// Logs the first eight warnings, because there may be one per unit, and the
// number of the others.
void LogWarnings(const std::vector<std::string>& warnings, Observer* observer);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_LOG_WARNINGS_H_
