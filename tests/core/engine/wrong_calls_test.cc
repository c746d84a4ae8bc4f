// SPDX-License-Identifier: Apache-2.0
//
// Calls in the wrong state, and ranks that make different calls: the error's
// text, the same code on all ranks, no hangs, and the calls that work
// afterwards.

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::wrong_calls_test {
namespace {

constexpr double kTimeout = 10;

struct Form {
  const char* name;
  int stage;
  const char* link;

  bool apart() const { return *link != '\0'; }
  bool gathers() const { return stage == 3 && apart(); }
  bool shards_grads() const { return stage >= 2; }
  // Returns whether gradients are reduced when they become ready.
  bool reduces() const { return shards_grads() || apart(); }
};

constexpr Form kForms[] = {
    {"stage0", 0, ""},
    {"stage1", 1, ""},
    {"stage2", 2, ""},
    {"stage3", 3, ""},
    {"apart_stage0", 0, "direct=0"},
    {"apart_stage1", 1, "direct=0"},
    {"apart_stage2", 2, "direct=0"},
    {"apart_stage3", 3, "direct=0"},
};

struct World {
  int world_size = 2;
  int prefetch = 1;
  bool deterministic = false;
};

// Returns a plan of a root with one parameter and six blocks, 'b0' (1) to 'b5'
// (6), of two pages. Each depth has `prefetch` slots beside the one in use.
StatusOr<std::shared_ptr<const Plan>> MakePlan(const Form& form,
                                               const World& world = {}) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  EXPECT_OK(training.model->AddParam(kRootModule, "base", DType::kF32, {10}));
  for (int b = 0; b < 6; ++b) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("b", b), "Block");
    EXPECT_OK(training.model->AddParam(block, "weight", DType::kF32, {1100}));
    EXPECT_OK(training.model->AddParam(block, "bias", DType::kF32, {3}));
  }
  training.wrap = "class?names=Block";
  training.plan.stage = form.stage;
  training.plan.world_size = world.world_size;
  training.plan.prefetch = world.prefetch;
  training.plan.deterministic = world.deterministic;
  return PlanOf(training);
}

class WrongCallsTest : public ::testing::TestWithParam<Form> {
 protected:
  // Calls `body` on every rank with an engine that is training.
  void OnRanks(const std::function<void(Engine*)>& body,
               const World& world = {}) {
    const auto plan = MakePlan(GetParam(), world);
    ASSERT_OK(plan);
    ASSERT_TRUE(ShardsAsItsStage(**plan));
    RunThreadRanks(
        world.world_size,
        [&](const auto& comm) {
          auto made = Engine::Create(*plan, comm);
          ASSERT_OK(made);
          ASSERT_OK((*made)->BroadcastParams(0));
          body(made->get());
        },
        kTimeout, GetParam().link);
  }
};

constexpr int32_t kUnits = 7;

Status Ready(Engine* engine, int32_t unit) {
  SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kBackward, 0));
  SHARD_RETURN_IF_ERROR(engine->UnitGradsReady(unit));
  return engine->UnitRelease(unit);
}

Status Step(Engine* engine) {
  StepReport report;
  return engine->Step(StepOptions(), &report);
}

Status TrainStep(Engine* engine) {
  for (int32_t u = kUnits; u-- > 0;) SHARD_RETURN_IF_ERROR(Ready(engine, u));
  return Step(engine);
}

// Expects that every call fails with `code`, because the ranks are out of step.
void ExpectFinal(Engine* engine, StatusCode code) {
  StepReport report;
  int64_t steps = 0;
  ExpectError(engine->Step(StepOptions(), &report), code, {});
  ExpectError(engine->UnitAcquire(4, Pass::kForward, 0), code, {});
  ExpectError(engine->ZeroGrad(), code, {});
  ExpectError(engine->Join(0, &steps), code, {});
}

constexpr StatusCode kWrongState = StatusCode::kFailedPrecondition;

