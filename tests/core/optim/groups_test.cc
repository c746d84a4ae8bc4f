// SPDX-License-Identifier: Apache-2.0

#include "core/optim/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/optim/optimizer.h"
#include "core/optim/workspace.h"
#include "kernels/formula/all.h"
#include "tests/core/base/expect_status.h"

namespace shard::groups_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Returns a model with one parameter in each group; the first is in the default
// group.
std::shared_ptr<Model> ModelOf(const std::vector<std::string>& groups) {
  auto model = std::make_shared<Model>("Test");
  EXPECT_OK(model->AddParam(kRootModule, "p", DType::kF32, {4, 3}));
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto param =
        model->AddParam(kRootModule, StrCat("q", g), DType::kF32, {4, 3});
    EXPECT_OK(param);
    EXPECT_OK(model->AddParamGroup(groups[g], std::vector{*param}));
  }
  return model;
}

StatusOr<std::vector<GroupOptions>> Groups(
    const std::string& optimizer, const std::vector<std::string>& groups) {
  return PlanGroups(*ModelOf(groups), optimizer);
}

// Returns the canonical text of one group after the default group.
std::string TextOf(const std::string& optimizer, const std::string& group) {
  const auto groups = Groups(optimizer, {group});
  EXPECT_OK(groups);
  return groups.ok() ? (*groups)[1].optimizer : "";
}

std::string Canonical(const std::string& text) {
  const auto optimizer = Optimizer::Parse(text);
  EXPECT_OK(optimizer);
  return optimizer.ok() ? optimizer->ToString() : "";
}

// Returns the states of a group as "exp_avg q8, exp_avg_sq q8".
std::string StatesOf(const GroupOptions& group) {
  std::string text;
  for (const StateTensor& state : group.states) {
    StrAppend(&text, text.empty() ? "" : ", ", state.name, " ",
              DTypeName(state.dtype));
  }
  return text;
}

TEST(PlanGroupsTest, GroupsAreInTheModelsOrder) {
  const auto groups = Groups("lion", {"sgd", "adam", "rprop"});
  ASSERT_OK(groups);
  std::vector<std::string> texts;
  for (const GroupOptions& group : *groups) texts.push_back(group.optimizer);
  EXPECT_THAT(texts, ElementsAre(Canonical("lion"), Canonical("sgd"),
                                 Canonical("adam"), Canonical("rprop")));
}

TEST(PlanGroupsTest, StatesAreTheOptimizersInTheirDType) {
  const auto groups =
      Groups("adamw?states=q8", {"adam?states=bf16&amsgrad=1", "adamw", "sgd",
                                 "sgd?momentum=0.9", "adafactor"});
  ASSERT_OK(groups);
  EXPECT_EQ(StatesOf((*groups)[0]), "exp_avg q8, exp_avg_sq q8");
  EXPECT_EQ(StatesOf((*groups)[1]),
            "exp_avg bf16, exp_avg_sq bf16, max_exp_avg_sq bf16");
  EXPECT_EQ(StatesOf((*groups)[2]), "exp_avg f32, exp_avg_sq f32");
  EXPECT_THAT((*groups)[3].states, IsEmpty());
  EXPECT_EQ(StatesOf((*groups)[4]), "momentum_buffer f32");
  EXPECT_EQ(StatesOf((*groups)[5]), "row_var f32, col_var f32, variance f32");
}

template <class F>
void ExpectTraits(const GroupOptions& group, Formula formula) {
  ASSERT_NE(group.tensor, nullptr) << F::kName;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{7, 30}, {30, 7}, {40, 50}}) {
    const int64_t* const data = shape.data();
    EXPECT_EQ(group.tensor->shape_error(data, 2), nullptr);
    EXPECT_EQ(group.tensor->cost(data, 2), F::Cost(data, 2));
    EXPECT_EQ(group.tensor->workspace_numel(data, 2),
              WorkspaceNumel(formula, data, 2));
    EXPECT_EQ(group.tensor->gpu_workspace_numel(data, 2, 5),
              GpuWorkspaceNumel(formula, data, 2, 5));
    for (int s = 0; s < F::kNumStates; ++s) {
      EXPECT_EQ(group.tensor->state_numel(s, data, 2),
                F::StateNumel(s, data, 2));
    }
  }
}

TEST(PlanGroupsTest, OptimizersOfWholeParametersBringTheirTraits) {
  const auto groups = Groups("muon", {"lamb", "adafactor", "adamw", "sgd"});
  ASSERT_OK(groups);
  ExpectTraits<Muon>((*groups)[0], Formula::kMuon);
  ExpectTraits<Lamb>((*groups)[1], Formula::kLamb);
  ExpectTraits<Adafactor>((*groups)[2], Formula::kAdafactor);
  EXPECT_EQ((*groups)[3].tensor, nullptr);
  EXPECT_EQ((*groups)[4].tensor, nullptr);
  const int64_t vector[] = {768};
  EXPECT_THAT((*groups)[0].tensor->shape_error(vector, 1),
              HasSubstr("a matrix"));
  EXPECT_EQ((*groups)[1].tensor->shape_error(vector, 1), nullptr);
}

