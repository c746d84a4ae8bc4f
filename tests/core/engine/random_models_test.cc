// SPDX-License-Identifier: Apache-2.0
//
// Random models, plans and engines against a reference on one rank in double.
// SHARD_TEST_LONG runs 5,000; SHARD_TEST_SEED=N runs one alone, the
// number that a failure prints.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/dice.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/exact_training.h"

namespace shard {
namespace {

using testing::Dice;

struct Case {
  std::shared_ptr<Model> model;
  std::string optimizer;
  std::string wrap;
  ExactTraining training;
  std::string text;
};

void Check(const Status& status) {
  EXPECT_TRUE(status.ok()) << status.ToString();
}

DType RandomDType(Dice* dice) {
  return dice->Pick<DType>(
      {DType::kF32, DType::kF32, DType::kBF16, DType::kF16});
}

// Returns a random shape. In large models units have several pages, so that
// sharding saves more than its slots take.
std::vector<int64_t> RandomShape(bool large, Dice* dice) {
  switch (dice->Roll(large ? 16 : 8)) {
    case 0:
      return {};
    case 1:
      return {0};
    case 2:
      return {dice->Roll(4) + 1};
    case 3:
      return {3, dice->Roll(9) + 1, 2};
    default:
      return large ? std::vector<int64_t>{dice->Roll(20) + 60, 100}
                   : std::vector<int64_t>{dice->Roll(30) + 1};
  }
}

std::shared_ptr<Model> RandomModel(bool large, Dice* dice) {
  auto model = std::make_shared<Model>("Root");
  // Adds a parameter that is stored and trained in any case.
  const std::vector<int64_t> base = {large ? 2000 : 7};
  ParamId params = 1 + *model->AddParam(kRootModule, "base", DType::kF32, base);
  std::vector<ModuleId> modules = {kRootModule};
  const int count = large ? 7 + dice->Roll(6) : dice->Roll(7);
  // Each dtype of a unit takes pages of its own, so most parameters have one
  // dtype.
  const DType common = RandomDType(dice);
  const int uncommon = dice->Pick<int>({0, 0, 10, 60});
  for (int m = 0; m < count; ++m) {
    // Prefers flat models to deep ones, because units of one depth share slots.
    const ModuleId parent =
        dice->Chance(large ? 85 : 50) ? kRootModule : dice->Pick(modules);
    const ModuleId module = *model->AddModule(
        parent, StrCat("m", m), dice->Pick<std::string>({"A", "A", "B", "C"}));
    modules.push_back(module);
    if (dice->Chance(4)) Check(model->IgnoreModule(module));
    const DType dtype = dice->Chance(uncommon) ? RandomDType(dice) : common;
    for (int p = large ? dice->Pick<int>({0, 1, 1, 1}) : dice->Roll(4); p >= 0;
         --p) {
      const ParamId param = *model->AddParam(
          module, StrCat("p", p),
          dice->Chance(uncommon / 3) ? RandomDType(dice) : dtype,
          RandomShape(large, dice));
      if (dice->Chance(12)) Check(model->SetTrainable(param, false));
      if (dice->Chance(6)) Check(model->IgnoreParam(param));
      params = param + 1;
    }
    if (dice->Chance(20)) {
      Check(
          model->Tie(dice->Pick(modules), StrCat("t", m), dice->Roll(params)));
    }
  }
  for (int g = dice->Roll(3); g > 0; --g) {
    std::vector<ParamId> members;
    for (ParamId p = 0; p < params; ++p) {
      const auto& param = model->params()[static_cast<size_t>(p)];
      if (param.group == kDefaultGroup && dice->Chance(30)) {
        members.push_back(p);
      }
    }
    if (members.empty()) continue;
    const auto text = dice->Pick<std::string>(
        {"?lr=0.02", "sgd?lr=0.05&momentum=0.9&weight_decay=0.01",
         "adam?lr=0.03", "adamw?lr=0.02&beta1=0.5"});
    Check(model->AddParamGroup(text, members).status());
  }
  return model;
}

Case RandomCase(uint64_t seed) {
  Dice dice(seed);
  Case made;
  const bool large = dice.Chance(70);
  made.model = RandomModel(large, &dice);
  made.optimizer =
      dice.Pick<std::string>({"adamw?lr=0.02&weight_decay=0.1", "adam?lr=0.02",
                              "sgd?lr=0.1&momentum=0.9", "sgd?lr=0.1"});
  made.wrap = dice.Pick<std::string>(
      {"always", "always", "always", "class?names=A,B", "",
       large ? "size?min_numel=3000" : "size?min_numel=20"});

  PlanOptions plan;
  plan.stage = dice.Pick<int>({0, 1, 2, 3, 3, 3});
  plan.world_size = dice.Pick<int>({1, 2, 2, 3, 3, 4, 4, 5});
  plan.partition =
      dice.Pick<Partition>({Partition::kEven, Partition::kEven,
                            Partition::kGreedy, Partition::kBucket});
  plan.bucket_bytes = large ? 20000 : 200;
  plan.shard_buckets = dice.Chance(50);
  plan.buffer_bytes = dice.Pick<int64_t>({large ? 12000 : 64, 25 << 20});
  plan.prefetch = dice.Pick<int>({0, 0, 1, 1, 2, 3});
  const std::vector<int> divisors = {0, 1, plan.world_size,
                                     plan.world_size % 2 == 0 ? 2 : 0};
  plan.shard_group_size = dice.Pick(divisors);
  plan.whole_grads = dice.Chance(15);
  plan.f32_grads = dice.Chance(25);
  plan.deterministic = dice.Chance(25);
  if (dice.Chance(15)) {
    plan.param_dtype = dice.Pick<DType>({DType::kBF16, DType::kF16});
    if (dice.Chance(50)) plan.f32_classes = {"C"};
  }
  plan.groups = *PlanGroups(*made.model, made.optimizer);
  plan.wrap = *WrapPolicy::Parse(made.wrap);

  ExactTraining& training = made.training;
  auto planned = Plan::Create(made.model, plan);
  EXPECT_TRUE(planned.ok()) << planned.status().ToString();
  if (!planned.ok()) return made;
  training.plan = *planned;
  training.link = dice.Chance(60) ? "direct=0" : "";
  training.passes = 1 + dice.Roll(2);
  if (plan.deterministic && training.plan->shards_grads()) training.passes = 1;
  training.nested = dice.Chance(50);
  training.per_param = dice.Chance(30);
  training.engine.overlap = dice.Chance(40);
  training.engine.device =
      dice.Chance(30) ? StrCat("cpu-async?max_delay=0.00005&seed=", seed,
                               dice.Chance(70) ? "&host=async" : "")
                      : "cpu";
  training.step.max_grad_norm = dice.Pick<double>({0, 0, 0.5, 5});
  training.step.skip_nonfinite = dice.Chance(20);
  made.text = StrCat(
      made.training.plan->Summary(), "; shards_grads ",
      training.plan->shards_grads() ? 1 : 0, ", shards_params ",
      training.plan->shards_params() ? 1 : 0, ", wrap '", made.wrap,
      "', prefetch ", plan.prefetch, ", groups of ", plan.shard_group_size,
      ", whole_grads ", plan.whole_grads ? 1 : 0, ", f32_grads ",
      plan.f32_grads ? 1 : 0, ", deterministic ", plan.deterministic ? 1 : 0,
      ", link '", training.link, "', passes ", training.passes, ", nested ",
      training.nested ? 1 : 0, ", per_param ", training.per_param ? 1 : 0,
      ", overlap ", training.engine.overlap ? 1 : 0, ", device ",
      training.engine.device, ", max_grad_norm ", training.step.max_grad_norm);
  return made;
}

constexpr uint64_t kModels = kSanitized ? 6 : 120;

TEST(RandomModelsTest, ModelsMatchTheReference) {
  constexpr uint64_t kFirst = 20000;
  uint64_t first = kFirst;
  uint64_t last = kFirst + (std::getenv("SHARD_TEST_LONG") ? 5000 : kModels);
  if (const char* one = std::getenv("SHARD_TEST_SEED")) {
    first = std::strtoull(one, nullptr, 10);
    last = first + 1;
  }
  int grads = 0;
  int params = 0;
  int failed = 0;
  for (uint64_t seed = first; seed < last && failed < 10; ++seed) {
    const Case made = RandomCase(seed);
    ASSERT_NE(made.training.plan, nullptr) << "seed " << seed;
    const std::string failure = TrainExactly(made.training);
    if (!failure.empty()) {
      ++failed;
      ADD_FAILURE() << failure << "\nSHARD_TEST_SEED=" << seed << " is "
                    << made.text;
    }
    const bool apart = !made.training.link.empty();
    grads += made.training.plan->shards_grads() ? 1 : 0;
    params += apart && made.training.plan->shards_params() ? 1 : 0;
  }
  if (last - first == 1) return;
  // Enough of the plans must have been sharded for the test to mean something.
  const auto cases = static_cast<int>(last - first);
  EXPECT_GT(grads, cases / 50);
  EXPECT_GT(params, cases / 50);
}

}  // namespace
}  // namespace shard
