// SPDX-License-Identifier: Apache-2.0
//
// A small plan with a unit, a tie and a module in a module, and its bytes.

#ifndef SHARD_TESTS_CORE_PLAN_FILE_SMALL_PLAN_H_
#define SHARD_TESTS_CORE_PLAN_FILE_SMALL_PLAN_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "core/flat/plan.h"
#include "core/optim/groups.h"
#include "core/plan_file/plan_file.h"
#include "tests/core/base/expect_status.h"

namespace shard {

// Returns the plan of a model, with plain SGD where `options` have no groups.
inline std::shared_ptr<const Plan> PlanOf(const Model& model,
                                          PlanOptions options) {
  if (options.groups.empty()) options.groups = *PlanGroups(model, "sgd");
  auto plan = Plan::Create(std::make_shared<Model>(model), std::move(options));
  EXPECT_OK(plan);
  return plan.ok() ? *plan : nullptr;
}

// Returns a model with block.weight, block.norm.gain, and head.weight as
// another name of the first.
inline Model SmallModel() {
  Model model("Net");
  const ModuleId block = *model.AddModule(kRootModule, "block", "Block");
  const ModuleId norm = *model.AddModule(block, "norm", "Norm");
  const ModuleId head = *model.AddModule(kRootModule, "head", "Linear");
  EXPECT_OK(model.AddParam(block, "weight", DType::kF32, {4, 6}));
  EXPECT_OK(model.AddParam(norm, "gain", DType::kF32, {6}));
  EXPECT_OK(model.Tie(head, "weight", 0));
  return model;
}

inline PlanOptions SmallOptions() {
  PlanOptions options;
  options.stage = 3;
  options.world_size = 2;
  options.wrap = *WrapPolicy::Parse("class?names=Block");
  return options;
}

inline std::vector<std::byte> SmallFile() {
  auto file = EncodePlan(*PlanOf(SmallModel(), SmallOptions()));
  EXPECT_OK(file);
  return *file;
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_PLAN_FILE_SMALL_PLAN_H_