// The same mistake on all ranks changes nothing.
TEST_P(WrongCallsTest, AWrongCallOnAllRanksChangesNothing) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    ExpectInvalid(engine->UnitAcquire(7, Pass::kForward, 0),
                  {"unit 7 does not exist", "7, from 0"});
    ExpectInvalid(engine->UnitAcquire(-1, Pass::kForward, 0), {"unit -1"});
    for (const int pass : {0, 4, -1}) {
      ExpectInvalid(engine->UnitAcquire(2, static_cast<Pass>(pass), 0),
                    {StrCat("unknown pass ", pass), "1 (forward)"});
    }
    ExpectInvalid(engine->UnitRelease(7), {"unit 7"});
    ExpectInvalid(engine->UnitGradsReady(-2), {"unit -2"});
    ExpectInvalid(engine->ParamGradReady(99), {"parameter 99"});
    ExpectError(engine->UnitRelease(2), kWrongState,
                {"unit 'b1' (2)", "IDLE", "FORWARD"});

    ASSERT_OK(engine->UnitAcquire(2, Pass::kForward, 0));
    ExpectError(engine->UnitAcquire(2, Pass::kBackward, 0), kWrongState,
                {"unit 'b1' (2)", "FORWARD", "IDLE"});
    ExpectError(engine->UnitGradsReady(2), kWrongState,
                {"unit 'b1' (2)", "FORWARD", "BACKWARD_PRE"});
    // Parameter 3 is the unit's weight.
    ExpectError(engine->ParamGradReady(3), kWrongState,
                {"unit 'b1' (2)", "FORWARD", "BACKWARD_PRE"});
    ExpectError(Step(engine), kWrongState,
                {"rank 0", "unit 'b1' (2)", "FORWARD", "step"});
    ASSERT_OK(engine->UnitRelease(2));
    if (form.shards_grads()) {
      ExpectError(engine->UnitGradsReady(2), kWrongState,
                  {"unit 'b1' (2)", "IDLE", "BACKWARD_PRE"});
    }
    EXPECT_OK(TrainStep(engine));
    EXPECT_OK(TrainStep(engine));
  });
}

TEST_P(WrongCallsTest, RefusesCallsBeforeBroadcast) {
  const auto plan = MakePlan(GetParam());
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  RunThreadRanks(
      2,
      [&](const auto& comm) {
        auto made = Engine::Create(*plan, comm, EngineOptions());
        ASSERT_OK(made);
        Engine* const engine = made->get();
        ExpectError(engine->UnitAcquire(0, Pass::kForward, 0), kWrongState,
                    {"unit_acquire", "FILLING", "broadcast_params"});
        ExpectError(engine->UnitRelease(0), kWrongState, {"FILLING"});
        ExpectError(engine->UnitGradsReady(0), kWrongState, {"FILLING"});
        ExpectError(engine->ParamGradReady(0), kWrongState, {"FILLING"});
        ExpectError(engine->SetNoSync(true), kWrongState, {"FILLING"});
        ExpectError(Step(engine), kWrongState, {"rank 0", "step", "FILLING"});
        ASSERT_OK(engine->BroadcastParams(0));
        ExpectError(engine->BroadcastParams(0), kWrongState, {"before"});
        EXPECT_OK(TrainStep(engine));
      },
      kTimeout, GetParam().link);
}

