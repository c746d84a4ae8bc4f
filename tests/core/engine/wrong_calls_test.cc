// SPDX-License-Identifier: Apache-2.0
//
// The same call in the wrong state on all ranks: the error's text, and the
// calls that work afterwards.

#include <gtest/gtest.h>

#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/unit_calls.h"

namespace shard::wrong_calls_test {
namespace {

using testing::Form;
using testing::kForms;
using testing::NameOf;
using testing::UnitCallsTest;

class WrongCallsTest : public UnitCallsTest {};

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
    ExpectInvalid(engine->MarkUnitGradsReady(-2), {"unit -2"});
    ExpectInvalid(engine->MarkParamGradReady(99), {"parameter 99"});
    ExpectError(engine->UnitRelease(2), kWrongState,
                {"unit 'b1' (2)", "IDLE", "FORWARD"});

    ASSERT_OK(engine->UnitAcquire(2, Pass::kForward, 0));
    ExpectError(engine->UnitAcquire(2, Pass::kBackward, 0), kWrongState,
                {"unit 'b1' (2)", "FORWARD", "IDLE"});
    ExpectError(engine->MarkUnitGradsReady(2), kWrongState,
                {"unit 'b1' (2)", "FORWARD", "BACKWARD_PRE"});
    // Parameter 3 is the unit's weight.
    ExpectError(engine->MarkParamGradReady(3), kWrongState,
                {"unit 'b1' (2)", "FORWARD", "BACKWARD_PRE"});
    ExpectError(Step(engine), kWrongState,
                {"rank 0", "unit 'b1' (2)", "FORWARD", "step"});
    ASSERT_OK(engine->UnitRelease(2));
    if (form.shards_grads()) {
      ExpectError(engine->MarkUnitGradsReady(2), kWrongState,
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
        auto made = CreateEngine(*plan, comm, EngineOptions());
        ASSERT_OK(made);
        Engine* const engine = made->get();
        ExpectError(engine->UnitAcquire(0, Pass::kForward, 0), kWrongState,
                    {"unit_acquire", "FILLING", "broadcast_params"});
        ExpectError(engine->UnitRelease(0), kWrongState, {"FILLING"});
        ExpectError(engine->MarkUnitGradsReady(0), kWrongState, {"FILLING"});
        ExpectError(engine->MarkParamGradReady(0), kWrongState, {"FILLING"});
        ExpectError(engine->SetAccumulate(true), kWrongState, {"FILLING"});
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
    ASSERT_OK(engine->MarkParamGradReady(5));
    ExpectError(engine->MarkParamGradReady(5), kWrongState,
                {"parameter 5", "unit 'b2' (3)", "ready already"});
    ExpectError(engine->MarkUnitGradsReady(3), kWrongState,
                {"unit 'b2' (3)", "1 of its 2", "missing_grads"});
    ASSERT_OK(engine->MarkParamGradReady(6));
    ExpectError(engine->MarkUnitGradsReady(3), kWrongState,
                {"unit 'b2' (3)", "ready already"});
    ExpectError(engine->MarkParamGradReady(6), kWrongState,
                {"unit 'b2' (3)", "ready already"});
    ASSERT_OK(engine->UnitRelease(3));
    ExpectError(engine->MarkUnitGradsReady(3), kWrongState,
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
        ASSERT_OK(engine->SetAccumulate(true));
        ASSERT_OK(engine->UnitAcquire(1, Pass::kBackward, 0));
        const Status status = engine->MarkUnitGradsReady(1);
        if (form.shards_grads()) {
          ExpectError(status, kWrongState, {"deterministic", "whole_grads"});
        } else {
          ASSERT_OK(status);
        }
        ASSERT_OK(engine->UnitRelease(1));
        ASSERT_OK(engine->SetAccumulate(false));
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
    ASSERT_OK(engine->MarkUnitGradsReady(2));
    EXPECT_OK(engine->Param(3));
    EXPECT_EQ(engine->Grad(3).ok(), !form.shards_grads());
    ASSERT_OK(engine->UnitRelease(2));
    // Waits, so that no transfer is in progress when the engine is freed.
    EXPECT_OK(engine->ZeroGrad());
  });
}

INSTANTIATE_TEST_SUITE_P(Forms, WrongCallsTest, ::testing::ValuesIn(kForms),
                         NameOf);

}  // namespace
}  // namespace shard::wrong_calls_test
