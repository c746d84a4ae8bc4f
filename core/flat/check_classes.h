// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_FLAT_CHECK_CLASSES_H_
#define SHARD_CORE_FLAT_CHECK_CLASSES_H_

#include "core/base/status.h"
#include "core/flat/plan.h"
#include "core/model/model.h"

namespace shard {

// Checks what a host's options say of the model: it has the classes of
// f32_classes, and each wrap policy matches something in it. Options that do
// not were mistyped, but make a plan all the same: Plan::Create accepts them.
Status CheckClasses(const Model& model, const PlanOptions& options);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_CHECK_CLASSES_H_