TEST_P(WrongCallsTest, RefusesGradientsThatAreReadyAlready) {
  OnRanks([&](Engine* engine) {
    ASSERT_OK(engine->UnitAcquire(3, Pass::kBackward, 0));
    ASSERT_OK(engine->ParamGradReady(5));
    ExpectError(engine->ParamGradReady(5), kWrongState,
                {"parameter 5", "unit 'b2' (3)", "ready already"});
    ExpectError(engine->UnitGradsReady(3), kWrongState,
                {"unit 'b2' (3)", "1 of its 2", "missing_grads"});
    ASSERT_OK(engine->ParamGradReady(6));
    ExpectError(engine->UnitGradsReady(3), kWrongState,
                {"unit 'b2' (3)", "ready already"});
    ExpectError(engine->ParamGradReady(6), kWrongState,
                {"unit 'b2' (3)", "ready already"});
    ASSERT_OK(engine->UnitRelease(3));
    ExpectError(engine->UnitGradsReady(3), kWrongState,
                {"unit 'b2' (3)", "ready already"});
    ExpectError(
        engine->UnitAcquire(3, Pass::kBackward, 0), kWrongState,
        {"unit 'b2' (3)", "ready for the step already", "set_accumulate"});
    for (const int32_t unit : {0, 1, 2, 4, 5, 6}) {
      ASSERT_OK(Ready(engine, unit));
    }
    EXPECT_OK(Step(engine));
    EXPECT_OK(TrainStep(engine));
  });
}

TEST_P(WrongCallsTest, RefusesAStepWithUnitsNotReady) {
  OnRanks([&](Engine* engine) {
    for (const int32_t unit : {0, 1, 2, 4, 6}) ASSERT_OK(Ready(engine, unit));
    ExpectError(Step(engine), kWrongState,
                {"rank 0", "those of 2 are not ready", "unit 'b2' (3)",
                 "unit 'b4' (5)", "missing_grads"});
    ASSERT_OK(Ready(engine, 3));
    ASSERT_OK(Ready(engine, 5));
    EXPECT_OK(Step(engine));
  });
}

// The other ranks are in the step already, or wait in a reduction for this
// rank.
TEST_P(WrongCallsTest, AUnitNotReadyOnOneRankFailsTheStepOnAll) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    const int rank = engine->comm()->rank();
    for (int32_t unit = 0; unit < kUnits; ++unit) {
      if (unit == 3 && rank == 1) {
        ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
        ASSERT_OK(engine->UnitRelease(unit));
        break;
      }
      const Status ready = Ready(engine, unit);
      if (ready.ok()) continue;
      // The reduction that waits for rank 1 has failed before the step.
      ASSERT_TRUE(form.reduces());
      break;
    }
    Status stepped = Step(engine);
    ExpectError(stepped, kWrongState, {"rank 1", "unit 'b2' (3)"});
    EXPECT_EQ(stepped.rank(), 1);
    if (form.reduces()) return ExpectFinal(engine, kWrongState);
    for (int32_t unit = 3; rank == 1 && unit < kUnits; ++unit) {
      ASSERT_OK(Ready(engine, unit));
    }
    EXPECT_OK(Step(engine));
  });
}

TEST_P(WrongCallsTest, AUnitInUseOnOneRankFailsTheStepOnAll) {
  OnRanks(
      [&](Engine* engine) {
        const int rank = engine->comm()->rank();
        for (int32_t unit = kUnits; unit-- > 0;) {
          ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
          ASSERT_OK(engine->UnitGradsReady(unit));
          if (unit > 0 || rank != 2) ASSERT_OK(engine->UnitRelease(unit));
        }
        const Status stepped = Step(engine);
        ExpectError(stepped, kWrongState,
                    {"rank 2", "the root unit (0)", "BACKWARD_POST"});
        EXPECT_EQ(stepped.rank(), 2);
        if (rank == 2) ASSERT_OK(engine->UnitRelease(0));
        EXPECT_OK(Step(engine));
        EXPECT_OK(TrainStep(engine));
      },
      {.world_size = 3});
}

TEST_P(WrongCallsTest, AnUnknownUnitFailsAllRanksThatGather) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    const bool wrong = engine->comm()->rank() == 1;
    Status status = engine->UnitAcquire(wrong ? 8 : 3, Pass::kForward, 0);
    if (form.gathers()) {
      ExpectInvalid(status, {"rank 1", "unit 8"});
      EXPECT_EQ(status.rank(), 1);
      return ExpectFinal(engine, StatusCode::kInvalidArgument);
    }
    // The call involves no other rank, so the error stays on rank 1.
    if (wrong) {
      ExpectInvalid(status, {"unit 8"});
    } else {
      ASSERT_OK(status);
      ASSERT_OK(engine->UnitRelease(3));
    }
    EXPECT_OK(TrainStep(engine));
  });
}

