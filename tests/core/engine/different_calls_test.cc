// SPDX-License-Identifier: Apache-2.0
//
// Ranks that make different calls: the same error on all of them, no hangs, and
// the calls that work afterwards.

#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <string>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/unit_calls.h"

namespace shard::different_calls_test {
namespace {

using testing::Form;
using testing::kForms;
using testing::NameOf;
using testing::UnitCallsTest;

class DifferentCallsTest : public UnitCallsTest {};

// Expects that every call fails with `code`, because the ranks are out of step.
void ExpectFinal(Engine* engine, StatusCode code) {
  StepReport report;
  int64_t steps = 0;
  ExpectError(engine->Step(StepOptions(), &report), code, {});
  ExpectError(engine->UnitAcquire(4, Pass::kForward, 0), code, {});
  ExpectError(engine->ZeroGrad(), code, {});
  ExpectError(engine->Join(0, &steps), code, {});
}

// Expects that rank 0 moves unit 5 and rank 1 unit 2. The ranks find it in what
// they announce, or, where the announcements of two hosts cross, in the
// collective.
void ExpectDifferentUnits(const Status& status, const std::string& announces,
                          const std::string& calls) {
  const bool in_collective =
      TestsAreOn("tcp") && status.message().find(calls) != std::string::npos;
  if (in_collective) {
    ExpectError(status, StatusCode::kDesync,
                {StrCat(calls, " 5'"), StrCat(calls, " 2'")});
  } else {
    ExpectError(status, StatusCode::kDesync,
                {StrCat("rank 0 ", announces, " 'b4' (5)"),
                 StrCat("rank 1 ", announces, " 'b1' (2)")});
  }
  EXPECT_EQ(status.rank(), 1);
}

// The other ranks are in the step already, or wait in a reduction for this
// rank.
TEST_P(DifferentCallsTest, AUnitNotReadyOnOneRankFailsTheStepOnAll) {
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

TEST_P(DifferentCallsTest, AUnitInUseOnOneRankFailsTheStepOnAll) {
  OnRanks(
      [&](Engine* engine) {
        const int rank = engine->comm()->rank();
        for (int32_t unit = kUnits; unit-- > 0;) {
          ASSERT_OK(engine->UnitAcquire(unit, Pass::kBackward, 0));
          ASSERT_OK(engine->MarkUnitGradsReady(unit));
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

TEST_P(DifferentCallsTest, AnUnknownUnitFailsAllRanksThatGather) {
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
TEST_P(DifferentCallsTest, AnUnknownParameterFailsAllRanksThatReduce) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    const bool wrong = engine->comm()->rank() == 1;
    ASSERT_OK(engine->UnitAcquire(3, Pass::kBackward, 0));
    ASSERT_OK(engine->MarkParamGradReady(5));
    Status status = engine->MarkParamGradReady(wrong ? 99 : 6);
    if (!form.reduces()) {
      // The call involves no other rank, so the error stays on rank 1.
      EXPECT_EQ(status.ok(), !wrong);
      if (wrong) ASSERT_OK(engine->MarkParamGradReady(6));
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

TEST_P(DifferentCallsTest, AWrongStateFailsAllRanksThatReduce) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    const bool wrong = engine->comm()->rank() == 1;
    ASSERT_OK(
        engine->UnitAcquire(3, wrong ? Pass::kForward : Pass::kBackward, 0));
    Status status = engine->MarkUnitGradsReady(3);
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

TEST_P(DifferentCallsTest, GatheringDifferentUnitsIsADesync) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    const int32_t unit = engine->comm()->rank() == 1 ? 2 : 5;
    const Status status = engine->UnitAcquire(unit, Pass::kForward, 0);
    if (form.gathers()) {
      ExpectDifferentUnits(status, "gathers the parameters of unit",
                           "'gather parameters of unit");
      return ExpectFinal(engine, StatusCode::kDesync);
    }
    ASSERT_OK(status);
    ASSERT_OK(engine->UnitRelease(unit));
    EXPECT_OK(TrainStep(engine));
  });
}

TEST_P(DifferentCallsTest, ReducingDifferentUnitsIsADesync) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    ASSERT_OK(engine->UnitAcquire(2, Pass::kBackward, 0));
    ASSERT_OK(engine->UnitAcquire(5, Pass::kBackward, 0));
    const int32_t unit = engine->comm()->rank() == 1 ? 2 : 5;
    Status status = engine->MarkUnitGradsReady(unit);
    if (form.reduces()) {
      // The rank that comes first gets the error when it next waits.
      if (status.ok()) status = engine->ZeroGrad();
      ExpectDifferentUnits(status, "reduces the gradients of unit",
                           "'reduce gradients of unit");
      return ExpectFinal(engine, StatusCode::kDesync);
    }
    ASSERT_OK(status);
    ASSERT_OK(engine->MarkUnitGradsReady(7 - unit));
    ASSERT_OK(engine->UnitRelease(2));
    ASSERT_OK(engine->UnitRelease(5));
    for (const int32_t other : {0, 1, 3, 4, 6}) ASSERT_OK(Ready(engine, other));
    EXPECT_OK(Step(engine));
  });
}

// Rank 0 steps while the other rank trains with units. Gradients that rank 0
// declared in the previous step are not gradients of this one.
TEST_P(DifferentCallsTest, RefusesAStepWhileOthersTrain) {
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
TEST_P(DifferentCallsTest, SimpleStepAgainstUnits) {
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

// Rank 1 does not take part. Rank 0 waits no longer than its timeout, and rank
// 1 does not wait forever when it comes after all.
TEST_P(DifferentCallsTest, NobodyWaitsForeverForARankThatDoesNotCome) {
  const Form& form = GetParam();
  const auto plan = MakePlan(form);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  std::promise<void> gone;
  std::future<void> left = gone.get_future();
  RunThreadRanks(
      2,
      [&](const auto& comm) {
        auto made = CreateEngine(*plan, comm, EngineOptions());
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
      ShortTimeout(0.3), form.link);
}

INSTANTIATE_TEST_SUITE_P(Forms, DifferentCallsTest, ::testing::ValuesIn(kForms),
                         NameOf);

}  // namespace
}  // namespace shard::different_calls_test
