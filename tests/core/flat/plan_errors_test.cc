// SPDX-License-Identifier: Apache-2.0
//
// Options and models of which no plan can be made: the error names the value or
// the parameter.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/flat/plans.h"

namespace shard::plan_errors_test {
namespace {

using testing::AdamOptions;
using testing::ModelOf;
using testing::Shapes;

TEST(PlanErrors, BadInputsAreNamed) {
  const auto model = ModelOf({{4}});
  const auto with = [&](const std::function<void(PlanOptions*)>& change) {
    PlanOptions options = AdamOptions(1, 2);
    change(&options);
    return Plan::Create(model, options);
  };
  ExpectInvalid(with([](PlanOptions* o) { o->stage = 4; }), {"stage 4"});
  ExpectInvalid(with([](PlanOptions* o) { o->stage = -1; }), {"stage -1"});
  ExpectInvalid(with([](PlanOptions* o) { o->world_size = 0; }),
                {"world_size 0"});
  ExpectInvalid(with([](PlanOptions* o) { o->world_size = 1 << 21; }),
                {"world_size 2097152"});
  ExpectInvalid(
      with([](PlanOptions* o) { o->partition = static_cast<Partition>(9); }),
      {"partition 9"});
  ExpectInvalid(with([](PlanOptions* o) { o->alignment_bytes = 0; }),
                {"alignment_bytes 0"});
  ExpectInvalid(with([](PlanOptions* o) { o->bucket_bytes = -5; }),
                {"bucket_bytes -5"});
  ExpectInvalid(with([](PlanOptions* o) { o->groups[0].optimizer = "\xFF"; }),
                {"optimizer", "UTF-8"});
  ExpectInvalid(
      with([](PlanOptions* o) { o->groups[0].states[1].name = "exp_avg"; }),
      {"'exp_avg'", "twice"});
  ExpectInvalid(with([](PlanOptions* o) { o->groups[0].states[1].name = ""; }),
                {"state 1", "empty"});
  ExpectInvalid(
      with([](PlanOptions* o) { o->groups[0].states[0].name = "\x80"; }),
      {"state 0", "UTF-8"});
  ExpectInvalid(
      with([](PlanOptions* o) { o->groups[0].states[0].name = "a.b"; }),
      {"'a.b'", "'.'"});
  ExpectInvalid(with([](PlanOptions* o) {
                  o->groups[0].states[0].name = std::string(256, 's');
                }),
                {"256 bytes", "255"});
  ExpectInvalid(with([](PlanOptions* o) {
                  o->groups[0].states[0].dtype = static_cast<DType>(0);
                }),
                {"'exp_avg'", "q8"});
  ExpectInvalid(with([](PlanOptions* o) { o->groups.resize(3); }),
                {"3 param groups", "model has 1"});
  ExpectInvalid(
      with([](PlanOptions* o) { o->masters = static_cast<Masters>(7); }),
      {"masters 7"});
  ExpectInvalid(Plan::Create(nullptr, AdamOptions(1, 1)), {"no model"});
  ExpectInvalid(Plan::Create(std::make_shared<Model>(), AdamOptions(1, 1)),
                {"no parameters"});
  auto ignored = ModelOf({{1}, {2}});
  EXPECT_OK(ignored->IgnoreModule(kRootModule));
  ExpectInvalid(Plan::Create(ignored, AdamOptions(1, 1)), {"all 2"});
}

TEST(PlanErrors, SizesBeyondInt64AreErrors) {
  constexpr int64_t kBig = int64_t{1} << 60;
  const auto large = ModelOf({{kBig}, {kBig}});
  ExpectInvalid(Plan::Create(large, AdamOptions(1, 1)), {"2^53 elements"});
  const auto many = ModelOf(Shapes(9, {kBig}));
  for (const Partition partition : {Partition::kEven, Partition::kGreedy,
                                    Partition::kBucket, Partition::kManual}) {
    PlanOptions options = AdamOptions(1, 4);
    options.partition = partition;
    options.manual_owners.assign(9, 0);
    // In the even partition every parameter has a buffer of its own.
    const bool one_buffer = partition != Partition::kEven;
    ExpectInvalid(Plan::Create(many, options),
                  {one_buffer ? "2^63-1" : "2^53"});
  }
  PlanOptions options = AdamOptions(1, 2);
  options.alignment_bytes = std::numeric_limits<int64_t>::max();
  ExpectInvalid(Plan::Create(ModelOf({{4}}), options), {"aligned"});
}

// Adds a parameter with a module for each component before the last.
ParamId AddPath(Model* model, std::string_view fqn) {
  ModuleId at = kRootModule;
  const std::vector<std::string_view> path = Split(fqn, '.');
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    ModuleId next = -1;
    for (const ModuleId child :
         model->modules()[static_cast<size_t>(at)].children) {
      if (model->modules()[static_cast<size_t>(child)].name == path[i]) {
        next = child;
      }
    }
    at = next < 0 ? *model->AddModule(at, path[i], "") : next;
  }
  return *model->AddParam(at, path.back(), DType::kF32, {8});
}

std::shared_ptr<Model> ModelOfNames(const std::vector<std::string>& fqns) {
  auto model = std::make_shared<Model>();
  for (const std::string& fqn : fqns) AddPath(model.get(), fqn);
  return model;
}

TEST(PlanErrors, KeysThatCollideAreNamed) {
  const PlanOptions options = AdamOptions(1, 2);
  const std::vector<std::vector<std::string>> collide = {
      {"w", "_orig_mod.w"},
      {"a._checkpoint_wrapped_module.w", "a._fpw_module.w"},
      {"w", "state.w.exp_avg"},
      {"w", "_orig_mod.state.w.exp_avg_sq"},
      {"w", "state.w.exp_avg.q8_scale"},
      {"w", "state.w.step"},
      {"w", "state.w.master_param"},
      {"_orig_mod.w", "param_groups.w.lr"},
  };
  for (const auto& fqns : collide) {
    ExpectInvalid(Plan::Create(ModelOfNames(fqns), options),
                  {"'" + fqns[0] + "'", "'" + fqns[1] + "'", "key", "rename"});
    // Either parameter alone collides with nothing, and neither does one whose
    // partner is ignored.
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_OK(Plan::Create(ModelOfNames({fqns[i], "x"}), options));
      auto ignoring = ModelOfNames(fqns);
      ASSERT_OK(ignoring->IgnoreParam(static_cast<ParamId>(i)));
      EXPECT_OK(Plan::Create(ignoring, options));
    }
  }
  // The second name of a tied parameter collides.
  auto tied = ModelOfNames({"w", "state.w.v"});
  const ModuleId module = tied->references()[1].module;
  ASSERT_OK(tied->Tie(module, "exp_avg", 1));
  ExpectInvalid(Plan::Create(tied, options), {"'state.w.exp_avg'", "'w'"});
}