// One rank declares an unknown parameter while the others declare theirs.
TEST_P(WrongCallsTest, AnUnknownParameterFailsAllRanksThatReduce) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    const bool wrong = engine->comm()->rank() == 1;
    ASSERT_OK(engine->UnitAcquire(3, Pass::kBackward, 0));
    ASSERT_OK(engine->ParamGradReady(5));
    Status status = engine->ParamGradReady(wrong ? 99 : 6);
    if (!form.reduces()) {
      // The call involves no other rank, so the error stays on rank 1.
      EXPECT_EQ(status.ok(), !wrong);
      if (wrong) ASSERT_OK(engine->ParamGradReady(6));
      ASSERT_OK(engine->UnitRelease(3));
      for (const int32_t unit : {0, 1, 2, 4, 5, 6}) {
        ASSERT_OK(Ready(engine, unit));
      }
      EXPECT_OK(Step(engine));
      return;
    }
    if (status.ok()) {
      EXPECT_FALSE(wrong);
      status = engine->ZeroGrad();
    }
    ExpectInvalid(status, {"rank 1", "parameter 99"});
    EXPECT_EQ(status.rank(), 1);
    ExpectFinal(engine, StatusCode::kInvalidArgument);
  });
}

TEST_P(WrongCallsTest, AWrongStateFailsAllRanksThatReduce) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    const bool wrong = engine->comm()->rank() == 1;
    ASSERT_OK(
        engine->UnitAcquire(3, wrong ? Pass::kForward : Pass::kBackward, 0));
    Status status = engine->UnitGradsReady(3);
    if (!form.reduces()) {
      EXPECT_EQ(status.ok(), !wrong);
      ASSERT_OK(engine->UnitRelease(3));
      for (int32_t unit = kUnits; unit-- > 0;) {
        if (unit != 3 || wrong) ASSERT_OK(Ready(engine, unit));
      }
      EXPECT_OK(Step(engine));
      return;
    }
    // Rank 0 gets the error when it next waits.
    if (status.ok()) {
      EXPECT_FALSE(wrong);
      status = engine->ZeroGrad();
    }
    ExpectError(status, kWrongState, {"rank 1", "unit 'b2' (3)", "FORWARD"});
    EXPECT_EQ(status.rank(), 1);
    ExpectFinal(engine, kWrongState);
  });
}

TEST_P(WrongCallsTest, GatheringDifferentUnitsIsADesync) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    const int32_t unit = engine->comm()->rank() == 1 ? 2 : 5;
    const Status status = engine->UnitAcquire(unit, Pass::kForward, 0);
    if (form.gathers()) {
      ExpectError(status, StatusCode::kDesync,
                  {"rank 0 gathers the parameters of unit 'b4' (5)",
                   "rank 1 gathers the parameters of unit 'b1' (2)"});
      EXPECT_EQ(status.rank(), 1);
      return ExpectFinal(engine, StatusCode::kDesync);
    }
    ASSERT_OK(status);
    ASSERT_OK(engine->UnitRelease(unit));
    EXPECT_OK(TrainStep(engine));
  });
}

