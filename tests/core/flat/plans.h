// SPDX-License-Identifier: Apache-2.0
//
// Small models and their plans, for the tests of plans.

#ifndef SHARD_TESTS_CORE_FLAT_PLANS_H_
#define SHARD_TESTS_CORE_FLAT_PLANS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "tests/core/base/expect_status.h"

namespace shard::testing {

using Shapes = std::vector<std::vector<int64_t>>;

// Returns a model of the parameters p0, p1, ... of these shapes.
inline std::shared_ptr<Model> ModelOf(const Shapes& shapes,
                                      DType dtype = DType::kF32) {
  auto model = std::make_shared<Model>();
  for (size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_OK(model->AddParam(kRootModule, StrCat("p", i), dtype, shapes[i]));
  }
  return model;
}

// Returns the plan, or null after a failure of the test.
inline std::shared_ptr<const Plan> MakePlan(std::shared_ptr<const Model> model,
                                            PlanOptions options) {
  auto plan = Plan::Create(std::move(model), std::move(options));
  EXPECT_OK(plan);
  return plan.ok() ? *plan : nullptr;
}

inline PlanOptions AdamOptions(int stage, int world_size) {
  return {
      .stage = stage,
      .world_size = world_size,
      .groups = {{"adamw?lr=0.001",
                  {{"exp_avg", DType::kF32}, {"exp_avg_sq", DType::kF32}}}}};
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_FLAT_PLANS_H_
