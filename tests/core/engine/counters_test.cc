// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/core/engine/unit_training.h"

namespace shard::counters_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::shared_ptr<Model> MakeModel(bool last_trainable) {
  auto model = std::make_shared<Model>("Root");
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_TRUE(model->AddParam(kRootModule, name, DType::kF32, {3}).ok());
  }
  EXPECT_TRUE(model->SetTrainable(2, last_trainable).ok());
  return model;
}

std::shared_ptr<const Plan> MakePlan(bool last_trainable) {
  UnitTraining training;
  training.model = MakeModel(last_trainable);
  training.wrap = "";
  return *PlanOf(training);
}

class CountersTest : public ::testing::Test {
 protected:
  // Counts a step of all parameters but the one at `left_out`.
  void StepWithout(size_t left_out, bool skipped = false) {
    counters_.Choose(*plan_, [&](size_t at) { return at != left_out; });
    counters_.Count(skipped);
  }
  void StepAll() {
    counters_.ChooseAll(*plan_);
    counters_.Count(false);
  }

  const std::shared_ptr<const Plan> plan_ = MakePlan(true);
  Counters counters_{LossScaler()};
};

TEST_F(CountersTest, AllParametersShareOneCount) {
  StepAll();
  StepAll();
  EXPECT_EQ(counters_.step(), 2);
  EXPECT_THAT(counters_.param_steps(), IsEmpty());
  EXPECT_EQ(counters_.next_steps(), nullptr);
}

TEST_F(CountersTest, ParametersLeftOutHaveCountsOfTheirOwn) {
  StepAll();
  StepWithout(1);
  EXPECT_EQ(counters_.step(), 2);
  EXPECT_THAT(counters_.param_steps(), ElementsAre(2, 1, 2));
  counters_.ChooseAll(*plan_);
  ASSERT_NE(counters_.next_steps(), nullptr);
  EXPECT_EQ(counters_.next_steps()[1], 2);
  counters_.Count(false);
  EXPECT_THAT(counters_.param_steps(), ElementsAre(3, 2, 3));
}

TEST_F(CountersTest, ASkippedStepCountsNothing) {
  StepAll();
  StepWithout(0, true);
  EXPECT_EQ(counters_.step(), 1);
  EXPECT_THAT(counters_.param_steps(), IsEmpty());
}

TEST_F(CountersTest, SetStepSetsAllCounts) {
  StepWithout(0);
  EXPECT_TRUE(counters_.SetStep(7).ok());
  EXPECT_EQ(counters_.step(), 7);
  EXPECT_THAT(counters_.param_steps(), IsEmpty());
  for (const int64_t wrong : {int64_t{-1}, Counters::kMostSteps + 1}) {
    EXPECT_EQ(counters_.SetStep(wrong).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(counters_.step(), 7);
}

TEST_F(CountersTest, RefusesAStepBeyondTheLast) {
  EXPECT_TRUE(counters_.SetStep(Counters::kMostSteps - 1).ok());
  EXPECT_TRUE(counters_.CheckStepCount().ok());
  StepAll();
  EXPECT_EQ(counters_.CheckStepCount().code(), StatusCode::kOutOfRange);
  // The step count of a single parameter is enough for the error.
  counters_.Reset();
  counters_.SpreadSteps(*plan_);
  counters_.SetParamStep(*plan_, 1, Counters::kMostSteps);
  EXPECT_EQ(counters_.CheckStepCount().code(), StatusCode::kOutOfRange);
}

TEST_F(CountersTest, EqualCountsCollapse) {
  counters_.RestoreStep(4);
  counters_.SpreadSteps(*plan_);
  counters_.SetParamStep(*plan_, 0, 3);
  counters_.CollapseSteps(*plan_);
  EXPECT_THAT(counters_.param_steps(), ElementsAre(3, 4, 4));
  counters_.SetParamStep(*plan_, 0, 4);
  counters_.CollapseSteps(*plan_);
  EXPECT_THAT(counters_.param_steps(), IsEmpty());
}

TEST_F(CountersTest, NewlyTrainedParametersCountFromZero) {
  const std::shared_ptr<const Plan> frozen = MakePlan(false);
  counters_.ContinueWith(*frozen, *plan_);
  EXPECT_THAT(counters_.param_steps(), IsEmpty());  // All counts are 0.
  StepAll();
  counters_.ContinueWith(*plan_, *frozen);
  EXPECT_THAT(counters_.param_steps(), IsEmpty());
  counters_.ContinueWith(*frozen, *plan_);
  EXPECT_THAT(counters_.param_steps(), ElementsAre(1, 1, 0));
}

}  // namespace
}  // namespace shard::counters_test