TEST_P(WrongCallsTest, ReducingDifferentUnitsIsADesync) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    ASSERT_OK(engine->UnitAcquire(2, Pass::kBackward, 0));
    ASSERT_OK(engine->UnitAcquire(5, Pass::kBackward, 0));
    const int32_t unit = engine->comm()->rank() == 1 ? 2 : 5;
    ASSERT_OK(engine->UnitGradsReady(unit));
    if (form.reduces()) {
      const Status status = engine->ZeroGrad();
      ExpectError(status, StatusCode::kDesync,
                  {"rank 0 reduces the gradients of unit 'b4' (5)",
                   "rank 1 reduces the gradients of unit 'b1' (2)"});
      EXPECT_EQ(status.rank(), 1);
      return ExpectFinal(engine, StatusCode::kDesync);
    }
    ASSERT_OK(engine->UnitGradsReady(7 - unit));
    ASSERT_OK(engine->UnitRelease(2));
    ASSERT_OK(engine->UnitRelease(5));
    for (const int32_t other : {0, 1, 3, 4, 6}) ASSERT_OK(Ready(engine, other));
    EXPECT_OK(Step(engine));
  });
}

// Rank 0 steps while the other rank trains with units. Gradients that rank 0
// declared in the previous step are not gradients of this one.
TEST_P(WrongCallsTest, RefusesAStepWhileOthersTrain) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    ASSERT_OK(TrainStep(engine));
    const int rank = engine->comm()->rank();
    ExpectError(rank == 0 ? Step(engine) : TrainStep(engine), kWrongState,
                {"rank 0", "mark_unit_grads_ready"});
    if (form.reduces()) return ExpectFinal(engine, kWrongState);
    for (int32_t unit = 0; rank == 0 && unit < kUnits; ++unit) {
      ASSERT_OK(Ready(engine, unit));
    }
    EXPECT_OK(Step(engine));
  });
}

// Rank 0 steps without ever having declared a gradient: its whole gradients
// count as they are.
TEST_P(WrongCallsTest, SimpleStepAgainstUnits) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    const Status status =
        engine->comm()->rank() == 0 ? Step(engine) : TrainStep(engine);
    if (form.shards_grads()) {
      ExpectError(status, kWrongState, {"rank 0", "mark_unit_grads_ready"});
      return ExpectFinal(engine, kWrongState);
    }
    if (!form.apart()) {
      EXPECT_OK(status);
      return;
    }
    ExpectError(status, StatusCode::kDesync,
                {"rank 0 steps", "rank 1 reduces the gradients of unit"});
    ExpectFinal(engine, StatusCode::kDesync);
  });
}

// A backward pass without gradients on all ranks is an error in every stage,
// and stays one after a change of the plan.
TEST_P(WrongCallsTest, RefusesAStepWithoutGradients) {
  OnRanks([&](Engine* engine) {
    ASSERT_OK(engine->UnitAcquire(3, Pass::kBackward, 0));
    ASSERT_OK(engine->UnitRelease(3));
    ExpectError(Step(engine), kWrongState, {"those of 7 are not ready"});
    ASSERT_OK(engine->ZeroGrad());
    ExpectError(Step(engine), kWrongState, {"those of 7 are not ready"});
    ASSERT_OK(engine->SetTrainable(std::vector{2}, false, 0));
    ExpectError(Step(engine), kWrongState, {"those of 7 are not ready"});
    EXPECT_OK(TrainStep(engine));
  });
}

TEST_P(WrongCallsTest, RefusesMoreUnitsInUseThanSlots) {
  const Form& form = GetParam();
  OnRanks(
      [&](Engine* engine) {
        ASSERT_OK(engine->UnitAcquire(0, Pass::kBackward, 0));
        ASSERT_OK(engine->UnitAcquire(2, Pass::kBackward, 0));
        const Status status = engine->UnitAcquire(4, Pass::kBackward, 0);
        if (form.gathers()) {
          ExpectError(status, kWrongState,
                      {"rank 0", "no slot for the parameters of unit 'b3' (4)",
                       "unit 'b1' (2)", "prefetch (0 now)"});
        } else if (form.shards_grads()) {
          ExpectError(status, kWrongState,
                      {"no slot for the gradients of unit 'b3' (4)",
                       "unit 'b1' (2)", "prefetch (0 now)"});
        } else {
          ASSERT_OK(status);
          ASSERT_OK(engine->UnitRelease(4));
        }
        ASSERT_OK(engine->UnitRelease(2));
        ASSERT_OK(engine->UnitRelease(0));
        EXPECT_OK(TrainStep(engine));
      },
      {.prefetch = 0});
}

