// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/unit_states.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/core/base/expect_status.h"
#include "tests/core/engine/unit_training.h"

namespace shard::unit_states_test {
namespace {

using State = UnitStates::State;

constexpr StatusCode kWrong = StatusCode::kFailedPrecondition;

// Returns a plan with the root (0) and parameter 0, 'a' (1) with 1, 2 and the
// frozen 3, and 'b' (2) with the frozen 4.
std::shared_ptr<const Plan> MakePlan() {
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  Model& model = *training.model;
  EXPECT_OK(model.AddParam(kRootModule, "base", DType::kF32, {3}));
  const ModuleId a = *model.AddModule(kRootModule, "a", "Block");
  for (const char* name : {"x", "y", "z"}) {
    EXPECT_OK(model.AddParam(a, name, DType::kF32, {2}));
  }
  const ModuleId b = *model.AddModule(kRootModule, "b", "Block");
  EXPECT_OK(model.AddParam(b, "w", DType::kF32, {2}));
  EXPECT_OK(model.SetTrainable(3, false));
  EXPECT_OK(model.SetTrainable(4, false));
  training.wrap = "class?names=Block";
  return *PlanOf(training);
}

struct Options {
  bool whole_grads = false;
  bool allow_missing = false;
};

UnitStates Make(const Plan& plan, const Options& options = {}) {
  return UnitStates(plan, options.whole_grads, options.allow_missing);
}

class UnitStatesTest : public ::testing::Test {
 protected:
  const std::shared_ptr<const Plan> plan_ = MakePlan();
};

TEST_F(UnitStatesTest, NamesUnitsAndStates) {
  const UnitStates states = Make(*plan_, {.whole_grads = true});
  EXPECT_EQ(states.Name(0), "the root unit (0)");
  EXPECT_EQ(states.Name(1), "unit 'a' (1)");
  EXPECT_EQ(UnitStates::StateName(State::kIdle), "IDLE");
  EXPECT_EQ(UnitStates::StateName(State::kForward), "FORWARD");
  EXPECT_EQ(UnitStates::StateName(State::kBackwardPre), "BACKWARD_PRE");
  EXPECT_EQ(UnitStates::StateName(State::kBackwardPost), "BACKWARD_POST");
  ExpectInvalid(states.CheckUnit(3), {"unit 3", "has 3, from 0"});
  ExpectInvalid(states.CheckUnit(-1), {"unit -1"});
  EXPECT_OK(states.CheckUnit(2));
}

// Tests which calls each state allows.
TEST_F(UnitStatesTest, EachStateAllowsItsCallsOnly) {
  for (const bool whole : {false, true}) {
    for (const State state : {State::kIdle, State::kForward,
                              State::kBackwardPre, State::kBackwardPost}) {
      UnitStates states = Make(*plan_, {.whole_grads = whole});
      if (state == State::kForward) states.Acquire(1, Pass::kForward);
      if (state >= State::kBackwardPre) states.Acquire(1, Pass::kBackward);
      if (state == State::kBackwardPost) states.GradsReady(1, true);
      ASSERT_EQ(states.state(1), state);
      const bool idle = state == State::kIdle;
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        EXPECT_EQ(states.CheckAcquire(1, pass).ok(), idle);
      }
      EXPECT_EQ(states.CheckRelease(1).ok(), !idle);
      EXPECT_EQ(states.CheckAllIdle("step").ok(), idle);
      const bool ready = state == State::kBackwardPre || (idle && whole);
      EXPECT_EQ(states.CheckGradsReady(1).ok(), ready);
      EXPECT_EQ(states.CheckParamReady(1).ok(), ready);
      if (idle) continue;
      const std::string_view name = UnitStates::StateName(state);
      ExpectError(states.CheckAcquire(1, Pass::kForward), kWrong,
                  {"unit 'a' (1)", name, "IDLE"});
      ExpectError(states.CheckAllIdle("step"), kWrong,
                  {"unit 'a' (1)", name, "step"});
      states.Release(1);
      EXPECT_EQ(states.state(1), State::kIdle);
    }
  }
  const UnitStates states = Make(*plan_);
  ExpectInvalid(states.CheckAcquire(1, static_cast<Pass>(4)), {"pass 4"});
}

TEST_F(UnitStatesTest, UnitBecomesReadyOnce) {
  for (const bool whole : {false, true}) {
    UnitStates states = Make(*plan_, {.whole_grads = whole});
    EXPECT_FALSE(states.any_ready());
    states.BeginDeclaring();
    ExpectError(states.CheckAllReady(), kWrong,
                {"those of 2", "the root unit (0), unit 'a' (1)"});
    states.Acquire(1, Pass::kBackward);
    states.GradsReady(1, false);
    EXPECT_TRUE(states.any_ready());
    EXPECT_TRUE(states.ready(1));
    EXPECT_TRUE(states.HasGrad(1));
    EXPECT_TRUE(states.HasGrad(2));
    EXPECT_FALSE(states.HasGrad(0));
    EXPECT_FALSE(states.HasGrad(3));  // Frozen.
    ExpectError(states.CheckGradsReady(1), kWrong, {"ready already"});
    states.Release(1);
    ExpectError(states.CheckAcquire(1, Pass::kBackward), kWrong,
                {"ready for the step already"});
    EXPECT_OK(states.CheckAcquire(1, Pass::kForward));
    // The root's gradients are left; a unit of frozen parameters needs nothing.
    ExpectError(states.CheckAllReady(), kWrong, {"those of 1", "root"});
    states.Acquire(0, Pass::kBackward);
    states.GradsReady(0, false);
    states.Release(0);
    EXPECT_OK(states.CheckAllReady());
    states.ClearReady();
    EXPECT_FALSE(states.any_ready());
    EXPECT_FALSE(states.HasGrad(1));
    EXPECT_OK(states.CheckAcquire(1, Pass::kBackward));
  }
}

TEST_F(UnitStatesTest, ParametersBecomeReadyOneByOne) {
  UnitStates states = Make(*plan_);
  states.Acquire(1, Pass::kBackward);
  EXPECT_FALSE(states.ParamReady(2));
  EXPECT_TRUE(states.HasGrad(2));
  ExpectError(states.CheckParamReady(2), kWrong,
              {"parameter 2", "unit 'a' (1)", "ready already"});
  ExpectError(states.CheckGradsReady(1), kWrong, {"1 of its 2"});
  EXPECT_TRUE(states.ParamReady(1));
  EXPECT_OK(states.CheckGradsReady(1));
  states.GradsReady(1, false);
  EXPECT_TRUE(states.ready(1));
  ExpectError(states.CheckParamReady(1), kWrong, {"ready already"});
}

TEST_F(UnitStatesTest, GradientsMayBeMissing) {
  UnitStates states = Make(*plan_, {.allow_missing = true});
  states.Acquire(1, Pass::kBackward);
  EXPECT_FALSE(states.ParamReady(2));
  EXPECT_OK(states.CheckGradsReady(1));
  states.GradsReady(1, false);
  EXPECT_FALSE(states.HasGrad(1));
  EXPECT_TRUE(states.HasGrad(2));
  EXPECT_TRUE(states.ready(1));
}

// A gradient from an earlier pass counts, even if the last pass has none.
TEST_F(UnitStatesTest, GradientsOfEarlierPassesCount) {
  for (const bool whole : {false, true}) {
    UnitStates states =
        Make(*plan_, {.whole_grads = whole, .allow_missing = true});
    states.Acquire(1, Pass::kBackward);
    states.ParamReady(1);
    states.GradsReady(1, true);
    EXPECT_TRUE(states.any_ready());
    EXPECT_FALSE(states.ready(1));
    states.Release(1);
    EXPECT_OK(states.CheckAcquire(1, Pass::kBackward));

    // This pass releases the unit before it is ready. The gradient that it
    // declared then counts only where gradients are whole.
    states.Acquire(1, Pass::kBackward);
    EXPECT_FALSE(states.SomeDeclared(1));
    EXPECT_OK(states.CheckParamReady(1));
    EXPECT_FALSE(states.ParamReady(2));
    EXPECT_TRUE(states.SomeDeclared(1));
    EXPECT_FALSE(states.Declared(1));
    EXPECT_TRUE(states.Declared(2));
    states.Release(1);
    EXPECT_FALSE(states.SomeDeclared(1));
    EXPECT_TRUE(states.HasGrad(1));
    EXPECT_EQ(states.HasGrad(2), whole);

    states.Acquire(1, Pass::kBackward);
    EXPECT_OK(states.CheckParamReady(2));
    states.ParamReady(2);
    states.GradsReady(1, false);
    EXPECT_TRUE(states.ready(1));
    EXPECT_TRUE(states.HasGrad(1));
    EXPECT_TRUE(states.HasGrad(2));
    states.ClearReady();
    EXPECT_FALSE(states.HasGrad(1));
    EXPECT_FALSE(states.HasGrad(2));
  }
}

// Without missing_grads, and with whole gradients, the rest of a unit may be
// declared after the release.
TEST_F(UnitStatesTest, TheRestMayFollowTheRelease) {
  UnitStates states = Make(*plan_, {.whole_grads = true});
  states.Acquire(1, Pass::kBackward);
  EXPECT_FALSE(states.ParamReady(2));
  states.Release(1);
  EXPECT_TRUE(states.HasGrad(2));
  ExpectError(states.CheckParamReady(2), kWrong, {"ready already"});
  EXPECT_TRUE(states.ParamReady(1));
}

// Each of these acts makes a rank declare from then on.
TEST_F(UnitStatesTest, ARankThatDeclaresCountsOnlyReadyGradients) {
  using Act = void (*)(UnitStates*);
  const Act acts[] = {
      [](UnitStates* s) { s->Acquire(1, Pass::kBackward), s->Release(1); },
      [](UnitStates* s) {
        s->Acquire(2, Pass::kBackwardOverwrite), s->Release(2);  // Frozen.
      },
      [](UnitStates* s) { s->GradsReady(1, false); },
      [](UnitStates* s) { s->GradsReady(1, true); },
      [](UnitStates* s) { s->ParamReady(1); },
      [](UnitStates* s) { s->BeginDeclaring(); },
  };
  for (const Act act : acts) {
    UnitStates states = Make(*plan_, {.whole_grads = true});
    states.Acquire(1, Pass::kForward);
    states.Release(1);
    states.ClearReady();
    EXPECT_FALSE(states.declares());
    EXPECT_TRUE(states.HasGrad(0));
    EXPECT_TRUE(states.HasGrad(1));
    EXPECT_OK(states.CheckAllReady());
    act(&states);
    for (int step = 0; step < 2; ++step) {
      EXPECT_TRUE(states.declares());
      EXPECT_FALSE(states.HasGrad(0));
      ExpectError(states.CheckAllReady(), kWrong, {"the root unit (0)"});
      states.ClearReady();
    }
  }
  // Sharded gradients exist only in a backward pass, so that ranks always
  // declare.
  const UnitStates sharded = Make(*plan_);
  EXPECT_TRUE(sharded.declares());
  EXPECT_FALSE(sharded.HasGrad(0));
  ExpectError(sharded.CheckAllReady(), kWrong, {"the root unit (0)"});
}

TEST_F(UnitStatesTest, NamesAFewOfMany) {
  UnitTraining training;
  training.model = BlockModel(12);
  const auto plan = *PlanOf(training);
  const UnitStates states = Make(*plan);
  ExpectError(states.CheckAllReady(), kWrong,
              {"those of 25", "unit 'block0' (1)", ", ..."});
}

}  // namespace
}  // namespace shard::unit_states_test
