// SPDX-License-Identifier: Apache-2.0
//
// Random scripts of missing gradients, in every stage, with and without shared
// memory, with ZERO and SKIP. Ranks acquire any units in any order, write,
// declare, accumulate and zero gradients, and leave some steps out.
// SHARD_TEST_LONG runs 2,000 scripts; SHARD_TEST_SEED=N runs one alone, the
// number that a failure prints.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/dice.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/gradient_script.h"
#include "tests/core/engine/unit_training.h"

namespace shard::missing_grads_random_test {
namespace {

constexpr int kSteps = 20;

using testing::Dice;

// Returns a root and 15 blocks with up to three parameters each, one of them of
// two pages. Some parameters are frozen, one is tied, and one is in a unit
// within a unit.
std::shared_ptr<Model> RandomModel(DType dtype, Dice* dice) {
  auto model = std::make_shared<Model>("Root");
  EXPECT_OK(model->AddParam(kRootModule, "base", dtype, {10}));
  const int64_t pages = dtype == DType::kF32 ? 1100 : 2200;
  ModuleId block = kRootModule;
  for (int b = 0; b < 15; ++b) {
    block = *model->AddModule(kRootModule, StrCat("b", b), "Block");
    const ParamId weight =
        *model->AddParam(block, "weight", dtype, {pages + dice->Roll(50)});
    for (int more = dice->Roll(3); more > 0; --more) {
      const ParamId param = *model->AddParam(block, StrCat("p", more), dtype,
                                             {1 + dice->Roll(20)});
      if (dice->Chance(15)) EXPECT_OK(model->SetTrainable(param, false));
    }
    if (b == 3) EXPECT_OK(model->Tie(kRootModule, "tied", weight));
    if (b == 5) EXPECT_OK(model->SetTrainable(weight, false));
  }
  const ModuleId nested = *model->AddModule(block, "nested", "Block");
  EXPECT_OK(model->AddParam(nested, "weight", dtype, {7}));
  return model;
}

struct Use {
  int32_t unit;
  bool begins;  // Else it ends.
};

// Returns a backward pass through some of the units, in any order, with at most
// as many units in use at once as there are slots.
std::vector<Use> RandomUses(const Plan& plan, Dice* dice) {
  std::vector<int32_t> order;
  for (size_t u = 0; u < plan.units().size(); ++u) {
    if (dice->Chance(80)) order.push_back(static_cast<int32_t>(u));
  }
  dice->Shuffle(&order);
  std::vector<Use> uses;
  std::map<int32_t, std::vector<int32_t>> in_use;  // By depth.
  const auto end_one = [&](std::vector<int32_t>* units) {
    dice->Shuffle(units);
    uses.push_back({units->back(), false});
    units->pop_back();
  };
  for (const int32_t unit : order) {
    auto& beside = in_use[plan.units()[static_cast<size_t>(unit)].depth];
    while (!beside.empty() &&
           (static_cast<int>(beside.size()) > plan.options().prefetch ||
            dice->Chance(50))) {
      end_one(&beside);
    }
    uses.push_back({unit, true});
    beside.push_back(unit);
  }
  for (auto& [depth, units] : in_use) {
    while (!units.empty()) end_one(&units);
  }
  return uses;
}

// Makes the random steps of one rank, and keeps track of the contents of the
// rank's whole gradients.
class RankMaker {
 public:
  RankMaker(const Plan& plan, bool gathers, bool simple, Dice* dice)
      : plan_(plan),
        whole_(!plan.shards_grads()),
        gathers_(gathers),
        simple_(simple && whole_ && !gathers),
        declares_(!whole_),
        dice_(*dice),
        trainable_(plan.units().size()),
        unknown_(plan.places().size()) {
    for (size_t u = 0; u < plan.units().size(); ++u) {
      for (const int32_t b : plan.units()[u].buffers) {
        const FlatBufferPlan& buffer = plan.buffers()[static_cast<size_t>(b)];
        if (!buffer.trainable) continue;
        for (const Slot& slot : buffer.layout.slots()) {
          trainable_[u].push_back(slot.param);
        }
      }
    }
  }

  void EndSimple() { simple_ = false; }

  // Returns a random step. `uses`: by pass, for ranks that gather parameters
  // and so have to use units together; other ranks make uses of their own.
  // `zero_grad`: the pass after which all gradients are thrown away; 0 for
  // none. `zero_grad_after`: whether zero_grad follows the step; read only
  // where gradients are sharded, because ranks then have to do that together.
  RankStep Make(const std::vector<std::vector<Use>>& uses, size_t zero_grad,
                bool zero_grad_after) {
    step_ = RankStep();
    step_.passes.resize(plan_.places().size());
    // Makes the rank declare, even if no other act of the step does.
    if (!simple_ && !declares_ && !gathers_) {
      step_.Do(Act::kAcquire, 0);
      step_.Do(Act::kRelease, 0);
      declares_ = true;
    }
    for (size_t pass = 0; pass < uses.size(); ++pass) {
      pass_ = static_cast<int>(pass) + 1;
      last_ = pass + 1 == uses.size();
      if (simple_) {
        MakeSimplePass();
      } else {
        step_.Do(Act::kAccumulate, last_ ? 0 : 1);
        if (gathers_ || !dice_.Chance(10)) MakePass(uses[pass]);
      }
      if (pass + 1 != zero_grad) continue;
      step_.Do(Act::kZeroGrad);
      for (auto& passes : step_.passes) passes.clear();
      unknown_.assign(unknown_.size(), false);
    }
    // After a zero_grad that follows the last pass, the gradients are zeros,
    // which would count for a rank that does not declare. One more pass gives
    // it gradients.
    if (simple_ && zero_grad == uses.size()) MakeSimplePass();
    step_.zero_grad_after = whole_ ? dice_.Chance(50) : zero_grad_after;
    unknown_.assign(unknown_.size(), !step_.zero_grad_after);
    return std::move(step_);
  }