TEST_P(WrongCallsTest, RefusesAccumulationThatIsNotDeterministic) {
  const Form& form = GetParam();
  OnRanks(
      [&](Engine* engine) {
        ASSERT_OK(engine->SetNoSync(true));
        ASSERT_OK(engine->UnitAcquire(1, Pass::kBackward, 0));
        const Status status = engine->UnitGradsReady(1);
        if (form.shards_grads()) {
          ExpectError(status, kWrongState, {"deterministic", "whole_grads"});
        } else {
          ASSERT_OK(status);
        }
        ASSERT_OK(engine->UnitRelease(1));
        ASSERT_OK(engine->SetNoSync(false));
        EXPECT_OK(TrainStep(engine));
      },
      {.deterministic = true});
}

TEST_P(WrongCallsTest, RefusesTensorsOfUnitsThatAreNotInUse) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    const auto param = engine->Param(3);
    const auto grad = engine->Grad(3);
    EXPECT_EQ(param.ok(), !form.gathers());
    EXPECT_EQ(grad.ok(), !form.shards_grads());
    if (!param.ok()) {
      ExpectError(param, kWrongState, {"parameter 3", "unit 'b1' (2)", "IDLE"});
    }
    if (!grad.ok()) {
      ExpectError(grad, kWrongState,
                  {"parameter 3", "unit 'b1' (2)", "IDLE", "BACKWARD_PRE"});
    }
    ASSERT_OK(engine->UnitAcquire(2, Pass::kForward, 0));
    EXPECT_OK(engine->Param(3));
    EXPECT_EQ(engine->Grad(3).ok(), !form.shards_grads());
    ASSERT_OK(engine->UnitRelease(2));
    ASSERT_OK(engine->UnitAcquire(2, Pass::kBackward, 0));
    EXPECT_OK(engine->Param(3));
    EXPECT_OK(engine->Grad(3));
    ASSERT_OK(engine->UnitGradsReady(2));
    EXPECT_OK(engine->Param(3));
    EXPECT_EQ(engine->Grad(3).ok(), !form.shards_grads());
    ASSERT_OK(engine->UnitRelease(2));
    // Waits, so that no transfer is in progress when the engine is freed.
    EXPECT_OK(engine->ZeroGrad());
  });
}

// Rank 1 does not take part. Rank 0 waits no longer than its timeout, and rank
// 1 does not wait forever when it comes after all.
TEST_P(WrongCallsTest, NobodyWaitsForeverForARankThatDoesNotCome) {
  const Form& form = GetParam();
  const auto plan = MakePlan(form);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  std::promise<void> gone;
  std::future<void> left = gone.get_future();
  RunThreadRanks(
      2,
      [&](const auto& comm) {
        auto made = Engine::Create(*plan, comm, EngineOptions());
        ASSERT_OK(made);
        Engine* const engine = made->get();
        ASSERT_OK(engine->BroadcastParams(0));
        if (comm->rank() == 1) {
          left.wait();
          EXPECT_FALSE(TrainStep(engine).ok());
          return;
        }
        if (form.gathers()) {
          ExpectError(engine->UnitAcquire(1, Pass::kForward, 0.05),
                      StatusCode::kDeadlineExceeded, {});
        } else {
          const Status status = TrainStep(engine);
          ExpectError(status, StatusCode::kDeadlineExceeded, {});
        }
        EXPECT_FALSE(Step(engine).ok());
        gone.set_value();
      },
      0.3, form.link);
}

INSTANTIATE_TEST_SUITE_P(Forms, WrongCallsTest, ::testing::ValuesIn(kForms),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace shard::wrong_calls_test
