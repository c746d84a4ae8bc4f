// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "tests/core/base/expect_status.h"

namespace shard::plan_warnings_test {
namespace {

std::vector<std::string> WarningsOf(const std::shared_ptr<Model>& model,
                                    const PlanOptions& options) {
  const auto plan = Plan::Create(model, options);
  EXPECT_OK(plan);
  return plan.ok() ? (*plan)->Warnings() : std::vector<std::string>();
}

// Returns the reference's model: M(S1, S2(SS1, SS2), S3), each with one
// parameter of either kind.
std::shared_ptr<Model> MixedModel() {
  auto model = std::make_shared<Model>();
  const auto add = [&](ModuleId module) {
    EXPECT_OK(model->AddParam(module, "w", DType::kF32, {10}));
    const ParamId frozen = *model->AddParam(module, "f", DType::kF32, {3});
    EXPECT_OK(model->SetTrainable(frozen, false));
  };
  const ModuleId s1 = *model->AddModule(kRootModule, "S1", "");
  const ModuleId s2 = *model->AddModule(kRootModule, "S2", "");
  const ModuleId ss1 = *model->AddModule(s2, "SS1", "");
  const ModuleId ss2 = *model->AddModule(s2, "SS2", "");
  const ModuleId s3 = *model->AddModule(kRootModule, "S3", "");
  for (const ModuleId module : {kRootModule, s1, s2, ss1, ss2, s3}) add(module);
  return model;
}

TEST(PlanWarnings, ListMixedUnitsInPostOrder) {
  const PlanOptions options = {.wrap = *WrapPolicy::Parse("always")};
  const std::vector<std::string> warnings = WarningsOf(MixedModel(), options);
  const std::vector<std::string> order = {"S1", "S2.SS1", "S2.SS2",
                                          "S2", "S3",     "(root)"};
  ASSERT_EQ(warnings.size(), order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(warnings[i].find(StrCat("unit ", order[i], " has frozen and")),
              0u)
        << warnings[i];
  }
}

TEST(PlanWarnings, SayWhatTheMixtureCosts) {
  auto model = std::make_shared<Model>();
  for (int i = 0; i < 5; ++i) {
    const ParamId param =
        *model->AddParam(kRootModule, StrCat("f", i), DType::kBF16, {1000});
    EXPECT_OK(model->SetTrainable(param, false));
  }
  EXPECT_OK(model->AddParam(kRootModule, "w", DType::kBF16, {20}));
  const PlanOptions options = {.world_size = 2};
  // The buffer has 5,000 elements, in two ranges of 2,528.
  EXPECT_EQ(WarningsOf(model, options),
            std::vector<std::string>{
                "unit (root) has frozen and trainable parameters: 5 of 5,000 "
                "elements (f0, f1, f2 and 2 more) are frozen, 1 of 20 elements "
                "(w) are not; one flat buffer for both would have 5,020 "
                "elements of gradients instead of 20; here they have separate "
                "ones, which costs 112 bytes of padding"});
}

// The one unit that is in use has all parameters.
TEST(PlanWarnings, NameStagesThatShardNothing) {
  auto model = std::make_shared<Model>();
  EXPECT_OK(model->AddParam(kRootModule, "w", DType::kF32, {100000}));
  PlanOptions options = {.world_size = 4};
  for (options.stage = 0; options.stage < 2; ++options.stage) {
    EXPECT_TRUE(WarningsOf(model, options).empty());
  }
  options.stage = 2;
  EXPECT_EQ(WarningsOf(model, options),
            std::vector<std::string>{
                "stage 2 keeps gradients whole: with 1 unit and prefetch 1, a "
                "rank's part and the slots of units in use would take no less; "
                "wrap smaller units, or lower prefetch"});
  options.stage = 3;
  ASSERT_EQ(WarningsOf(model, options).size(), 1u);
  EXPECT_NE(WarningsOf(model, options)[0].find("gradients and parameters"),
            std::string::npos);
  // The host asked for whole gradients.
  options.whole_grads = true;
  options.keep_after_forward = true;
  EXPECT_TRUE(WarningsOf(model, options).empty());
  // In shard groups of one rank, each rank is to hold all parameters.
  options.keep_after_forward = false;
  options.shard_group_size = 1;
  EXPECT_TRUE(WarningsOf(model, options).empty());
}

TEST(PlanWarnings, AreNoneWhereUnitsAreUniform) {
  auto model = std::make_shared<Model>();
  const ModuleId adapter = *model->AddModule(kRootModule, "adapter", "LoRA");
  EXPECT_OK(model->AddParam(adapter, "w", DType::kF32, {10}));
  const ParamId frozen = *model->AddParam(kRootModule, "f", DType::kF32, {3});
  EXPECT_OK(model->SetTrainable(frozen, false));
  PlanOptions options;
  EXPECT_EQ(WarningsOf(model, options).size(), 1u);
  options.wrap = *WrapPolicy::Parse("class?names=LoRA");
  EXPECT_TRUE(WarningsOf(model, options).empty());
}

TEST(PlanWarnings, NameModulesThatStayF32) {
  auto model = std::make_shared<Model>();
  for (int i = 0; i < 4; ++i) {
    const ModuleId norm =
        *model->AddModule(kRootModule, StrCat("norm", i), "Norm");
    EXPECT_OK(model->AddParam(norm, "w", DType::kF32, {8}));
  }
  PlanOptions options = {.f32_classes = {"Norm"}};
  EXPECT_TRUE(WarningsOf(model, options).empty());
  options.param_dtype = DType::kBF16;
  EXPECT_EQ(WarningsOf(model, options),
            (std::vector<std::string>{
                "4 modules stay f32 and in units of their own, by f32_classes: "
                "norm0, norm1, norm2 and 1 more"}));
}

}  // namespace
}  // namespace shard::plan_warnings_test