 private:
  bool Gave(ParamId param) const {
    return !step_.passes[static_cast<size_t>(param)].empty();
  }
  // Returns whether the gradient of `param` may be given values that do not
  // count.
  bool MayScribble(ParamId param) const { return !whole_ || !Gave(param); }

  void Scribble(ParamId param) {
    if (!MayScribble(param) || !dice_.Chance(50)) return;
    step_.Do(Act::kScribble, param);
    if (whole_) unknown_[static_cast<size_t>(param)] = true;
  }
  void Give(ParamId param) {
    const auto p = static_cast<size_t>(param);
    // A gradient is added to one that was given before; zeros may be
    // overwritten.
    const bool must_add = whole_ && Gave(param);
    const bool may_add = !whole_ || !unknown_[p];
    const bool adds = must_add || (may_add && dice_.Chance(50));
    step_.Give(param, pass_, adds ? Act::kAdd : Act::kStore);
    unknown_[p] = false;
  }

  void MakeSimplePass() {
    for (const auto& params : trainable_) {
      for (const ParamId param : params) Give(param);
    }
  }

  void MakePass(const std::vector<Use>& common) {
    const std::vector<Use> own =
        gathers_ ? std::vector<Use>() : RandomUses(plan_, &dice_);
    std::set<int32_t> idle;
    for (const Use& use : gathers_ ? common : own) {
      if (use.begins && whole_ && !gathers_ && dice_.Chance(15)) {
        idle.insert(use.unit);
        DeclareIdle(use.unit);
      } else if (use.begins) {
        step_.Do(Act::kAcquire, use.unit);
      } else if (idle.count(use.unit) == 0) {
        Finish(use.unit);
      }
    }
  }

  // Ends the use of a unit: writes and declares gradients, then releases it.
  void Finish(int32_t unit) {
    std::vector<ParamId> with, without;
    Split(unit, &with, &without);
    const bool all = without.empty();
    for (const ParamId param : without) Scribble(param);
    if (with.empty()) {
      if (all && dice_.Chance(50)) step_.Do(Act::kUnitReady, unit);
    } else {
      for (const ParamId param : with) Give(param);
      for (const ParamId param : without) Scribble(param);
      // The release declares the unit, so that the call may be left out.
      Declare(unit, with, all, dice_.Chance(30));
    }
    step_.Do(Act::kRelease, unit);
  }

  void DeclareIdle(int32_t unit) {
    std::vector<ParamId> with, without;
    Split(unit, &with, &without);
    if (with.empty()) return;
    for (const ParamId param : without) Scribble(param);
    for (const ParamId param : with) Give(param);
    // The unit has to be declared before a next pass, so that only the last
    // pass may leave the call out.
    Declare(unit, with, without.empty(), last_ && dice_.Chance(50));
  }

  // Declares gradients. `all`: `with` has all of the unit's parameters, the
  // last of which makes the unit ready. `parameters_only`: leaves the unit
  // undeclared.
  void Declare(int32_t unit, const std::vector<ParamId>& with, bool all,
               bool parameters_only) {
    const bool one_by_one = !all || dice_.Chance(50);
    for (const ParamId param : with) {
      if (one_by_one) step_.Do(Act::kParamReady, param);
    }
    if (all ? !one_by_one : !parameters_only) step_.Do(Act::kUnitReady, unit);
  }

  // Divides a unit's parameters into those with and those without a gradient.
  // `with` is in the order in which its parameters are declared.
  void Split(int32_t unit, std::vector<ParamId>* with,
             std::vector<ParamId>* without) {
    const int share = dice_.Pick<int>({0, 50, 50, 100});
    for (const ParamId param : trainable_[static_cast<size_t>(unit)]) {
      (dice_.Chance(share) ? with : without)->push_back(param);
    }
    dice_.Shuffle(with);
  }