// Keys of numbers are named whatever the other keys are, also for a parameter
// that has no steps.
TEST(PlanErrors, KeysOfTheRunsNumbersAreNamed) {
  const PlanOptions options = AdamOptions(1, 2);
  for (const std::string fqn :
       {"loss_scale.scale", "loss_scale.good_steps",
        "_orig_mod.loss_scale.scale", "loss_scale._fpw_module.good_steps"}) {
    auto model = ModelOfNames({fqn, "w"});
    ExpectInvalid(Plan::Create(model, options),
                  {"'" + fqn + "'", "number of the run", "rename"});
    ASSERT_OK(model->SetTrainable(0, false));
    ExpectInvalid(Plan::Create(model, options), {"'" + fqn + "'"});
    ASSERT_OK(model->IgnoreParam(0));
    EXPECT_OK(Plan::Create(model, options));
  }
}

TEST(PlanErrors, KeysThatOnlyLookAlikeAreFine) {
  const PlanOptions options = AdamOptions(1, 2);
  for (const auto& fqns :
       std::vector<std::vector<std::string>>{{"w", "state.v.exp_avg"},
                                             {"w", "state.w.momentum"},
                                             {"w", "state"},
                                             {"a.w", "state.exp_avg"},
                                             {"w", "x.state.w.exp_avg"},
                                             {"w", "_orig_mod"},
                                             {"w", "loss_scale"},
                                             {"x.loss_scale.scale", "w"},
                                             {"loss_scale.steps", "loss.scale"},
                                             {"state.w", "param_groups.v"}}) {
    EXPECT_OK(Plan::Create(ModelOfNames(fqns), options));
  }
  // A frozen parameter has no states, so nothing collides.
  auto frozen = ModelOfNames({"w", "state.w.exp_avg"});
  ASSERT_OK(frozen->SetTrainable(0, false));
  EXPECT_OK(Plan::Create(frozen, options));
}

}  // namespace
}  // namespace shard::plan_errors_test
