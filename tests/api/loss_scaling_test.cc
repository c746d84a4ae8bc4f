// SPDX-License-Identifier: Apache-2.0
//
// Loss scaling, and the number of steps, through the C API.

#include <cmath>

#include "tests/api/api_testing.h"
#include "tests/core/base/temp_folder.h"

namespace shard_api_testing::loss_scaling_test {
namespace {

Engine ScalingEngine(shard_comm* comm, const shard_plan* plan,
                     const char* loss_scaling) {
  shard_engine_options options = SHARD_ENGINE_OPTIONS_INIT;
  options.loss_scaling = loss_scaling;
  shard_engine* raw = nullptr;
  EXPECT_OK(shard_engine_create(plan, comm, &options, &raw));
  Engine engine(raw);
  EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
  return engine;
}

void ExpectScaler(const shard_engine* engine, double scale,
                  int64_t good_steps) {
  double actual_scale = 0;
  int64_t actual_steps = -1;
  EXPECT_OK(shard_engine_loss_scale(engine, &actual_scale));
  EXPECT_OK(shard_engine_growth_tracker(engine, &actual_steps));
  EXPECT_EQ(actual_scale, scale);
  EXPECT_EQ(actual_steps, good_steps);
}

void StepWith(shard_engine* engine, float gradient) {
  FillGrad(engine, gradient);
  EXPECT_OK(shard_engine_step(engine, nullptr, nullptr));
}

constexpr const char* kScaling = "dynamic?init_scale=8&growth_interval=4";

TEST(LossScalingTest, IsTheEnginesAndTheSameOnAllRanks) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Plan plan = SmallPlan(2);
    shard_engine_options options = SHARD_ENGINE_OPTIONS_INIT;
    options.loss_scaling = "dynamic?init_scale=8";
    shard_engine* raw = nullptr;
    ASSERT_OK(shard_engine_create(plan.get(), comm, &options, &raw));
    const Engine engine(raw);
    EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
    double scale = 0;
    EXPECT_OK(shard_engine_loss_scale(engine.get(), &scale));
    EXPECT_EQ(scale, 8);
    FillGrad(engine.get(), rank == 1 ? NAN : 1);
    shard_step_report report = SHARD_STEP_REPORT_INIT;
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, &report));
    EXPECT_EQ(report.skipped, 1);
    EXPECT_EQ(report.step, 0);
    EXPECT_EQ(report.loss_scale, 8);
    EXPECT_OK(shard_engine_loss_scale(engine.get(), &scale));
    EXPECT_EQ(scale, 4);
  });
}

TEST(LossScalingTest, WrongTextsAreErrorsOnAllRanks) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Plan plan = SmallPlan(2);
    shard_engine_options options = SHARD_ENGINE_OPTIONS_INIT;
    if (rank == 1) options.loss_scaling = "dynamic?backoff_factor=2";
    shard_engine* engine = Garbage<shard_engine>();
    const Outcome outcome =
        Take(shard_engine_create(plan.get(), comm, &options, &engine));
    ExpectError(outcome, SHARD_INVALID_ARGUMENT, {"backoff_factor=2"});
    EXPECT_EQ(outcome.rank, 1);
    EXPECT_EQ(engine, nullptr);
  });
  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  EXPECT_FAILS(shard_engine_loss_scale(engine.get(), nullptr),
               SHARD_INVALID_ARGUMENT, "scale is NULL");
  EXPECT_FAILS(shard_engine_growth_tracker(engine.get(), nullptr),
               SHARD_INVALID_ARGUMENT, "good_steps is NULL");
  int64_t good_steps = 7;
  EXPECT_FAILS(shard_engine_growth_tracker(nullptr, &good_steps),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_EQ(good_steps, 0);
  EXPECT_FAILS(shard_engine_set_loss_scale(nullptr, 1, 0),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  // Without loss_scaling the scale is always 1, and the count 0.
  EXPECT_OK(shard_engine_set_loss_scale(engine.get(), 1, 0));
  EXPECT_FAILS(shard_engine_set_loss_scale(engine.get(), 2, 0),
               SHARD_INVALID_ARGUMENT, "loss scale 2");
}

TEST(LossScalingTest, TheGrowthTrackerCountsGoodSteps) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Plan plan = SmallPlan(2);
    const Engine engine = ScalingEngine(comm, plan.get(), kScaling);
    ExpectScaler(engine.get(), 8, 0);
    for (int good = 1; good < 4; ++good) {
      StepWith(engine.get(), 1);
      ExpectScaler(engine.get(), 8, good);
    }
    StepWith(engine.get(), 1);
    ExpectScaler(engine.get(), 16, 0);
    StepWith(engine.get(), 1);
    ExpectScaler(engine.get(), 16, 1);
    StepWith(engine.get(), rank == 1 ? NAN : 1);
    ExpectScaler(engine.get(), 8, 0);

    // Sets the values that another program left.
    EXPECT_OK(shard_engine_set_loss_scale(engine.get(), 2, 3));
    ExpectScaler(engine.get(), 2, 3);
    StepWith(engine.get(), 1);
    ExpectScaler(engine.get(), 4, 0);
    EXPECT_FAILS(shard_engine_set_loss_scale(engine.get(), 4, 4),
                 SHARD_INVALID_ARGUMENT, "4 good steps", "[0, 4)");
    EXPECT_FAILS(shard_engine_set_loss_scale(engine.get(), 4, -1),
                 SHARD_INVALID_ARGUMENT, "-1 good steps");
    EXPECT_FAILS(shard_engine_set_loss_scale(engine.get(), 0.5, 1),
                 SHARD_INVALID_ARGUMENT, "loss scale 0.5");
    EXPECT_FAILS(shard_engine_set_loss_scale(engine.get(), NAN, 1),
                 SHARD_INVALID_ARGUMENT, "loss scale nan");
    ExpectScaler(engine.get(), 4, 0);

    shard_engine_options options = SHARD_ENGINE_OPTIONS_INIT;
    options.loss_scaling = kScaling;
    shard_engine* raw = nullptr;
    ASSERT_OK(shard_engine_create(plan.get(), comm, &options, &raw));
    const Engine filling(raw);
    EXPECT_FAILS(shard_engine_set_loss_scale(filling.get(), 4, 1),
                 SHARD_FAILED_PRECONDITION, "set_loss_scale");
  });
}

