// SPDX-License-Identifier: Apache-2.0
//
// Param groups, hyperparameters and schedules, through the C API.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "tests/api/api_testing.h"

namespace shard_api_testing::groups_test {
namespace {

// Returns a model whose "weight" is in group 0 and whose "bias" is in group 1.
Model GroupedModel(const char* optimizer) {
  Model model = SmallModel();
  const int32_t bias = kBias;
  int32_t group = -1;
  EXPECT_OK(
      shard_model_add_param_group(model.get(), optimizer, &bias, 1, &group));
  EXPECT_EQ(group, 1);
  return model;
}

std::string GroupText(const shard_engine* engine, int32_t group) {
  size_t length = 0;
  EXPECT_OK(shard_engine_group_text(engine, group, nullptr, 0, &length));
  std::string text(length + 1, '\0');
  EXPECT_OK(shard_engine_group_text(engine, group, text.data(), text.size(),
                                    &length));
  text.resize(length);
  return text;
}

Engine GroupedEngine(shard_comm* comm, const char* second) {
  const Model model = GroupedModel(second);
  const Plan plan =
      MakePlan(model.get(), PlanOptions(shard_comm_world_size(comm)));
  EXPECT_EQ(InfoOf(plan).num_groups, 2);
  Engine engine = MakeEngine(plan.get(), comm);
  EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
  return engine;
}

TEST(GroupsTest, WrongGroupsAreErrors) {
  const Model model = SmallModel();
  const int32_t twice[] = {kBias, kBias};
  const int32_t unknown = 99;
  const int32_t bias = kBias;
  int32_t group = 7;
  EXPECT_FAILS(
      shard_model_add_param_group(model.get(), "sgd", &bias, 0, &group),
      SHARD_INVALID_ARGUMENT, "no parameters");
  EXPECT_EQ(group, 0);
  EXPECT_FAILS(
      shard_model_add_param_group(model.get(), "sgd", twice, 2, &group),
      SHARD_INVALID_ARGUMENT, "'bias'", "twice");
  EXPECT_FAILS(
      shard_model_add_param_group(model.get(), "sgd", &unknown, 1, &group),
      SHARD_INVALID_ARGUMENT, "99");
  EXPECT_OK(shard_model_add_param_group(model.get(), "sgd", &bias, 1, &group));
  EXPECT_FAILS(
      shard_model_add_param_group(model.get(), "sgd", &bias, 1, &group),
      SHARD_INVALID_ARGUMENT, "'bias'", "param group 1");
  EXPECT_FAILS(
      shard_model_add_param_group(model.get(), nullptr, &bias, 1, &group),
      SHARD_INVALID_ARGUMENT, "optimizer is NULL");
  EXPECT_FAILS(shard_model_add_param_group(model.get(), "", nullptr, 1, &group),
               SHARD_INVALID_ARGUMENT, "params is NULL");
  for (const size_t count : {size_t{kNumParams + 1}, SIZE_MAX}) {
    EXPECT_FAILS(
        shard_model_add_param_group(model.get(), "", &bias, count, &group),
        SHARD_INVALID_ARGUMENT, std::to_string(count), "5 parameters");
  }
  EXPECT_FAILS(shard_model_add_param_group(nullptr, "", &bias, 1, &group),
               SHARD_INVALID_ARGUMENT, "model is NULL");
}

TEST(GroupsTest, PlansNameTheGroupWhoseOptimizerIsWrong) {
  const auto plan_of = [](const char* optimizer) {
    const Model model = GroupedModel(optimizer);
    const shard_plan_options options = PlanOptions(2);
    shard_plan* plan = Garbage<shard_plan>();
    const Outcome outcome =
        Take(shard_plan_create(model.get(), &options, &plan));
    EXPECT_EQ(plan, nullptr);
    return outcome;
  };
  ExpectError(plan_of("?beta1=0.5"), SHARD_INVALID_ARGUMENT,
              {"param group 1", "'beta1'"});
  ExpectError(plan_of("nosuch"), SHARD_INVALID_ARGUMENT,
              {"param group 1", "'nosuch'", "adamw"});
  ExpectError(plan_of("adamw?lr=-1"), SHARD_INVALID_ARGUMENT,
              {"param group 1", "lr=-1", "at least 0"});
  ExpectError(plan_of("adamw?beta2=1"), SHARD_INVALID_ARGUMENT,
              {"beta2=1", "[0, 1)"});
  ExpectError(plan_of("?nesterov=1&momentum=0.9&dampening=0.5"),
              SHARD_INVALID_ARGUMENT, {"nesterov", "dampening"});
  // "bias" is a vector, and has no other optimizer to use instead.
  ExpectError(plan_of("muon"), SHARD_INVALID_ARGUMENT,
              {"'bias'", "[3]", "muon", "adamw"});
}

TEST(GroupsTest, HyperparametersByKey) {
  const Comm comm = OpenLocal();
  const Engine engine = GroupedEngine(comm.get(), "?lr=0.25");
  double value = -1;
  EXPECT_OK(shard_engine_hyper(engine.get(), 1, "lr", &value));
  EXPECT_EQ(value, 0.25);
  EXPECT_OK(shard_engine_set_hyper(engine.get(), -1, "lr", 0.125));
  for (const int32_t group : {0, 1}) {
    EXPECT_OK(shard_engine_hyper(engine.get(), group, "lr", &value));
    EXPECT_EQ(value, 0.125);
  }
  EXPECT_OK(shard_engine_set_hyper(engine.get(), 1, "maximize", 1));
  EXPECT_EQ(GroupText(engine.get(), 0),
            "sgd?lr=0.125&momentum=0&dampening=0&weight_decay=0&nesterov=0&"
            "maximize=0");
  EXPECT_EQ(GroupText(engine.get(), 1),
            "sgd?lr=0.125&momentum=0&dampening=0&weight_decay=0&nesterov=0&"
            "maximize=1");

  EXPECT_FAILS(shard_engine_set_hyper(engine.get(), 2, "lr", 1),
               SHARD_INVALID_ARGUMENT, "param group 2");
  EXPECT_FAILS(shard_engine_set_hyper(engine.get(), 0, "rho", 1),
               SHARD_NOT_FOUND, "'rho'", "sgd");
  EXPECT_FAILS(shard_engine_set_hyper(engine.get(), 0, "lr", -2),
               SHARD_INVALID_ARGUMENT, "lr=-2", "at least 0");
  EXPECT_FAILS(shard_engine_set_hyper(engine.get(), 0, "momentum", 0.5),
               SHARD_FAILED_PRECONDITION, "momentum=0.5", "states");
  EXPECT_FAILS(shard_engine_set_hyper(engine.get(), 0, nullptr, 1),
               SHARD_INVALID_ARGUMENT, "key is NULL");
  EXPECT_FAILS(shard_engine_set_hyper(nullptr, 0, "lr", 1),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  value = 7;
  EXPECT_FAILS(shard_engine_hyper(engine.get(), 0, "rho", &value),
               SHARD_NOT_FOUND, "'rho'");
  EXPECT_EQ(value, 0);
  EXPECT_FAILS(shard_engine_hyper(engine.get(), 0, "lr", nullptr),
               SHARD_INVALID_ARGUMENT, "value is NULL");
  size_t length = 7;
  EXPECT_FAILS(shard_engine_group_text(engine.get(), -1, nullptr, 0, &length),
               SHARD_INVALID_ARGUMENT, "param group -1");
  EXPECT_EQ(length, 0u);
}

// A count that no list of parameters has is refused before one is read, and so
// is NULL. The ranks go on.
TEST(GroupsTest, WrongArgumentsAreTheErrorOfAllRanks) {
  RunRanks(2, [](int rank, shard_comm* comm) {
    const Engine owner = GroupedEngine(comm, "?lr=0.25");
    shard_engine* const engine = owner.get();
    const int32_t weight = kWeight;
    for (const size_t wrong :
         {size_t{kNumParams + 1}, SIZE_MAX / 4, SIZE_MAX}) {
      const size_t count = rank == 1 ? wrong : 1;
      const std::string text = std::to_string(wrong);
      EXPECT_FAILS(shard_engine_set_trainable(engine, &weight, count, 0, 0),
                   SHARD_INVALID_ARGUMENT, "set_trainable", text,
                   "5 parameters", "rank 1");
      int32_t group = 7;
      EXPECT_FAILS(shard_engine_add_param_group(engine, "sgd", &weight, count,
                                                0, &group),
                   SHARD_INVALID_ARGUMENT, "add_param_group", text,
                   "5 parameters", "rank 1");
      EXPECT_EQ(group, 0);
    }
    EXPECT_FAILS(shard_engine_set_trainable(
                     engine, rank == 1 ? nullptr : &weight, 1, 0, 0),
                 SHARD_INVALID_ARGUMENT, "params is NULL", "rank 1");
    EXPECT_FAILS(
        shard_engine_add_param_group(engine, rank == 1 ? nullptr : "sgd",
                                     &weight, 1, 0, nullptr),
        SHARD_INVALID_ARGUMENT, "optimizer is NULL", "rank 1");
    EXPECT_OK(shard_engine_set_trainable(engine, &weight, 1, 0, 0));
    EXPECT_OK(shard_engine_step(engine, nullptr, nullptr));
  });
}

// A schedule may end at 0: the step then changes nothing.
TEST(GroupsTest, ARateOfZeroForAllGroups) {
  RunRanks(2, [](int, shard_comm* comm) {
    const Engine engine = GroupedEngine(comm, "?lr=0.25");
    EXPECT_OK(shard_engine_set_hyper(engine.get(), -1, "lr", 0));
    double value = 7;
    EXPECT_OK(shard_engine_hyper(engine.get(), 1, "lr", &value));
    EXPECT_EQ(value, 0);
    const float before = WeightOf(engine.get())[0];
    FillGrad(engine.get(), 1);
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    EXPECT_EQ(WeightOf(engine.get())[0], before);
  });
}

TEST(GroupsTest, ClippingOptionsReachTheStep) {
  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());  // sgd, lr 0.5, weights 1
  FillGrad(engine.get(), -4);
  shard_step_options options = SHARD_STEP_OPTIONS_INIT;
  options.max_grad_norm = 1;
  options.grad_norm_type = std::numeric_limits<double>::infinity();
  shard_step_report report = SHARD_STEP_REPORT_INIT;
  EXPECT_OK(shard_engine_step(engine.get(), &options, &report));
  EXPECT_EQ(report.grad_norm, 4);
  EXPECT_EQ(report.loss_scale, 1);
  EXPECT_NEAR(WeightOf(engine.get())[0], 1.5, 1e-6);

  FillGrad(engine.get(), -4);
  options = SHARD_STEP_OPTIONS_INIT;
  options.clip_value = 2;
  EXPECT_OK(shard_engine_step(engine.get(), &options, &report));
  EXPECT_NEAR(WeightOf(engine.get())[0], 2.5, 1e-6);

  options.max_grad_norm = 1;
  EXPECT_FAILS(shard_engine_step(engine.get(), &options, &report),
               SHARD_INVALID_ARGUMENT, "clip_value", "max_grad_norm");
}

TEST(ScheduleTest, GivesTheLearningRateOfAStep) {
  double lr = 0;
  EXPECT_OK(shard_schedule_lr("linear?lr=1&warmup=4&total=12", 1, &lr));
  EXPECT_EQ(lr, 0.25);
  EXPECT_OK(shard_schedule_lr("linear?lr=1&warmup=4&total=12", 4, &lr));
  EXPECT_EQ(lr, 1);
  EXPECT_OK(shard_schedule_lr("linear?lr=1&warmup=4&total=12", 8, &lr));
  EXPECT_EQ(lr, 0.5);
  lr = 9;
  EXPECT_FAILS(shard_schedule_lr("linear?lr=1", 0, &lr), SHARD_INVALID_ARGUMENT,
               "total");
  EXPECT_EQ(lr, 0);
  EXPECT_FAILS(shard_schedule_lr("constant?lr=1", 0, &lr),
               SHARD_INVALID_ARGUMENT, "step 0");
  EXPECT_FAILS(shard_schedule_lr("zigzag?lr=1", 1, &lr), SHARD_INVALID_ARGUMENT,
               "zigzag", "cosine");
  EXPECT_FAILS(shard_schedule_lr(nullptr, 1, &lr), SHARD_INVALID_ARGUMENT,
               "schedule is NULL");
  EXPECT_FAILS(shard_schedule_lr("constant?lr=1", 1, nullptr),
               SHARD_INVALID_ARGUMENT, "lr is NULL");
}

// Parameters of 2 bytes: the values that the host reads and writes have 2 bytes
// too.
TEST(PrecisionTest, ParametersAndGradientsHaveTheDeclaredDtypes) {
  const Model model = EmptyModel();
  const int32_t weight = AddParam(model.get(), "weight", {8}, SHARD_BF16);
  shard_plan_options options = PlanOptions(1);
  options.optimizer = "sgd?lr=1";
  for (const int32_t f32_grads : {0, 1}) {
    options.f32_grads = f32_grads;
    const Plan plan = MakePlan(model.get(), options);
    const Comm comm = OpenLocal();
    const Engine engine = MakeEngine(plan.get(), comm.get());
    // 1.0 in bf16.
    const std::vector<uint16_t> ones(8, 0x3F80);
    EXPECT_FAILS(shard_engine_set_param(engine.get(), weight, ones.data(), 32),
                 SHARD_INVALID_ARGUMENT, "16 bytes", "bf16");
    EXPECT_OK(shard_engine_set_param(engine.get(), weight, ones.data(), 16));
    EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
    void* grad = nullptr;
    int64_t numel = 0;
    EXPECT_OK(shard_engine_grad(engine.get(), weight, &grad, &numel));
    EXPECT_EQ(numel, 8);
    if (f32_grads) {
      std::fill_n(static_cast<float*>(grad), 8, 0.5f);
    } else {
      std::fill_n(static_cast<uint16_t*>(grad), 8, uint16_t{0x3F00});
    }
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    const void* param = nullptr;
    EXPECT_OK(shard_engine_param(engine.get(), weight, &param, nullptr));
    EXPECT_EQ(*static_cast<const uint16_t*>(param), 0x3F00);
  }
  options.f32_grads = 2;
  shard_plan* none = Garbage<shard_plan>();
  EXPECT_FAILS(shard_plan_create(model.get(), &options, &none),
               SHARD_INVALID_ARGUMENT, "f32_grads is 2");
  options.f32_grads = 0;
  options.masters = 4;
  EXPECT_FAILS(shard_plan_create(model.get(), &options, &none),
               SHARD_INVALID_ARGUMENT, "masters 4");
}

// Continues a run that another program began.
TEST(MovingTest, StatesAndStepAreSet) {
  const Comm comm = OpenLocal();
  const Model model = EmptyModel();
  const int32_t weight = AddParam(model.get(), "weight", {2});
  const int32_t empty = AddParam(model.get(), "empty", {0});
  shard_plan_options options = PlanOptions(1);
  options.optimizer = "sgd?lr=1&momentum=0.5";
  const Plan plan = MakePlan(model.get(), options);
  const Engine engine = MakeEngine(plan.get(), comm.get());
  const float buffer[] = {4, -8};
  EXPECT_FAILS(shard_engine_set_completed_steps(engine.get(), 3),
               SHARD_FAILED_PRECONDITION, "broadcast");
  EXPECT_OK(shard_engine_broadcast_params(engine.get(), 0));
  EXPECT_OK(shard_engine_set_state(engine.get(), weight, "momentum_buffer",
                                   buffer, 2));
  EXPECT_OK(shard_engine_set_completed_steps(engine.get(), 3));
  shard_step_report report = SHARD_STEP_REPORT_INIT;
  EXPECT_OK(shard_engine_step(engine.get(), nullptr, &report));
  EXPECT_EQ(report.step, 4);
  const void* param = nullptr;
  EXPECT_OK(shard_engine_param(engine.get(), weight, &param, nullptr));
  // Gradients are 0, so the step is half of the buffer.
  EXPECT_EQ(static_cast<const float*>(param)[0], -2);
  EXPECT_EQ(static_cast<const float*>(param)[1], 4);

  EXPECT_FAILS(
      shard_engine_set_state(engine.get(), weight, "exp_avg", buffer, 2),
      SHARD_NOT_FOUND, "'exp_avg'", "momentum_buffer");
  EXPECT_FAILS(shard_engine_set_state(engine.get(), weight, "momentum_buffer",
                                      buffer, 1),
               SHARD_INVALID_ARGUMENT, "2 elements, not 1");
  EXPECT_FAILS(shard_engine_set_state(engine.get(), weight, nullptr, buffer, 2),
               SHARD_INVALID_ARGUMENT, "state is NULL");
  EXPECT_FAILS(shard_engine_set_state(engine.get(), weight, "momentum_buffer",
                                      nullptr, 2),
               SHARD_INVALID_ARGUMENT, "values is NULL");
  EXPECT_FAILS(shard_engine_set_state(engine.get(), empty, "momentum_buffer",
                                      buffer, SIZE_MAX),
               SHARD_INVALID_ARGUMENT, "no elements");
  EXPECT_OK(shard_engine_set_state(engine.get(), empty, "momentum_buffer",
                                   nullptr, 0));
  EXPECT_FAILS(
      shard_engine_set_state(engine.get(), empty, "exp_avg", nullptr, 0),
      SHARD_NOT_FOUND, "'exp_avg'", "momentum_buffer");
  EXPECT_FAILS(shard_engine_set_completed_steps(engine.get(), -1),
               SHARD_INVALID_ARGUMENT, "step -1");
}

}  // namespace
}  // namespace shard_api_testing::groups_test
