// SPDX-License-Identifier: Apache-2.0
//
// Parameters without gradients: on all ranks or on some, single parameters or
// whole units, declared in any order. A parameter's own step count shows in its
// bias corrections.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/exact_training.h"
#include "tests/core/engine/gradient_script.h"
#include "tests/core/engine/unit_training.h"

namespace shard::missing_grads_test {
namespace {

constexpr int kWorldSize = 3;

struct Form {
  const char* name;
  int stage;
  const char* link = "";
  const char* device = "cpu";
  bool whole_grads = false;
  int prefetch = 1;
  bool deterministic = false;
  DType dtype = DType::kF32;
  int shard_group_size = 0;
};

constexpr Form kForms[] = {
    {.name = "stage0", .stage = 0},
    {.name = "stage1_async",
     .stage = 1,
     .device = "cpu-async?max_delay=0.0001&seed=1&host=async"},
    {.name = "stage2", .stage = 2},
    {.name = "stage2_async",
     .stage = 2,
     .device = "cpu-async?max_delay=0.0001&seed=2"},
    {.name = "stage2_deterministic_bf16",
     .stage = 2,
     .prefetch = 0,
     .deterministic = true,
     .dtype = DType::kBF16},
    {.name = "stage3", .stage = 3},
    {.name = "stage3_whole_grads", .stage = 3, .whole_grads = true},
    {.name = "apart_stage0", .stage = 0, .link = "direct=0"},
    {.name = "apart_stage1", .stage = 1, .link = "direct=0"},
    {.name = "apart_stage2", .stage = 2, .link = "direct=0"},
    {.name = "apart_stage2_deterministic_bf16",
     .stage = 2,
     .link = "direct=0",
     .prefetch = 0,
     .deterministic = true,
     .dtype = DType::kBF16},
    {.name = "apart_stage3", .stage = 3, .link = "direct=0"},
    {.name = "apart_stage3_prefetch",
     .stage = 3,
     .link = "direct=0",
     .prefetch = 2},
    {.name = "apart_stage3_whole_grads",
     .stage = 3,
     .link = "direct=0",
     .whole_grads = true},
    {.name = "apart_stage3_async",
     .stage = 3,
     .link = "direct=0",
     .device = "cpu-async?max_delay=0.0001&seed=3&host=async"},
    {.name = "apart_stage3_groups",
     .stage = 3,
     .link = "direct=0",
     .shard_group_size = 2},
};

// Decides which parameters have a gradient.
struct Pattern {
  const char* name;
  bool (*has)(int step, int pass, int rank, ParamId param, int32_t unit);
  bool by_pass = false;
};

bool Coin(int a, int b, int c, int d) {
  return Mix(static_cast<uint64_t>(((a * 16 + b) * 16 + c) * 4096 + d)) % 2 ==
         0;
}

constexpr Pattern kPatterns[] = {
    {"parameters on all ranks",
     [](int step, int, int, ParamId param, int32_t) {
       return Coin(step, 0, 0, param);
     }},
    {"parameters on some ranks",
     [](int step, int, int rank, ParamId param, int32_t) {
       return Coin(step, 0, rank, param);
     }},
    {"units on all ranks", [](int step, int, int, ParamId,
                              int32_t unit) { return Coin(step, 0, 0, unit); }},
    {"units on some ranks",
     [](int step, int, int rank, ParamId, int32_t unit) {
       return Coin(step, 0, rank, unit);
     }},
    {"one rank", [](int step, int, int rank, ParamId,
                    int32_t) { return rank == step % kWorldSize; }},
    {"nothing", [](int, int, int, ParamId, int32_t) { return false; }},
    {.name = "by pass",
     .has = [](int step, int pass, int rank, ParamId param,
               int32_t) { return Coin(step, pass, rank, param); },
     .by_pass = true},
    {.name = "units by pass",
     .has = [](int step, int pass, int rank, ParamId,
               int32_t unit) { return Coin(step, pass, rank, unit); },
     .by_pass = true},
    {.name = "first pass only",
     .has = [](int, int pass, int, ParamId param,
               int32_t) { return pass == 1 && param % 2 == 0; },
     .by_pass = true},
};

int IndexOf(const Form& form) {
  int index = 0;
  while (std::string_view(kForms[index].name) != form.name) ++index;
  return index;
}

std::shared_ptr<const Plan> PlanFor(const Form& form) {
  UnitTraining training;
  training.model = BlockModel(
      form.dtype == DType::kF32 && form.prefetch < 2 ? 8 : 12, form.dtype);
  training.optimizer = "adamw?lr=0.02&beta1=0.8";
  training.wrap = "class?names=Block,Mlp";
  training.plan.stage = form.stage;
  training.plan.world_size = form.shard_group_size > 0 ? 4 : kWorldSize;
  training.plan.shard_group_size = form.shard_group_size;
  training.plan.prefetch = form.prefetch;
  training.plan.whole_grads = form.whole_grads;
  training.plan.deterministic = form.deterministic;
  const auto plan = PlanOf(training);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *plan : nullptr;
}

class MissingGradsTest : public ::testing::TestWithParam<Form> {};

TEST_P(MissingGradsTest, MatchesTheReference) {
  const Form& form = GetParam();
  ExactTraining training;
  training.plan = PlanFor(form);
  ASSERT_NE(training.plan, nullptr);
  const Plan& plan = *training.plan;
  ASSERT_EQ(plan.shards_grads(), form.stage >= 2 && !form.whole_grads);
  ASSERT_EQ(plan.shards_params(), form.stage == 3);
  training.link = form.link;
  training.engine.device = form.device;
  const bool all = std::getenv("SHARD_TEST_LONG") != nullptr;
  for (const MissingGrads missing :
       {MissingGrads::kZero, MissingGrads::kSkip}) {
    for (const Pattern& pattern : kPatterns) {
      for (const bool shuffled : {false, true}) {
        // Tries each pattern in one of the four ways, in another for the next
        // form; with a sanitizer, for a quarter of the forms, and in the short
        // form on NCCL, which has most forms, a third of the patterns.
        const auto turn =
            static_cast<int>(&pattern - kPatterns) + IndexOf(form);
        const int skips = static_cast<int>(missing) % 2;
        const int shuffles = shuffled ? 1 : 0;
        if (!all && turn % 2 != (skips + shuffles) % 2) continue;
        if (!all && turn / 2 % 2 != shuffles) continue;
        if (kSanitized && turn / 4 % 4 != 0) continue;
        if (TestsAreOn("fake_nccl") && TriesFew() && turn % 3 != 0) continue;
        for (const int passes : {1, 2}) {
          // Sharded gradients do not accumulate deterministically.
          if (passes == 2 && form.deterministic) continue;
          if (passes == 2 && !pattern.by_pass) continue;
          training.engine.missing_grads = missing;
          training.shuffled = shuffled;
          training.passes = passes;
          training.nested = passes == 1;
          training.step.max_grad_norm = shuffled ? 0.5 : 0;
          training.has_grad = [&](int step, int pass, int rank, ParamId param) {
            return pattern.has(step, pass, rank, param, plan.UnitOf(param));
          };
          EXPECT_EQ(TrainExactly(training), "")
              << pattern.name << ", missing_grads " << static_cast<int>(missing)
              << ", shuffled " << shuffled << ", " << passes << " passes";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, MissingGradsTest, ::testing::ValuesIn(kForms),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

// ---- Every way to have gradients, step after step --------------------------

// The units m0 (1) and m1 (2) that have a gradient on a rank. Each unit has one
// parameter, of the unit's number. m2 to m5 never have a gradient, and m6 and
// m7 are frozen; without them nothing would be sharded.
enum class Has { kNoPass, kNone, kFirst, kSecond, kBoth };
constexpr Has kHas[] = {Has::kNoPass, Has::kNone, Has::kFirst, Has::kSecond,
                        Has::kBoth};

std::shared_ptr<const Plan> TwoUnits(int stage, const char* optimizer) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  const ParamId root =
      *training.model->AddParam(kRootModule, "root", DType::kF32, {1});
  EXPECT_OK(training.model->SetTrainable(root, false));
  for (int m = 0; m < 8; ++m) {
    const ModuleId module =
        *training.model->AddModule(kRootModule, StrCat("m", m), "Block");
    const ParamId param =
        *training.model->AddParam(module, "weight", DType::kF32, {1100});
    if (m >= 2) EXPECT_OK(training.model->SetTrainable(param, m < 6));
  }
  training.wrap = "class?names=Block";
  training.optimizer = optimizer;
  training.plan.stage = stage;
  training.plan.world_size = 2;
  training.plan.prefetch = 0;
  const auto plan = PlanOf(training);
  EXPECT_OK(plan);
  return plan.ok() ? *plan : nullptr;
}

RankStep StepOfRank(Has has, bool zero_grad) {
  RankStep step;
  step.passes.resize(9);
  step.zero_grad_after = zero_grad;
  if (has == Has::kNoPass) return step;
  for (int32_t unit = 8; unit > 0; --unit) {
    step.Do(Act::kAcquire, unit);
    const bool declares =
        (unit == 1 && (has == Has::kFirst || has == Has::kBoth)) ||
        (unit == 2 && (has == Has::kSecond || has == Has::kBoth));
    if (declares) {
      step.Give(unit, 1, Act::kStore);
      step.Do(Act::kUnitReady, unit);
    }
    step.Do(Act::kRelease, unit);
  }
  return step;
}

// Each combination follows a step in which both ranks had all gradients, so
// that a gradient that must not count would show.
TEST(WhoHasGradientsTest, EveryCombinationMatchesTheReference) {
  for (int variant = 0; variant < 64; ++variant) {
    // With a sanitizer, tries each option and each pair of options, but not all
    // combinations.
    if (kSanitized && std::popcount(static_cast<unsigned>(variant)) % 2 != 0) {
      continue;
    }
    const bool skip = (variant & 1) != 0;
    const bool zero_grad = (variant & 2) != 0;
    const bool adam = (variant & 4) != 0;
    const int stage = variant >> 4;
    GradientScript script;
    script.plan = TwoUnits(stage, adam ? "adam?lr=0.5" : "sgd?lr=1");
    ASSERT_NE(script.plan, nullptr);
    ASSERT_EQ(script.plan->shards_grads(), stage >= 2);
    ASSERT_EQ(script.plan->shards_params(), stage == 3);
    script.link = (variant & 8) != 0 ? "direct=0" : "";
    script.engine.missing_grads =
        skip ? MissingGrads::kSkip : MissingGrads::kZero;
    script.ranks.resize(2);
    for (const Has first : kHas) {
      for (const Has second : kHas) {
        for (const Has both : {Has::kBoth, Has::kNone}) {
          script.ranks[0].push_back(
              StepOfRank(both == Has::kBoth ? Has::kBoth : first, zero_grad));
          script.ranks[1].push_back(
              StepOfRank(both == Has::kBoth ? Has::kBoth : second, zero_grad));
        }
      }
    }
    EXPECT_EQ(RunScript(script), "")
        << "stage " << stage << ", link '" << script.link << "', skip " << skip
        << ", zero_grad " << zero_grad << ", adam " << adam;
  }
}

// ---- Ranks that differ in zero_grad ----------------------------------------

// Makes a backward pass through all units, with gradients of 1.
Status DeclareAll(Engine* engine) {
  for (int32_t unit = 8; unit > 0; --unit) {
    SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kBackward, 0));
    if (const auto tensor = engine->Grad(unit); tensor.ok()) {
      std::fill_n(FloatsOf(*tensor), tensor->numel, 1.0f);
      SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
    }
    SHARD_RETURN_IF_ERROR(engine->UnitRelease(unit));
  }
  return Status();
}

// Rank 1 zeroes once more than rank 0, before anything is accumulated. With
// missing_grads the step reports that and training can go on. Without, the
// first reduction reports it, and the error is final.
TEST(ZeroGradTest, AnExtraCallOnOneRankIsADesyncOfShardedGradients) {
  for (int variant = 0; variant < 12; ++variant) {
    const int stage = 1 + variant / 4;
    const bool missing = (variant & 1) != 0;
    const std::string link = (variant & 2) != 0 ? "direct=0" : "";
    if (IsAsWithoutLink(link)) continue;
    SCOPED_TRACE(StrCat("stage ", stage, ", link '", link, "', missing_grads ",
                        missing));
    const auto plan = TwoUnits(stage, "sgd?lr=1");
    ASSERT_NE(plan, nullptr);
    ASSERT_EQ(plan->shards_grads(), stage >= 2);
    EngineOptions options;
    if (missing) options.missing_grads = MissingGrads::kZero;
    const auto train = [&](const std::shared_ptr<Communicator>& comm) {
      auto made = CreateEngine(plan, comm, options);
      ASSERT_OK(made);
      Engine* const engine = made->get();
      ASSERT_OK(engine->BroadcastParams(0));
      if (comm->rank() == 1) ASSERT_OK(engine->ZeroGrad());
      Status trained = DeclareAll(engine);
      StepReport report;
      if (trained.ok()) trained = engine->Step(StepOptions(), &report);
      if (!plan->shards_grads()) {
        EXPECT_OK(trained);
        return;
      }
      ExpectError(trained, StatusCode::kDesync, {"zero_grad calls since the "});
      EXPECT_EQ(trained.rank(), 1);
      if (!missing) return;
      // Rank 1's gradients count. Rank 0's from before its zero_grad do not.
      if (comm->rank() == 0) {
        ASSERT_OK(engine->ZeroGrad());
        ASSERT_OK(DeclareAll(engine));
      }
      ASSERT_OK(engine->Step(StepOptions(), &report));
      ASSERT_OK(engine->UnitAcquire(1, Pass::kForward, 0));
      EXPECT_EQ(*FloatsOf(*engine->Param(1)), -1);
      ASSERT_OK(engine->UnitRelease(1));
    };
    RunThreadRanks(2, train, 20, link);
  }
}

// Both ranks throw away an accumulating pass in which they declared different
// units; one rank is far ahead of the other.
TEST(ZeroGradTest, DropsPassesThatDifferBetweenRanks) {
  for (int variant = 0; variant < 4; ++variant) {
    const int stage = 2 + variant / 2;
    const std::string link = (variant & 1) != 0 ? "direct=0" : "";
    if (IsAsWithoutLink(link)) continue;
    SCOPED_TRACE(StrCat("stage ", stage, ", link '", link, "'"));
    GradientScript script;
    script.plan = TwoUnits(stage, "sgd?lr=1");
    ASSERT_NE(script.plan, nullptr);
    ASSERT_TRUE(script.plan->shards_grads());
    script.engine.missing_grads = MissingGrads::kZero;
    script.link = link;
    script.ranks.resize(2);
    for (int rank = 0; rank < 2; ++rank) {
      RankStep step;
      step.passes.resize(9);
      step.Do(Act::kAccumulate, 1);
      for (int32_t unit = 8; unit > 0; --unit) {
        step.Do(Act::kAcquire, unit);
        if (rank == 0 && unit <= 2) {
          step.Do(Act::kStore, unit, 1);
          step.Do(Act::kUnitReady, unit);
        }
        step.Do(Act::kRelease, unit);
      }
      step.Do(Act::kZeroGrad);
      step.Do(Act::kAccumulate, 0);
      for (int32_t unit = 8; unit > 0; --unit) {
        step.Do(Act::kAcquire, unit);
        if (rank == 1 && unit <= 2) {
          step.Give(unit, 2, Act::kStore);
          step.Do(Act::kUnitReady, unit);
        }
        step.Do(Act::kRelease, unit);
      }
      script.ranks[static_cast<size_t>(rank)] = {step, step};
    }
    EXPECT_EQ(RunScript(script), "");
  }
}

// Makes one pass through a unit, with gradients of `gradient` if it is a
// backward pass.
Status PassThrough(Engine* engine, int32_t unit, Pass pass, float gradient) {
  SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, pass, 0));
  if (pass == Pass::kBackward) {
    SHARD_ASSIGN_OR_RETURN(const auto tensor, engine->Grad(unit));
    std::fill_n(FloatsOf(tensor), tensor.numel, gradient);
    SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
  }
  return engine->UnitRelease(unit);
}

// Both ranks zero once, but rank 1 passes through one unit only, and gathers it
// while rank 0 still reduces gradients that it is about to throw away.
TEST(ZeroGradTest, ARankThatGathersMeanwhileLosesNothing) {
  const auto plan = TwoUnits(3, "sgd?lr=1");
  ASSERT_NE(plan, nullptr);
  ASSERT_TRUE(plan->shards_params());
  const EngineOptions options = {.missing_grads = MissingGrads::kZero};
  const auto train = [&](const std::shared_ptr<Communicator>& comm) {
    auto made = CreateEngine(plan, comm, options);
    ASSERT_OK(made);
    Engine* const engine = made->get();
    ASSERT_OK(engine->BroadcastParams(0));
    if (comm->rank() == 0) {
      for (const float gradient : {100.0f, 2.0f}) {
        for (const int32_t unit : {1, 2}) {
          if (gradient < 100) break;
          ASSERT_OK(PassThrough(engine, unit, Pass::kForward, 0));
        }
        for (const int32_t unit : {2, 1}) {
          ASSERT_OK(PassThrough(engine, unit, Pass::kBackward, gradient));
        }
        if (gradient == 100) ASSERT_OK(engine->ZeroGrad());
      }
    } else {
      ASSERT_OK(engine->ZeroGrad());
      ASSERT_OK(PassThrough(engine, 1, Pass::kForward, 0));
      ASSERT_OK(PassThrough(engine, 1, Pass::kBackward, 10));
    }
    StepReport report;
    ASSERT_OK(engine->Step(StepOptions(), &report));
    for (const int32_t unit : {1, 2}) {
      ASSERT_OK(engine->UnitAcquire(unit, Pass::kForward, 0));
      // The mean of 2 and 10 in unit 1; of 2 and nothing in unit 2.
      EXPECT_EQ(*FloatsOf(*engine->Param(unit)), unit == 1 ? -6 : -1);
      ASSERT_OK(engine->UnitRelease(unit));
    }
  };
  RunThreadRanks(2, train, 20, "direct=0");
}

// Rank 1 throws away gradients that are in the sums of all ranks already, and
// joins.
TEST(ZeroGradTest, ARankThatDropsItsPassesAndJoinsIsTold) {
  for (int variant = 0; variant < 8; ++variant) {
    const int stage = 2 + variant / 4;
    const bool both = (variant & 1) != 0;
    const std::string link = (variant & 2) != 0 ? "direct=0" : "";
    if (IsAsWithoutLink(link)) continue;
    SCOPED_TRACE(StrCat("stage ", stage, ", link '", link, "', both ", both));
    const auto plan = TwoUnits(stage, "sgd?lr=1");
    ASSERT_NE(plan, nullptr);
    ASSERT_TRUE(plan->shards_grads());
    const auto train = [&](const std::shared_ptr<Communicator>& comm) {
      auto made = CreateEngine(plan, comm, EngineOptions());
      ASSERT_OK(made);
      Engine* const engine = made->get();
      ASSERT_OK(engine->BroadcastParams(0));
      ASSERT_OK(engine->SetAccumulate(true));
      ASSERT_OK(DeclareAll(engine));
      ASSERT_OK(engine->SetAccumulate(false));
      if (comm->rank() == 1 || both) ASSERT_OK(engine->ZeroGrad());
      Status trained;
      if (comm->rank() == 1) {
        int64_t steps = 0;
        trained = engine->Join(0, &steps);
      } else {
        ASSERT_OK(DeclareAll(engine));
        StepReport report;
        trained = engine->Step(StepOptions(), &report);
        if (trained.ok()) {
          ASSERT_OK(engine->UnitAcquire(1, Pass::kForward, 0));
          EXPECT_EQ(*FloatsOf(*engine->Param(1)), -0.5);
          ASSERT_OK(engine->UnitRelease(1));
          int64_t steps = 0;
          ASSERT_OK(engine->Join(0, &steps));
        }
      }
      if (both) {
        EXPECT_OK(trained);
      } else {
        ExpectError(trained, StatusCode::kDesync,
                    {"zero_grad calls since the "});
      }
    };
    RunThreadRanks(2, train, 20, link);
  }
}

}  // namespace
}  // namespace shard::missing_grads_test
