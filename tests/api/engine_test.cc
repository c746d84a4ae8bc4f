// SPDX-License-Identifier: Apache-2.0
//
// Engines up to the first step; step_test.cc has the rest.

#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/api/sharded_plans.h"

namespace shard_api_testing::engine_test {
namespace {

Outcome TryEngine(const shard_plan* plan, shard_comm* comm,
                  const shard_engine_options* options = nullptr) {
  shard_engine* engine = Garbage<shard_engine>();
  Outcome outcome = Take(shard_engine_create(plan, comm, options, &engine));
  EXPECT_EQ(engine == nullptr, outcome.code != SHARD_OK);
  shard_engine_free(engine);
  return outcome;
}

TEST(EngineTest, NullPointersAreErrors) {
  const Plan plan = SmallPlan(1);
  const Comm comm = OpenLocal();
  ExpectError(TryEngine(nullptr, comm.get()), SHARD_INVALID_ARGUMENT,
              {"plan is NULL"});
  ExpectError(TryEngine(plan.get(), nullptr), SHARD_INVALID_ARGUMENT,
              {"comm is NULL"});
  EXPECT_FAILS(shard_engine_create(plan.get(), comm.get(), nullptr, nullptr),
               SHARD_INVALID_ARGUMENT, "engine is NULL");

  const Engine engine = MakeEngine(plan.get(), comm.get());
  // `data` is garbage, of the constness that `access` expects.
  const auto checks = [&](auto access, auto data) {
    int64_t numel = 77;
    EXPECT_FAILS(access(nullptr, 0, &data, &numel), SHARD_INVALID_ARGUMENT,
                 "engine is NULL");
    EXPECT_EQ(data, nullptr);
    EXPECT_EQ(numel, 0);
    numel = 77;
    EXPECT_FAILS(access(engine.get(), 0, nullptr, &numel),
                 SHARD_INVALID_ARGUMENT, "data is NULL");
    EXPECT_EQ(numel, 0);
    EXPECT_OK(access(engine.get(), 0, &data, nullptr));
    EXPECT_NE(data, nullptr);
  };
  checks(shard_engine_param, static_cast<const void*>(Garbage<void>()));
  checks(shard_engine_writable_param, Garbage<void>());
  checks(shard_engine_grad, Garbage<void>());
  EXPECT_FAILS(shard_engine_zero_grad(nullptr), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  const float value = 1;
  EXPECT_FAILS(shard_engine_set_param(nullptr, 0, &value, sizeof(value)),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_FAILS(shard_engine_set_param(engine.get(), 0, nullptr, 48),
               SHARD_INVALID_ARGUMENT, "data is NULL");
  EXPECT_FAILS(shard_engine_broadcast_params(nullptr, 0),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  shard_step_report report = SHARD_STEP_REPORT_INIT;
  EXPECT_FAILS(shard_engine_step(nullptr, nullptr, &report),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  shard_memory memory = SHARD_MEMORY_INIT;
  EXPECT_FAILS(shard_engine_memory(nullptr, &memory), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  EXPECT_FAILS(shard_engine_memory(engine.get(), nullptr),
               SHARD_INVALID_ARGUMENT, "memory is NULL");
  shard_engine_free(nullptr);
}

TEST(EngineTest, TheWorldSizeIsThatOfThePlan) {
  const Comm comm = OpenLocal();
  ExpectError(TryEngine(SmallPlan(3).get(), comm.get()), SHARD_INVALID_ARGUMENT,
              {"world size 3", "has 1"});
}

// The library's tests have a device on which the host's own work is late: a
// host that uses tensors in its thread would get wrong results.
TEST(EngineTest, DevicesOfTestsAreUnknown) {
  const Plan plan = SmallPlan(1);
  const Comm comm = OpenLocal();
  shard_engine_options options = SHARD_ENGINE_OPTIONS_INIT;
  options.device = "cpu-async?host=async";
  ExpectError(TryEngine(plan.get(), comm.get(), &options),
              SHARD_INVALID_ARGUMENT, {"'host'", "max_delay, seed"});
  options.device = "guard";
  ExpectError(TryEngine(plan.get(), comm.get(), &options),
              SHARD_INVALID_ARGUMENT, {"'guard'", "known: cpu, cpu-async"});
}

TEST(EngineTest, Stages) {
  const Model model = SmallModel();
  AddBlocks(model.get());
  for (int32_t stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    shard_plan_options options = PlanOptions(2);
    options.stage = stage;
    options.wrap = "class?names=Block";
    const Plan plan = MakePlan(model.get(), options);
    ExpectShardsAsItsStage(plan);
    RunRanks(2, [&](int, shard_comm* comm) {
      EXPECT_EQ(TryEngine(plan.get(), comm).message, "");
    });
  }
}

// A frozen parameter may have any type; a trained one is f32, bf16 or f16.
TEST(EngineTest, DTypes) {
  const Comm comm = OpenLocal();
  for (const int32_t dtype : {SHARD_F32, SHARD_BF16, SHARD_F16, SHARD_F64}) {
    const Model model = SmallModel();
    const int32_t other = AddParam(model.get(), "other", {3}, dtype);
    Plan plan = MakePlan(model.get(), PlanOptions(1));
    const Outcome outcome = TryEngine(plan.get(), comm.get());
    if (dtype == SHARD_F64) {
      ExpectError(outcome, SHARD_UNIMPLEMENTED, {"'other'", "f64", "f32"});
    } else {
      EXPECT_EQ(outcome.message, "");
    }
    EXPECT_OK(shard_model_freeze(model.get(), other));
    plan = MakePlan(model.get(), PlanOptions(1));
    EXPECT_EQ(TryEngine(plan.get(), comm.get()).message, "");
  }
}

TEST(EngineTest, Tensors) {
  const Comm comm = OpenLocal();
  const Engine engine = MakeEngine(SmallPlan(1).get(), comm.get());
  const void* param = nullptr;
  void* data = nullptr;
  int64_t numel = 0;
  ASSERT_OK(shard_engine_param(engine.get(), kFrozen, &param, &numel));
  EXPECT_EQ(numel, 5);
  ASSERT_OK(shard_engine_param(engine.get(), kEmpty, &param, &numel));
  EXPECT_EQ(numel, 0);
  // The number of elements may be left out. Rank 0 may write until the
  // broadcast.
  ASSERT_OK(shard_engine_param(engine.get(), kWeight, &param, nullptr));
  ASSERT_OK(shard_engine_writable_param(engine.get(), kWeight, &data, &numel));
  EXPECT_EQ(data, param);
  EXPECT_EQ(numel, kWeightNumel);
  ASSERT_OK(shard_engine_grad(engine.get(), kWeight, &data, nullptr));
  ASSERT_OK(shard_engine_grad(engine.get(), kEmpty, &data, &numel));
  EXPECT_EQ(numel, 0);
  EXPECT_FAILS(shard_engine_grad(engine.get(), kFrozen, &data, &numel),
               SHARD_FAILED_PRECONDITION, "parameter 2", "frozen");
  EXPECT_EQ(data, nullptr);
  EXPECT_EQ(numel, 0);
  for (const auto access : {&shard_engine_writable_param, &shard_engine_grad}) {
    EXPECT_FAILS(access(engine.get(), kIgnored, &data, &numel),
                 SHARD_FAILED_PRECONDITION, "parameter 3", "ignored");
    for (const int32_t bad : {-1, +kNumParams, INT32_MAX, INT32_MIN}) {
      EXPECT_FAILS(access(engine.get(), bad, &data, &numel),
                   SHARD_INVALID_ARGUMENT, "parameter " + std::to_string(bad));
    }
  }
  EXPECT_FAILS(shard_engine_param(engine.get(), kIgnored, &param, &numel),
               SHARD_FAILED_PRECONDITION, "parameter 3", "ignored");
  EXPECT_EQ(param, nullptr);
  EXPECT_FAILS(shard_engine_param(engine.get(), kNumParams, &param, &numel),
               SHARD_INVALID_ARGUMENT, "parameter 5");
  // Gradients start as zero.
  ASSERT_OK(shard_engine_grad(engine.get(), kWeight, &data, &numel));
  for (int64_t i = 0; i < numel; ++i) {
    EXPECT_EQ(static_cast<float*>(data)[i], 0.0f);
  }
}

TEST(EngineTest, BindParam) {
  const Comm comm = OpenLocal();
  const Model model = SmallModel();
  const int32_t wide = AddParam(model.get(), "wide", {3}, SHARD_F64);
  EXPECT_OK(shard_model_freeze(model.get(), wide));
  const Plan plan = MakePlan(model.get(), PlanOptions(1));
  Engine engine = MakeEngine(plan.get(), comm.get());
  std::vector<float> values(kWeightNumel, 7.0f);
  std::vector<float> grads(kWeightNumel, 7.0f);
  const auto bind = [&](int32_t param, size_t values_bytes, size_t grad_bytes) {
    return shard_engine_bind_param(engine.get(), param, values.data(),
                                   values_bytes, grads.data(), grad_bytes);
  };
  EXPECT_FAILS(shard_engine_bind_param(nullptr, 0, nullptr, 0, nullptr, 0),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_FAILS(
      shard_engine_bind_param(engine.get(), kWeight, nullptr, 48, nullptr, 0),
      SHARD_INVALID_ARGUMENT, "values is NULL");
  EXPECT_FAILS(
      shard_engine_bind_param(engine.get(), kWeight, nullptr, 0, nullptr, 48),
      SHARD_INVALID_ARGUMENT, "grad is NULL");
  for (const size_t bytes : {size_t{0}, size_t{47}, size_t{49}, SIZE_MAX}) {
    const std::string given = "not " + std::to_string(bytes);
    EXPECT_FAILS(bind(kWeight, bytes, 48), SHARD_INVALID_ARGUMENT,
                 "values: parameter 0 has 48 bytes", given);
    EXPECT_FAILS(bind(kWeight, 48, bytes), SHARD_INVALID_ARGUMENT,
                 "grad: parameter 0 has 48 bytes", given);
  }
  EXPECT_FAILS(bind(kIgnored, 28, 28), SHARD_FAILED_PRECONDITION, "ignored");
  EXPECT_FAILS(bind(99, 4, 4), SHARD_INVALID_ARGUMENT, "parameter 99");
  EXPECT_FAILS(bind(kFrozen, 20, 20), SHARD_FAILED_PRECONDITION, "frozen");

  EXPECT_OK(bind(kWeight, 48, 48));
  EXPECT_OK(bind(kEmpty, 0, 0));
  const double initial[] = {1, 0.1, 1e300};
  double copy[3] = {};
  EXPECT_OK(shard_engine_bind_param(engine.get(), wide, copy, sizeof(copy),
                                    nullptr, 0));
  EXPECT_OK(
      shard_engine_set_param(engine.get(), wide, initial, sizeof(initial)));
  EXPECT_EQ(values[0], 7.0f);  // Not before the broadcast.
  EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
  EXPECT_EQ(values, std::vector<float>(kWeightNumel, 0.0f));
  EXPECT_EQ(grads, std::vector<float>(kWeightNumel, 7.0f));
  EXPECT_THAT(copy, ::testing::ElementsAreArray(initial));

  EXPECT_OK(shard_engine_zero_grad(engine.get()));
  EXPECT_EQ(grads, std::vector<float>(kWeightNumel, 0.0f));
  FillGrad(engine.get(), 1);
  EXPECT_EQ(grads, std::vector<float>(kWeightNumel, 1.0f));
  shard_step_report bound = SHARD_STEP_REPORT_INIT;
  EXPECT_OK(shard_engine_step(engine.get(), nullptr, &bound));
  EXPECT_LT(values[0], 0.0f);
  EXPECT_EQ(values[0], WeightOf(engine.get())[0]);

  // Memory that is bound no more, and after the engine all, stays as it is.
  const std::vector<float> before = values;
  EXPECT_OK(
      shard_engine_bind_param(engine.get(), kWeight, nullptr, 0, nullptr, 0));
  FillGrad(engine.get(), 1);
  shard_step_report unbound = SHARD_STEP_REPORT_INIT;
  EXPECT_OK(shard_engine_step(engine.get(), nullptr, &unbound));
  EXPECT_NE(values[0], WeightOf(engine.get())[0]);
  // Reads and writes of values and gradient.
  EXPECT_EQ(bound.bytes_moved, unbound.bytes_moved + 4 * 48);
  engine.reset();
  EXPECT_EQ(values, before);
  EXPECT_EQ(grads, std::vector<float>(kWeightNumel, 1.0f));
  EXPECT_THAT(copy, ::testing::ElementsAreArray(initial));
}

TEST(EngineTest, SetParam) {
  const Comm comm = OpenLocal();
  const Engine engine = MakeEngine(SmallPlan(1).get(), comm.get());
  const std::vector<float> values(100, 2.0f);
  const auto set = [&](int32_t param, size_t bytes) {
    return shard_engine_set_param(engine.get(), param, values.data(), bytes);
  };
  for (const size_t bytes : {size_t{0}, size_t{47}, size_t{49}, SIZE_MAX}) {
    EXPECT_FAILS(set(kWeight, bytes), SHARD_INVALID_ARGUMENT, "parameter 0",
                 "48 bytes", "not " + std::to_string(bytes));
  }
  EXPECT_FAILS(set(kIgnored, 28), SHARD_FAILED_PRECONDITION, "ignored");
  EXPECT_FAILS(set(99, 4), SHARD_INVALID_ARGUMENT, "parameter 99");
  EXPECT_EQ(WeightOf(engine.get())[0], 0.0f);
  EXPECT_OK(set(kWeight, 48));
  EXPECT_OK(set(kFrozen, 20));
  EXPECT_OK(shard_engine_set_param(engine.get(), kEmpty, nullptr, 0));
  EXPECT_EQ(WeightOf(engine.get())[0], 2.0f);

  EXPECT_FAILS(shard_engine_step(engine.get(), nullptr, nullptr),
               SHARD_FAILED_PRECONDITION, "broadcast_params");
  EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
  EXPECT_FAILS(set(kWeight, 48), SHARD_FAILED_PRECONDITION, "broadcast");
  EXPECT_FAILS(shard_engine_broadcast_params(engine.get(), 0),
               SHARD_FAILED_PRECONDITION, "broadcast before");
  // None of these calls has changed anything.
  EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
}

// The broadcast sends rank 0's values. The arguments of other ranks are
// checked.
TEST(EngineTest, RanksHaveTheParametersOfRankZero) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Engine engine = MakeEngine(SmallPlan(2).get(), comm);
    const std::vector<float> values(kWeightNumel, rank == 0 ? 3.0f : 4.0f);
    EXPECT_FAILS(
        shard_engine_set_param(engine.get(), kWeight, values.data(), 44),
        SHARD_INVALID_ARGUMENT, "48 bytes");
    EXPECT_OK(shard_engine_set_param(engine.get(), kWeight, values.data(), 48));
    EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
    EXPECT_EQ(WeightOf(engine.get())[11], 3.0f);
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

TEST(EngineTest, MemoryIsAsPlanned) {
  const Comm comm = OpenLocal();
  const Model model = SmallModel();
  shard_plan_options options = PlanOptions(1);
  options.optimizer = "adamw";
  const Plan plan = MakePlan(model.get(), options);
  const Engine engine = MakeEngine(plan.get(), comm.get());
  shard_memory planned = SHARD_MEMORY_INIT;
  shard_memory measured = SHARD_MEMORY_INIT;
  ASSERT_OK(shard_plan_memory(plan.get(), nullptr, &planned));
  ASSERT_OK(shard_engine_memory(engine.get(), &measured));
  EXPECT_EQ(planned.param_bytes, measured.param_bytes);
  EXPECT_EQ(planned.grad_bytes, measured.grad_bytes);
  EXPECT_EQ(planned.state_bytes, measured.state_bytes);
  EXPECT_GT(planned.state_bytes, 0u);
  EXPECT_EQ(planned.host_bytes, measured.host_bytes);
  EXPECT_EQ(planned.host_bytes,
            planned.param_bytes + planned.grad_bytes + planned.state_bytes);
  EXPECT_EQ(planned.control_bytes, measured.control_bytes);
  EXPECT_GT(planned.control_bytes, 0u);
}

// ---- Ranks that do not agree ------------------------------------------------

TEST(EngineTest, PlansThatDifferAreDesync) {
  RunRanks(3, [](int rank, shard_comm* comm) {
    const Model model = SmallModel();
    shard_plan_options options = PlanOptions(3);
    if (rank == 2) options.optimizer = "sgd?lr=0.25";
    const Plan plan = MakePlan(model.get(), options);
    const Outcome outcome = TryEngine(plan.get(), comm);
    ExpectError(outcome, SHARD_DESYNC,
                {"differ in the plan: lr of param group 0: "
                 "rank 0 has 0.5, rank 2 has 0.25"});
    EXPECT_EQ(outcome.rank, 2);
  });
}

TEST(EngineTest, AWrongPlanOnOneRankIsAnErrorOfAll) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Plan good = SmallPlan(2);
    const Plan other = SmallPlan(5);
    Outcome outcome = TryEngine(rank == 1 ? other.get() : good.get(), comm);
    ExpectError(outcome, SHARD_INVALID_ARGUMENT, {"rank 1", "world size 5"});
    EXPECT_EQ(outcome.rank, 1);
    outcome = TryEngine(rank == 0 ? nullptr : good.get(), comm);
    ExpectError(outcome, SHARD_INVALID_ARGUMENT, {"rank 0", "plan is NULL"});
    EXPECT_EQ(outcome.rank, 0);
    shard_engine_options options = SHARD_ENGINE_OPTIONS_INIT;
    if (rank == 1) options.struct_size = 1;
    outcome = TryEngine(good.get(), comm, &options);
    ExpectError(outcome, SHARD_INVALID_ARGUMENT, {"rank 1", "struct_size"});
    // The group can still be used.
    const Engine engine = TrainingEngine(comm);
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

TEST(EngineTest, AWrongCallOnOneRankIsTheErrorOfAll) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    // Rank 1 steps while rank 0 still broadcasts.
    const Engine engine = MakeEngine(SmallPlan(2).get(), comm);
    EXPECT_FAILS(rank == 0 ? shard_engine_broadcast_params(engine.get(), 0)
                           : shard_engine_step(engine.get(), nullptr, nullptr),
                 SHARD_FAILED_PRECONDITION, "rank 1: step needs parameters",
                 "call broadcast_params first");
    EXPECT_FAILS(shard_engine_step(engine.get(), nullptr, nullptr),
                 SHARD_FAILED_PRECONDITION, "rank 1: step needs parameters");
  });
}

}  // namespace
}  // namespace shard_api_testing::engine_test