  const Plan& plan_;
  const bool whole_;
  const bool gathers_;
  bool simple_;
  bool declares_;
  Dice& dice_;
  std::vector<std::vector<ParamId>> trainable_;  // By unit.
  // By ParamId: whether a whole gradient may hold other values than zeros when
  // the first gradient of a step is given.
  std::vector<bool> unknown_;
  RankStep step_;
  int pass_ = 1;
  bool last_ = true;
};

struct Case {
  GradientScript script;
  std::string text;
};

Case RandomCase(uint64_t seed) {
  Dice dice(seed);
  Case made;
  GradientScript& script = made.script;
  UnitTraining training;
  const DType dtype = dice.Chance(20) ? DType::kBF16 : DType::kF32;
  training.model = RandomModel(dtype, &dice);
  training.optimizer = dice.Pick<std::string>(
      {"sgd?lr=0.1", "sgd?lr=0.1&momentum=0.9", "adam?lr=0.02&beta1=0.8"});
  training.wrap = "class?names=Block";
  const int ranks = dice.Pick<int>({2, 2, 3, 4});
  training.plan.world_size = ranks;
  // The seeds try every combination of stage, link and missing_grads in turn.
  training.plan.stage = static_cast<int>(seed % 4);
  // Ranks that use NCCL share no memory.
  script.link = seed / 4 % 2 == 0 && !TestsAreOn("fake_nccl") ? "" : "direct=0";
  script.engine.missing_grads =
      seed / 8 % 2 == 0 ? MissingGrads::kZero : MissingGrads::kSkip;
  training.plan.prefetch = dice.Roll(3);
  training.plan.whole_grads = dice.Chance(15);
  // With two ranks, fp32 sums take as many bytes as whole bf16 gradients, so
  // that gradients would not be sharded.
  training.plan.deterministic =
      dice.Chance(15) && (dtype == DType::kF32 || ranks > 2);
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  if (!plan.ok()) return made;
  script.plan = *plan;
  EXPECT_EQ(script.plan->shards_grads(),
            training.plan.stage >= 2 && !training.plan.whole_grads);
  EXPECT_EQ(script.plan->shards_params(), training.plan.stage == 3);
  script.engine.overlap = dice.Chance(30);
  if (dice.Chance(15)) {
    script.engine.device = StrCat("cpu-async?max_delay=0.00002&seed=", seed,
                                  dice.Chance(70) ? "&host=async" : "");
  } else {
    script.engine.device = "cpu";
  }
  script.step.max_grad_norm = dice.Chance(30) ? 0.5 : 0;

  const bool gathers = training.plan.stage == 3 && !script.link.empty();
  std::vector<RankMaker> makers;
  std::vector<int> steps;
  std::vector<int> simple;
  const bool joins = dice.Chance(25);
  for (int r = 0; r < ranks; ++r) {
    simple.push_back(dice.Chance(25) ? dice.Roll(2 * kSteps) : 0);
    makers.emplace_back(*script.plan, gathers, simple.back() > 0, &dice);
    steps.push_back(joins ? dice.Roll(kSteps + 1) : kSteps);
  }
  script.ranks.resize(static_cast<size_t>(ranks));
  const bool accumulates =
      !(training.plan.deterministic && script.plan->shards_grads());
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::vector<Use>> uses;
    for (int pass = accumulates ? dice.Roll(2) : 0; pass >= 0; --pass) {
      uses.push_back(RandomUses(*script.plan, &dice));
    }
    const size_t zero_grad =
        dice.Chance(20) ? static_cast<size_t>(dice.Roll(3)) : 0;
    const bool zero_grad_after = dice.Chance(50);
    for (int r = 0; r < ranks; ++r) {
      const auto rank = static_cast<size_t>(r);
      if (step == simple[rank]) makers[rank].EndSimple();
      if (step >= steps[rank]) continue;
      script.ranks[rank].push_back(
          makers[rank].Make(uses, zero_grad, zero_grad_after));
    }
  }
  made.text = StrCat(script.plan->Summary(), "; missing_grads ",
                     static_cast<int>(script.engine.missing_grads), ", link '",
                     script.link, "', prefetch ", training.plan.prefetch,
                     ", whole_grads ", training.plan.whole_grads ? 1 : 0,
                     ", deterministic ", training.plan.deterministic ? 1 : 0,
                     ", overlap ", script.engine.overlap ? 1 : 0, ", device ",
                     script.engine.device, ", max_grad_norm ",
                     script.step.max_grad_norm, ", joins ", joins ? 1 : 0);
  return made;
}

TEST(MissingGradsRandomTest, ScriptsMatchTheReference) {
  uint64_t first = 0;
  // Tries all 16 combinations of stage, link and missing_grads, several times.
  const bool once = kSanitized || TestsAreOn("fake_nccl");
  uint64_t last = std::getenv("SHARD_TEST_LONG") ? 2000 : once ? 16 : 32;
  if (const char* one = std::getenv("SHARD_TEST_SEED")) {
    first = std::strtoull(one, nullptr, 10);
    last = first + 1;
  }
  int failed = 0;
  for (uint64_t seed = first; seed < last && failed < 10; ++seed) {
    const Case made = RandomCase(seed);
    ASSERT_NE(made.script.plan, nullptr) << "seed " << seed;
    const std::string failure = RunScript(made.script);
    if (failure.empty()) continue;
    ++failed;
    ADD_FAILURE() << failure << "\nSHARD_TEST_SEED=" << seed << " is "
                  << made.text;
  }
  RecordProperty("runs", static_cast<int>(last - first));
}

}  // namespace
}  // namespace shard::missing_grads_random_test
