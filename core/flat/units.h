// SPDX-License-Identifier: Apache-2.0
//
// Decides which modules of a plan become units, and which keep their parameters
// in fp32.

#ifndef SHARD_CORE_FLAT_UNITS_H_
#define SHARD_CORE_FLAT_UNITS_H_

#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/flat/plan.h"
#include "core/model/classes.h"
#include "core/model/model.h"

namespace shard {

// Returns `model` with f32 parameters in options.param_dtype, except those
// whose first name is in a module of f32_classes or below one; `model` itself
// when that changes nothing. REQUIRES: options that Plan::Create checked.
StatusOr<std::shared_ptr<const Model>> WithParamDType(
    std::shared_ptr<const Model> model, const PlanOptions& options);

// Returns the modules that become units beside the root, in module-walk order.
std::vector<ModuleId> ChooseUnits(const Model& model,
                                  const PlanOptions& options);

// Returns the classes whose modules are units because they stay f32. Refers to
// `options`.
ClassSet F32Classes(const PlanOptions& options);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_UNITS_H_
