// SPDX-License-Identifier: Apache-2.0
//
// Units, begun steps, join, full parameters and changes at run time, as a host
// in C uses them. Their behavior is tested below tests/core/engine.

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/api/api_testing.h"

namespace shard_api_testing::engine_units_test {
namespace {

// Makes a pass through the small model, which has one unit. lr is 0.5, and
// ranks' gradients average to 1.
void Pass(shard_engine* engine, float grad) {
  EXPECT_OK(shard_engine_unit_acquire(engine, 0, SHARD_PASS_FORWARD, 0));
  EXPECT_OK(shard_engine_unit_release(engine, 0));
  EXPECT_OK(shard_engine_unit_acquire(engine, 0, SHARD_PASS_BACKWARD, 0));
  FillGrad(engine, grad);
  EXPECT_OK(shard_engine_mark_unit_grads_ready(engine, 0));
  EXPECT_OK(shard_engine_unit_release(engine, 0));
}

TEST(EngineUnitsTest, NullAndUnknown) {
  EXPECT_FAILS(shard_engine_unit_acquire(nullptr, 0, 1, 0),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_FAILS(shard_engine_unit_release(nullptr, 0), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  EXPECT_FAILS(shard_engine_mark_unit_grads_ready(nullptr, 0),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_FAILS(shard_engine_mark_param_grad_ready(nullptr, 0),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_FAILS(shard_engine_set_accumulate(nullptr, 0), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  EXPECT_FAILS(shard_engine_begin_step(nullptr, nullptr),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_FAILS(shard_engine_join(nullptr, 0, nullptr), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  EXPECT_FAILS(shard_engine_summon(nullptr, 0, -1, 0), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  EXPECT_FAILS(shard_engine_summon_end(nullptr, 0, 0), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  int32_t group = 7;
  EXPECT_FAILS(
      shard_engine_add_param_group(nullptr, "sgd", nullptr, 0, 0, &group),
      SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_EQ(group, 0);
  EXPECT_FAILS(shard_engine_set_trainable(nullptr, nullptr, 0, 0, 0),
               SHARD_INVALID_ARGUMENT, "engine is NULL");

  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  EXPECT_FAILS(shard_engine_unit_acquire(engine.get(), 1, 1, 0),
               SHARD_INVALID_ARGUMENT, "unit 1", "1, from 0");
  EXPECT_FAILS(shard_engine_unit_acquire(engine.get(), 0, 9, 0),
               SHARD_INVALID_ARGUMENT, "pass 9");
  EXPECT_FAILS(shard_engine_set_accumulate(engine.get(), 2),
               SHARD_INVALID_ARGUMENT, "accumulate is 2", "0 or 1");
  EXPECT_FAILS(shard_engine_unit_release(engine.get(), 0),
               SHARD_FAILED_PRECONDITION, "root unit", "IDLE");
  EXPECT_FAILS(shard_engine_set_trainable(engine.get(), nullptr, 0, 1, 0),
               SHARD_INVALID_ARGUMENT, "no parameters");
  EXPECT_FAILS(shard_engine_summon_end(engine.get(), 1, 0),
               SHARD_FAILED_PRECONDITION, "SUMMON_FULL_PARAMS");
}

TEST(EngineUnitsTest, AStepThroughUnits) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    Pass(engine.get(), rank == 0 ? 2.0f : 0.0f);
    shard_step_report report = SHARD_STEP_REPORT_INIT;
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, &report));
    EXPECT_EQ(report.step, 1);
    EXPECT_EQ(report.active_ranks, 2);
    EXPECT_EQ(WeightOf(engine.get())[11], 0.5f);
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

// The pointers of a unit are those of its parameters one by one.
TEST(EngineUnitsTest, ParametersOfAUnit) {
  const Comm comm = OpenLocal();
  const Engine owner = TrainingEngine(comm.get());
  shard_engine* const engine = owner.get();
  int32_t params[6];
  const void* data[6];
  void* grads[6];
  std::fill_n(data, 6, static_cast<const void*>(params));
  size_t count = 0;
  ASSERT_OK(
      shard_engine_unit_params(engine, 0, params, data, grads, 6, &count));
  // The unit has all parameters but the ignored one.
  const std::vector<int32_t> expected = {kWeight, kBias, kFrozen, kEmpty};
  ASSERT_EQ(count, expected.size());
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(params[i], expected[i]);
    const void* one = nullptr;
    EXPECT_OK(shard_engine_param(engine, params[i], &one, nullptr));
    EXPECT_EQ(data[i], one);
    if (params[i] == kFrozen) {
      EXPECT_EQ(grads[i], nullptr);
      continue;
    }
    void* grad = nullptr;
    EXPECT_OK(shard_engine_grad(engine, params[i], &grad, nullptr));
    EXPECT_EQ(grads[i], grad);
  }
  // All outputs are cleared on entry.
  EXPECT_EQ(data[4], nullptr);
  // Arrays that the host does not want may be NULL, and a short array is
  // filled.
  EXPECT_OK(shard_engine_unit_params(engine, 0, nullptr, nullptr, nullptr, 0,
                                     &count));
  EXPECT_EQ(count, 4u);
  params[1] = 77;
  EXPECT_OK(shard_engine_unit_params(engine, 0, params, nullptr, nullptr, 1,
                                     nullptr));
  EXPECT_EQ(params[0], kWeight);
  EXPECT_EQ(params[1], 77);
  // No entry is written that no parameter could have.
  params[5] = 77;
  EXPECT_OK(shard_engine_unit_params(engine, 0, params, nullptr, nullptr,
                                     SIZE_MAX, &count));
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(params[5], 77);
  EXPECT_FAILS(
      shard_engine_unit_params(engine, 1, params, data, grads, 6, &count),
      SHARD_INVALID_ARGUMENT, "unit 1");
  EXPECT_EQ(count, 0u);
  EXPECT_FAILS(
      shard_engine_unit_params(nullptr, 0, params, data, grads, 6, &count),
      SHARD_INVALID_ARGUMENT, "engine is NULL");
}

// An engine tells the number of its steps, and the plan in force.
TEST(EngineUnitsTest, StepsAndThePlanInForce) {
  const Comm comm = OpenLocal();
  const Engine owner = TrainingEngine(comm.get());
  shard_engine* const engine = owner.get();
  const auto plan_of = [&] {
    shard_plan* plan = Garbage<shard_plan>();
    EXPECT_OK(shard_engine_plan(engine, &plan));
    return Plan(plan);
  };
  const auto step_of = [&] {
    int64_t step = -1;
    EXPECT_OK(shard_engine_completed_steps(engine, &step));
    return step;
  };
  const Plan before = plan_of();
  EXPECT_EQ(InfoOf(before).fingerprint, InfoOf(SmallPlan(1)).fingerprint);
  EXPECT_EQ(step_of(), 0);
  EXPECT_OK(shard_engine_step(engine, nullptr, nullptr));
  EXPECT_EQ(step_of(), 1);
  FillGrad(engine, std::numeric_limits<float>::infinity());
  shard_step_options options = SHARD_STEP_OPTIONS_INIT;
  options.skip_nonfinite = 1;
  EXPECT_OK(shard_engine_step(engine, &options, nullptr));
  EXPECT_EQ(step_of(), 1);
  EXPECT_OK(shard_engine_set_completed_steps(engine, 40));
  EXPECT_EQ(step_of(), 40);

  const int32_t frozen = kFrozen;
  EXPECT_OK(shard_engine_set_trainable(engine, &frozen, 1, 1, 0));
  const Plan after = plan_of();
  EXPECT_NE(InfoOf(after).fingerprint, InfoOf(before).fingerprint);
  shard_param_info info = SHARD_PARAM_INFO_INIT;
  EXPECT_OK(shard_plan_param_info(after.get(), kFrozen, &info));
  EXPECT_EQ(info.trainable, 1);

  shard_plan* none = Garbage<shard_plan>();
  EXPECT_FAILS(shard_engine_plan(nullptr, &none), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  EXPECT_EQ(none, nullptr);
  EXPECT_FAILS(shard_engine_plan(engine, nullptr), SHARD_INVALID_ARGUMENT,
               "plan is NULL");
  int64_t step = 7;
  EXPECT_FAILS(shard_engine_completed_steps(nullptr, &step),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_EQ(step, 0);
  EXPECT_FAILS(shard_engine_completed_steps(engine, nullptr),
               SHARD_INVALID_ARGUMENT, "step is NULL");
}

TEST(EngineUnitsTest, SeveralPassesAndABegunStep) {
  RunRanks(2, [](int, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    shard_step_options options = SHARD_STEP_OPTIONS_INIT;
    options.max_grad_norm = 1;
    EXPECT_FAILS(shard_engine_begin_step(engine.get(), &options),
                 SHARD_FAILED_PRECONDITION, "max_grad_norm");
    EXPECT_OK(shard_engine_set_hyper(engine.get(), 0, "lr", 0.25));
    EXPECT_OK(shard_engine_begin_step(engine.get(), nullptr));
    // Some units may have had their update already.
    EXPECT_FAILS(shard_engine_set_hyper(engine.get(), 0, "lr", 4),
                 SHARD_FAILED_PRECONDITION, "set_hyper after begin_step");
    EXPECT_FAILS(shard_engine_set_completed_steps(engine.get(), 7),
                 SHARD_FAILED_PRECONDITION,
                 "set_completed_steps after begin_step");
    const float state = 1;
    EXPECT_FAILS(shard_engine_set_state(engine.get(), 0, "exp_avg", &state, 1),
                 SHARD_FAILED_PRECONDITION, "set_state after begin_step");
    EXPECT_OK(shard_engine_set_accumulate(engine.get(), 1));
    Pass(engine.get(), 3);
    EXPECT_OK(shard_engine_set_accumulate(engine.get(), 0));
    // Gradients are whole here, in the host's memory, and this pass overwrites
    // them.
    Pass(engine.get(), 2);
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    EXPECT_EQ(WeightOf(engine.get())[0], 0.5f);
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

TEST(EngineUnitsTest, Join) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    shard_step_options options = SHARD_STEP_OPTIONS_INIT;
    options.average_active = 1;
    int64_t steps = -1;
    if (rank == 0) {
      for (int step = 0; step < 2; ++step) {
        Pass(engine.get(), 1);
        shard_step_report report = SHARD_STEP_REPORT_INIT;
        EXPECT_OK(shard_engine_step(engine.get(), &options, &report));
        EXPECT_EQ(report.active_ranks, 1);
      }
    }
    EXPECT_OK(shard_engine_join(engine.get(), 0, &steps));
    EXPECT_EQ(steps, rank == 0 ? 0 : 2);
    EXPECT_EQ(WeightOf(engine.get())[0], 0.0f);
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

TEST(EngineUnitsTest, FullParameters) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    void* data = nullptr;
    int64_t numel = 0;
    // No rank may write the parameters that ranks share.
    EXPECT_FAILS(
        shard_engine_writable_param(engine.get(), kWeight, &data, &numel),
        SHARD_FAILED_PRECONDITION, "parameter 0", "broadcast_params", "summon");
    EXPECT_OK(shard_engine_summon(engine.get(), 0, 1, 0));
    const auto weight = [&] {
      return shard_engine_writable_param(engine.get(), kWeight, &data, &numel);
    };
    if (rank == 1) {
      EXPECT_OK(weight());
      std::fill_n(static_cast<float*>(data), numel, 8.0f);
    } else {
      EXPECT_FAILS(weight(), SHARD_FAILED_PRECONDITION, "rank 1");
    }
    // A flag that is neither 0 nor 1, on one rank, is an error on all.
    EXPECT_FAILS(shard_engine_summon_end(engine.get(), rank == 0 ? 2 : 1, 0),
                 SHARD_INVALID_ARGUMENT, "rank 0", "write_back is 2", "0 or 1");
    EXPECT_FAILS(shard_engine_step(engine.get(), nullptr, nullptr),
                 SHARD_FAILED_PRECONDITION, "SUMMON_FULL_PARAMS");
    EXPECT_OK(shard_engine_summon_end(engine.get(), 1, 0));
    EXPECT_EQ(WeightOf(engine.get())[11], 8.0f);
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

TEST(EngineUnitsTest, ChangesAtRunTime) {
  RunRanks(2, [](int, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    const int32_t frozen = kFrozen;
    const int32_t weight = kWeight;
    void* data = nullptr;
    int64_t numel = 0;
    EXPECT_FAILS(shard_engine_grad(engine.get(), kFrozen, &data, &numel),
                 SHARD_FAILED_PRECONDITION, "frozen");
    int32_t group = -1;
    EXPECT_OK(shard_engine_add_param_group(engine.get(), "?lr=0.125", &frozen,
                                           1, 0, &group));
    EXPECT_EQ(group, 1);
    double lr = 0;
    EXPECT_OK(shard_engine_hyper(engine.get(), 1, "lr", &lr));
    EXPECT_EQ(lr, 0.125);
    EXPECT_OK(shard_engine_grad(engine.get(), kFrozen, &data, &numel));
    std::fill_n(static_cast<float*>(data), numel, 1.0f);
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    const void* param = nullptr;
    EXPECT_OK(shard_engine_param(engine.get(), kFrozen, &param, nullptr));
    EXPECT_EQ(static_cast<const float*>(param)[0], -0.125f);
    // The parameter has a group already.
    EXPECT_FAILS(shard_engine_add_param_group(engine.get(), "sgd?lr=1", &frozen,
                                              1, 0, nullptr),
                 SHARD_INVALID_ARGUMENT, "group 1");
    EXPECT_FAILS(shard_engine_set_trainable(engine.get(), &weight, 1, 7, 0),
                 SHARD_INVALID_ARGUMENT, "trainable is 7", "0 or 1");
    EXPECT_OK(shard_engine_set_trainable(engine.get(), &weight, 1, 0, 0));
    EXPECT_FAILS(shard_engine_grad(engine.get(), kWeight, &data, &numel),
                 SHARD_FAILED_PRECONDITION, "frozen");
    EXPECT_EQ(WeightOf(engine.get())[0], 1.0f);
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

}  // namespace
}  // namespace shard_api_testing::engine_units_test
