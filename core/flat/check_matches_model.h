// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_FLAT_CHECK_MATCHES_MODEL_H_
#define SHARD_CORE_FLAT_CHECK_MATCHES_MODEL_H_

#include "core/base/status.h"
#include "core/flat/plan.h"
#include "core/model/model.h"

namespace shard {

// Checks that `model` has a module of every class in f32_classes and in the
// wrap policies of `options`, and that policies by size select modules. Returns
// kInvalidArgument, with the class or the policy, for those that select
// nothing: they were mistyped. Plan::Create accepts such options, because a
// plan can be made of them.
Status CheckMatchesModel(const Model& model, const PlanOptions& options);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_CHECK_MATCHES_MODEL_H_