TEST(PlanGroupsTest, WithoutATextAGroupIsTheDefaultGroup) {
  for (const char* optimizer :
       {"", "adamw?lr=0.5&states=q8", "sgd?momentum=0.5&nesterov=1",
        "muon?lr=0.25&adjust_lr_fn=match_rms_adamw"}) {
    EXPECT_EQ(TextOf(optimizer, ""), Canonical(optimizer));
    EXPECT_EQ(TextOf(optimizer, "?"), Canonical(optimizer));
  }
}

// The default group has numbers, flags and choices; the groups name other
// values or none.
TEST(PlanGroupsTest, AGroupInheritsWhatItsTextDoesNotSay) {
  EXPECT_EQ(TextOf("adamw?lr=0.5&beta1=0.25", "?weight_decay=0"),
            Canonical("adamw?lr=0.5&beta1=0.25&weight_decay=0"));
  EXPECT_EQ(TextOf("adamw?lr=0.5", "?lr=0.125"), Canonical("adamw?lr=0.125"));
  EXPECT_EQ(TextOf("adamw?amsgrad=1&maximize=1", "?maximize=0"),
            Canonical("adamw?amsgrad=1"));
  EXPECT_EQ(TextOf("adamw?states=q8&profile=apex", "?lr=0.5"),
            Canonical("adamw?lr=0.5&profile=apex&states=q8"));
  EXPECT_EQ(TextOf("adamw?states=q8", "?states=bf16&lr=0.5"),
            Canonical("adamw?lr=0.5&states=bf16"));
  EXPECT_EQ(TextOf("adamw?states=q8", "?states=f32"), Canonical("adamw"));
  EXPECT_EQ(TextOf("muon?adjust_lr_fn=match_rms_adamw&ns_steps=7", "?lr=0.5"),
            Canonical("muon?lr=0.5&ns_steps=7&adjust_lr_fn=match_rms_adamw"));
  EXPECT_EQ(
      TextOf("muon?adjust_lr_fn=match_rms_adamw", "?adjust_lr_fn=original"),
      Canonical("muon"));
}

TEST(PlanGroupsTest, StatesFollowWhatWasInherited) {
  auto groups = Groups("adamw?states=q8",
                       {"?lr=0.5", "?amsgrad=1", "?states=f32", "adamw"});
  ASSERT_OK(groups);
  EXPECT_EQ(StatesOf((*groups)[1]), "exp_avg q8, exp_avg_sq q8");
  EXPECT_EQ(StatesOf((*groups)[2]),
            "exp_avg q8, exp_avg_sq q8, max_exp_avg_sq q8");
  EXPECT_EQ(StatesOf((*groups)[3]), "exp_avg f32, exp_avg_sq f32");
  // A text that begins with a name inherits nothing.
  EXPECT_EQ(StatesOf((*groups)[4]), "exp_avg f32, exp_avg_sq f32");

  groups = Groups("sgd?momentum=0.9", {"?momentum=0"});
  ASSERT_OK(groups);
  EXPECT_EQ(StatesOf((*groups)[0]), "momentum_buffer f32");
  EXPECT_EQ(StatesOf((*groups)[1]), "");
}

TEST(PlanGroupsTest, ANamedOptimizerInheritsNothing) {
  EXPECT_EQ(TextOf("adamw?lr=0.5&states=q8", "adamw?beta1=0.5"),
            Canonical("adamw?beta1=0.5"));
  EXPECT_EQ(TextOf("adamw?lr=0.5", "adam"), Canonical("adam"));
}

// A group inherits from the default group, and not from the group before it.
TEST(PlanGroupsTest, GroupsDoNotInheritFromOneAnother) {
  const auto groups = Groups("sgd?lr=0.5", {"?lr=0.25", "?momentum=0.5"});
  ASSERT_OK(groups);
  EXPECT_EQ((*groups)[2].optimizer, Canonical("sgd?lr=0.5&momentum=0.5"));
}

TEST(PlanGroupsTest, ErrorsNameTheGroup) {
  const auto status = [](const std::string& optimizer,
                         const std::string& group) {
    return Groups(optimizer, {"", group}).status();
  };
  ExpectInvalid(status("sgd", "sgdd"),
                {"param group 2", "'sgdd'", "known: ", "adamw"});
  ExpectInvalid(status("sgd", "?beta1=0.5"),
                {"param group 2", "'beta1'", "momentum"});
  ExpectInvalid(status("sgd", "?lr=-1"),
                {"param group 2", "lr=-1", "at least 0"});
  ExpectInvalid(status("adamw", "?amsgrad=2"),
                {"param group 2", "amsgrad=2", "0 or 1"});
  ExpectInvalid(status("adamw", "?states=q4"),
                {"param group 2", "states='q4'", "f32, bf16, q8"});
  ExpectInvalid(status("muon", "?adjust_lr_fn=none"),
                {"param group 2", "adjust_lr_fn='none'", "match_rms_adamw"});
  ExpectInvalid(status("muon", "?ns_steps=1.5"), {"param group 2", "ns_steps"});
  // These are wrong only together with the values that they inherit.
  ExpectInvalid(status("adamw?amsgrad=1", "?profile=apex"),
                {"param group 2", "amsgrad=1", "profile=torch"});
}

TEST(PlanGroupsTest, AnErrorOfTheDefaultGroupNamesNone) {
  for (const char* wrong : {"sgdd", "?lr=1", "sgd?lr=-1"}) {
    const Status status = Groups(wrong, {"sgd"}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(status.message(), Not(HasSubstr("param group")));
  }
}

}  // namespace
}  // namespace shard::groups_test