TEST(LossScalingTest, CheckpointsAndStateDictsKeepTheGrowthTracker) {
  const shard::testing::TempFolder folder;
  const Comm comm = OpenLocal();
  const Plan plan = SmallPlan(1);
  const Engine from = ScalingEngine(comm.get(), plan.get(), kScaling);
  for (int step = 0; step < 6; ++step) StepWith(from.get(), 1);
  ExpectScaler(from.get(), 16, 2);
  EXPECT_OK(shard_checkpoint_save(from.get(), folder.path().c_str(), nullptr,
                                  nullptr));
  shard_state_dict* state = nullptr;
  ASSERT_OK(shard_state_dict_get(from.get(), nullptr, &state));

  const Engine loaded = ScalingEngine(comm.get(), plan.get(), kScaling);
  EXPECT_OK(shard_checkpoint_load(loaded.get(), folder.path().c_str(), nullptr,
                                  nullptr));
  ExpectScaler(loaded.get(), 16, 2);
  const Engine given = ScalingEngine(comm.get(), plan.get(), kScaling);
  EXPECT_OK(shard_state_dict_load(given.get(), state, nullptr, 0, nullptr));
  ExpectScaler(given.get(), 16, 2);
  // A scaler that cannot have these values keeps its own.
  const Engine other = ScalingEngine(comm.get(), plan.get(), "static?scale=2");
  EXPECT_OK(shard_state_dict_load(other.get(), state, nullptr, 0, nullptr));
  ExpectScaler(other.get(), 2, 0);
  shard_state_dict_free(state);
}

// 2^32 - 2 steps can be counted. No rank begins another one.
TEST(StepCountTest, EndsBeforeItsThirtyTwoBits) {
  constexpr int64_t kMost = 4294967294;
  RunRanks(2, [](int, shard_comm* comm) {
    const Plan plan = SmallPlan(2);
    const Engine engine = ScalingEngine(comm, plan.get(), "");
    EXPECT_FAILS(shard_engine_set_completed_steps(engine.get(), kMost + 1),
                 SHARD_INVALID_ARGUMENT, "step 4294967295", "4294967294");
    ASSERT_OK(shard_engine_set_completed_steps(engine.get(), kMost - 1));
    StepWith(engine.get(), 1);
    const float last = WeightOf(engine.get())[0];
    FillGrad(engine.get(), 1);
    shard_step_report report = SHARD_STEP_REPORT_INIT;
    EXPECT_FAILS(shard_engine_step(engine.get(), nullptr, &report),
                 SHARD_OUT_OF_RANGE, "step 4294967295", "1 to 4294967294",
                 "set_completed_steps");
    EXPECT_FAILS(shard_engine_begin_step(engine.get(), nullptr),
                 SHARD_OUT_OF_RANGE, "step 4294967295");
    EXPECT_EQ(WeightOf(engine.get())[0], last);
    // All ranks refused the step, so they can go on.
    ASSERT_OK(shard_engine_set_completed_steps(engine.get(), 5));
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, &report));
    EXPECT_EQ(report.step, 6);
  });
}

// A state dict may hold another count for each parameter: the largest one
// counts.
TEST(StepCountTest, IsThatOfTheParameterThatDidMost) {
  const Comm comm = OpenLocal();
  const Plan plan = SmallPlan(1);
  const Engine engine = ScalingEngine(comm.get(), plan.get(), "");
  const float before = WeightOf(engine.get())[0];
  const auto load = [&](double steps) {
    shard_state_dict* state = nullptr;
    EXPECT_OK(shard_state_dict_create(&state));
    EXPECT_OK(shard_state_dict_add_number(state, "state.weight.step", steps));
    shard_load_options options = SHARD_LOAD_OPTIONS_INIT;
    options.allow_mismatch = 1;
    shard_error* error =
        shard_state_dict_load(engine.get(), state, &options, 0, nullptr);
    shard_state_dict_free(state);
    return error;
  };
  EXPECT_FAILS(load(4294967295.0), SHARD_INVALID_ARGUMENT, "4294967295",
               "0 to 4294967294");
  EXPECT_OK(load(4294967294.0));
  FillGrad(engine.get(), 1);
  EXPECT_FAILS(shard_engine_step(engine.get(), nullptr, nullptr),
               SHARD_OUT_OF_RANGE, "step 4294967295");
  EXPECT_EQ(WeightOf(engine.get())[0], before);
}

}  // namespace
}  // namespace shard_api_testing::loss_scaling_test
