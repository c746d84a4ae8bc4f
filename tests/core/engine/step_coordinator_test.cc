// SPDX-License-Identifier: Apache-2.0
//
// Steps that are begun before their gradients are there: the options that they
// take, and the calls that wait for them.

#include "core/engine/step/step_coordinator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/engine/params/full_params.h"
#include "core/optim/loss_scaler.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/unit_calls.h"

namespace shard::step_coordinator_test {
namespace {

using testing::kForms;
using testing::NameOf;
using testing::UnitCallsTest;
using testing::World;

class BeginStepTest : public UnitCallsTest {
 protected:
  // Declares the gradients of all units but the last one, which is declared
  // first.
  static Status ReadyRest(Engine* engine) {
    for (int32_t unit = kUnits - 1; unit-- > 0;) {
      SHARD_RETURN_IF_ERROR(Ready(engine, unit));
    }
    return Status();
  }
};

TEST_P(BeginStepTest, RefusesOptionsThatNeedAllGradients) {
  OnRanks([](Engine* engine) {
    ExpectError(engine->BeginStep(StepOptions{.max_grad_norm = 1}), kWrongState,
                {"begin_step with max_grad_norm", "call step alone"});
    ExpectError(engine->BeginStep(StepOptions{.skip_nonfinite = true}),
                kWrongState, {"begin_step with skip_nonfinite"});
    EXPECT_OK(TrainStep(engine));
  });
  World world;
  world.engine.loss_scaler = *LossScaler::Parse("dynamic?init_scale=8");
  OnRanks(
      [](Engine* engine) {
        ExpectError(engine->BeginStep(StepOptions()), kWrongState,
                    {"begin_step with dynamic loss_scaling"});
      },
      world);
  world = World();
  world.engine.missing_grads = MissingGrads::kSkip;
  OnRanks(
      [](Engine* engine) {
        ExpectError(engine->BeginStep(StepOptions()), kWrongState,
                    {"begin_step with missing_grads"});
      },
      world);
}

TEST_P(BeginStepTest, ComesOnceAndBeforeGradients) {
  OnRanks([](Engine* engine) {
    ASSERT_OK(Ready(engine, kUnits - 1));
    ExpectError(engine->BeginStep(StepOptions()), kWrongState,
                {"gradients that are ready", "before the backward pass"});
    ASSERT_OK(ReadyRest(engine));
    ASSERT_OK(Step(engine));
    ASSERT_OK(engine->BeginStep(StepOptions()));
    ExpectError(engine->BeginStep(StepOptions()), kWrongState,
                {"begin_step after begin_step"});
    EXPECT_OK(TrainStep(engine));
  });
}

TEST_P(BeginStepTest, TheStepTakesTheSameOptionsOrNone) {
  OnRanks([](Engine* engine) {
    const StepOptions begun = {.clip_value = 0.5};
    StepReport report;
    for (const StepOptions& same : {begun, StepOptions()}) {
      ASSERT_OK(engine->BeginStep(begun));
      ASSERT_OK(Ready(engine, kUnits - 1));
      ASSERT_OK(ReadyRest(engine));
      ExpectInvalid(engine->Step(StepOptions{.clip_value = 2}, &report),
                    {"differ from those of begin_step"});
      EXPECT_OK(engine->Step(same, &report));
    }
    EXPECT_EQ(report.step, 2);
  });
}

TEST_P(BeginStepTest, OtherCallsWaitForTheStep) {
  OnRanks([](Engine* engine) {
    ASSERT_OK(engine->BeginStep(StepOptions()));
    ExpectError(engine->Summon(kRootModule, kAllRanks, 0), kWrongState,
                {"summon", "FORWARD_BACKWARD", "after begin_step"});
    // Gradients that are not ready are not applied either.
    EXPECT_OK(engine->ZeroGrad());
    ASSERT_OK(Ready(engine, kUnits - 1));
    ExpectError(engine->ZeroGrad(), kWrongState,
                {"zero_grad after begin_step", "step first"});
    ASSERT_OK(ReadyRest(engine));
    ASSERT_OK(Step(engine));
    EXPECT_OK(engine->ZeroGrad());
    EXPECT_OK(engine->Summon(kRootModule, kAllRanks, 0));
  });
}

// A rank that joined takes part in a step that others begin as in any other.
TEST_P(BeginStepTest, RanksInJoinTakePart) {
  constexpr ParamId kLastBias = 12;
  std::vector<float> read[2];
  for (const bool begins : {false, true}) {
    OnRanks([&](Engine* engine) {
      const int rank = engine->comm()->rank();
      for (int step = 1; step <= 2 && rank == 1; ++step) {
        if (begins) ASSERT_OK(engine->BeginStep(StepOptions()));
        ASSERT_OK(engine->UnitAcquire(kUnits - 1, Pass::kBackward, 0));
        const auto grad = engine->Grad(kLastBias);
        ASSERT_OK(grad);
        Store(DType::kF32,
              std::vector<float>(3, 0.5f * static_cast<float>(step)),
              grad->data);
        ASSERT_OK(engine->MarkUnitGradsReady(kUnits - 1));
        ASSERT_OK(engine->UnitRelease(kUnits - 1));
        ASSERT_OK(ReadyRest(engine));
        ASSERT_OK(Step(engine));
      }
      int64_t steps = -1;
      ASSERT_OK(engine->Join(0, &steps));
      EXPECT_EQ(steps, rank == 0 ? 2 : 0);
      ASSERT_OK(engine->UnitAcquire(kUnits - 1, Pass::kForward, 0));
      const auto bias = engine->Param(kLastBias);
      ASSERT_OK(bias);
      if (rank == 0) {
        read[begins ? 1 : 0] = Load(DType::kF32, bias->data, bias->numel);
      }
      ASSERT_OK(engine->UnitRelease(kUnits - 1));
    });
  }
  EXPECT_EQ(read[1], read[0]);
  EXPECT_NE(read[0], std::vector<float>(3));
}

INSTANTIATE_TEST_SUITE_P(Forms, BeginStepTest, ::testing::ValuesIn(kForms),
                         NameOf);

}  // namespace
}  // namespace shard::step_coordinator_test
