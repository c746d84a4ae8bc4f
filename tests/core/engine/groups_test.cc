// SPDX-License-Identifier: Apache-2.0
//
// Param groups at run time, clipping and loss scaling.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/training.h"

namespace shard::groups_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using CommPtr = std::shared_ptr<Communicator>;

// Returns a model with "p0" in the default group, "p1" in group 1 and a frozen
// "p2".
std::shared_ptr<Model> TwoGroups(const std::string& second) {
  auto model = ModelOf({{4}, {4}, {4}});
  EXPECT_OK(model->AddParamGroup(second, std::vector{1, 2}));
  EXPECT_OK(model->SetTrainable(2, false));
  return model;
}

StatusOr<std::unique_ptr<Engine>> MakeEngine(
    const CommPtr& comm, const std::shared_ptr<const Model>& model,
    const std::string& optimizer, const std::string& loss_scaling = "") {
  PlanOptions options;
  options.world_size = comm->world_size();
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, optimizer));
  SHARD_ASSIGN_OR_RETURN(const auto plan, Plan::Create(model, options));
  EngineOptions engine_options;
  SHARD_ASSIGN_OR_RETURN(engine_options.loss_scaler,
                         LossScaler::Parse(loss_scaling));
  SHARD_ASSIGN_OR_RETURN(auto engine, CreateEngine(plan, comm, engine_options));
  SHARD_RETURN_IF_ERROR(engine->BroadcastParams(0));
  return engine;
}

float* GradOf(Engine* engine, ParamId param) {
  return FloatsOf(*engine->Grad(param));
}

// Returns element 0 of a parameter after the step of all ranks; no rank goes on
// before all have read it.
float ValueOf(Engine* engine, ParamId param) {
  EXPECT_OK(engine->comm()->Barrier("look", Deadline::After(30)));
  const float value = *FloatsOf(*engine->Param(param));
  EXPECT_OK(engine->comm()->Barrier("looked", Deadline::After(30)));
  return value;
}

Status StepAll(Engine* engine, const StepOptions& options = StepOptions(),
               StepReport* report = nullptr) {
  StepReport unread;
  return engine->Step(options, report == nullptr ? &unread : report);
}

TEST(GroupsTest, EachGroupHasItsOwnOptimizer) {
  RunThreadRanks(2, [](const CommPtr& comm) {
    auto made = MakeEngine(comm, TwoGroups("sgd?lr=0.25"), "sgd?lr=0.5");
    ASSERT_OK(made);
    Engine* engine = made->get();
    for (const ParamId param : {0, 1}) *GradOf(engine, param) = 1;
    ASSERT_OK(StepAll(engine));
    EXPECT_EQ(ValueOf(engine, 0), -0.5f);
    EXPECT_EQ(ValueOf(engine, 1), -0.25f);
    EXPECT_EQ(ValueOf(engine, 2), 0);
  });
}

TEST(GroupsTest, HyperparametersAreReadAndSetByKey) {
  RunThreadRanks(2, [](const CommPtr& comm) {
    // The group's text is the plan's optimizer with another value.
    auto made = MakeEngine(comm, TwoGroups("?weight_decay=0.5"),
                           "sgd?lr=0.5&momentum=0.5");
    ASSERT_OK(made);
    Engine* engine = made->get();
    EXPECT_EQ(*engine->hypers().Get(1, "lr"), 0.5);
    EXPECT_EQ(*engine->hypers().Get(1, "momentum"), 0.5);
    EXPECT_EQ(*engine->hypers().Get(1, "weight_decay"), 0.5);
    EXPECT_EQ(*engine->hypers().Get(0, "weight_decay"), 0);
    EXPECT_EQ(*engine->hypers().Text(1),
              "sgd?lr=0.5&momentum=0.5&dampening=0&weight_decay=0.5&nesterov=0&"
              "maximize=0");

    ASSERT_OK(engine->SetHyper(1, "lr", 2));
    ASSERT_OK(engine->SetHyper(kAllGroups, "weight_decay", 0));
    EXPECT_EQ(*engine->hypers().Get(0, "lr"), 0.5);
    EXPECT_EQ(*engine->hypers().Get(1, "lr"), 2);
    EXPECT_EQ(*engine->hypers().Get(1, "weight_decay"), 0);
    for (const ParamId param : {0, 1}) *GradOf(engine, param) = 1;
    ASSERT_OK(StepAll(engine));
    EXPECT_EQ(ValueOf(engine, 0), -0.5f);
    EXPECT_EQ(ValueOf(engine, 1), -2);

    ASSERT_OK(engine->SetHyper(kAllGroups, "lr", 1));
    for (const ParamId param : {0, 1}) *GradOf(engine, param) = 1;
    ASSERT_OK(StepAll(engine));
    EXPECT_EQ(*engine->hypers().Get(0, "lr"), 1);
    EXPECT_EQ(*engine->hypers().Get(1, "lr"), 1);
    EXPECT_EQ(ValueOf(engine, 1), -2 - 1.5f);
  });
}

TEST(GroupsTest, WrongChangesAreNamedAndChangeNothing) {
  RunThreadRanks(1, [](const CommPtr& comm) {
    auto made = MakeEngine(comm, TwoGroups("adamw?lr=0.25"), "sgd?lr=0.5");
    ASSERT_OK(made);
    Engine* engine = made->get();
    const auto expect = [&](StatusCode code, GroupId group, const char* key,
                            double value,
                            const std::vector<std::string>& texts) {
      const Status status = engine->SetHyper(group, key, value);
      EXPECT_EQ(status.code(), code) << status.ToString();
      for (const std::string& text : texts) {
        EXPECT_THAT(status.message(), HasSubstr(text));
      }
    };
    expect(StatusCode::kInvalidArgument, 2, "lr", 1,
           {"param group 2", "has 2"});
    expect(StatusCode::kInvalidArgument, -2, "lr", 1, {"param group -2"});
    expect(StatusCode::kNotFound, 0, "beta1", 0.5, {"sgd", "'beta1'"});
    expect(StatusCode::kNotFound, kAllGroups, "rho", 0.5, {"'rho'"});
    expect(StatusCode::kInvalidArgument, 1, "beta1", 1, {"beta1=1", "[0, 1)"});
    expect(StatusCode::kInvalidArgument, 0, "lr", -1, {"lr=-1", "at least 0"});
    expect(StatusCode::kInvalidArgument, 0, "lr", 1e301, {"lr=1e+301"});
    // Group 0 could take the value but group 1 cannot, so neither gets it.
    expect(StatusCode::kInvalidArgument, kAllGroups, "lr",
           std::numeric_limits<double>::quiet_NaN(), {"lr"});
    expect(StatusCode::kFailedPrecondition, 0, "momentum", 0.9,
           {"momentum", "states"});
    expect(StatusCode::kInvalidArgument, 0, "nesterov", 1,
           {"nesterov", "dampening"});
    EXPECT_EQ(*engine->hypers().Get(0, "lr"), 0.5);
    EXPECT_EQ(*engine->hypers().Get(1, "lr"), 0.25);
    EXPECT_EQ(engine->hypers().Get(0, "beta1").status().code(),
              StatusCode::kNotFound);
    EXPECT_EQ(engine->hypers().Get(7, "lr").status().code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(engine->hypers().Text(7).status().code(),
              StatusCode::kInvalidArgument);
  });
}

// A change for all groups sets the key in every group that has it.
TEST(GroupsTest, AChangeForAllGroupsPassesOverThoseWithoutTheKey) {
  RunThreadRanks(1, [](const CommPtr& comm) {
    auto made = MakeEngine(comm, TwoGroups("adamw"), "sgd");
    ASSERT_OK(made);
    ASSERT_OK((*made)->SetHyper(kAllGroups, "beta2", 0.5));
    EXPECT_EQ(*(*made)->hypers().Get(1, "beta2"), 0.5);
  });
}

TEST(GroupsTest, AChangeOnOneRankIsADesyncOnAll) {
  RunThreadRanks(3, [](const CommPtr& comm) {
    auto made = MakeEngine(comm, TwoGroups("?lr=0.25"), "sgd?lr=0.5");
    ASSERT_OK(made);
    if (comm->rank() == 2) ASSERT_OK((*made)->SetHyper(1, "lr", 0.125));
    const Status status = StepAll(made->get());
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_EQ(status.rank(), 2);
    EXPECT_THAT(status.message(),
                HasSubstr("hyperparameters of the step: lr of param group 1: "
                          "rank 0 has 0.25, rank 2 has 0.125"));
  });
}

TEST(GroupsTest, WrongGroupsAreNamed) {
  const auto groups = [](const char* second) {
    return PlanGroups(*TwoGroups(second), "sgd?lr=0.5").status();
  };
  ExpectInvalid(groups("sgdd"), {"param group 1", "'sgdd'", "adamw"});
  ExpectInvalid(groups("?beta1=0.5"), {"param group 1", "'beta1'"});
  ExpectInvalid(groups("?lr=-1"), {"param group 1", "lr=-1", "at least 0"});
  EXPECT_OK(groups("?lr=1"));
  EXPECT_OK(groups(""));
}

TEST(ClippingTest, ClipsByValue) {
  RunThreadRanks(2, [](const CommPtr& comm) {
    auto made = MakeEngine(comm, ModelOf({{4}}), "sgd?lr=1");
    ASSERT_OK(made);
    Engine* engine = made->get();
    float* grad = GradOf(engine, 0);
    const float values[] = {3, -3, 0.25f, -0.25f};
    for (int i = 0; i < 4; ++i) grad[i] = values[i];
    const StepOptions options = {.clip_value = 0.5};
    StepReport report;
    ASSERT_OK(StepAll(engine, options, &report));
    EXPECT_EQ(report.grad_norm, -1);
    ValueOf(engine, 0);
    const auto* param = FloatsOf(*engine->Param(0));
    EXPECT_EQ(std::vector<float>(param, param + 4),
              (std::vector<float>{-0.5f, 0.5f, -0.25f, 0.25f}));
  });
}

TEST(ClippingTest, WrongOptionsAreNamed) {
  RunThreadRanks(1, [](const CommPtr& comm) {
    auto made = MakeEngine(comm, ModelOf({{4}}), "sgd?lr=1");
    ASSERT_OK(made);
    Engine* engine = made->get();
    StepOptions options;
    options.grad_norm_type = -1;
    ExpectInvalid(StepAll(engine, options), {"grad_norm_type=-1", "above 0"});
    options.grad_norm_type = std::numeric_limits<double>::quiet_NaN();
    ExpectInvalid(StepAll(engine, options), {"grad_norm_type"});
    options.grad_norm_type = 1e-4;
    options.max_grad_norm = 1;
    ExpectInvalid(StepAll(engine, options),
                  {"grad_norm_type=", "too small", "4 elements"});
    options = StepOptions();
    for (const double value : {1e-50, 1e60}) {
      options.clip_value = value;
      ExpectInvalid(StepAll(engine, options), {"clip_value=", "out of range"});
    }
    options = StepOptions();
    options.clip_value = -2;
    ExpectInvalid(StepAll(engine, options), {"clip_value=-2", "at least 0"});
    options.clip_value = 2;
    options.max_grad_norm = 3;
    ExpectInvalid(StepAll(engine, options),
                  {"clip_value=2", "max_grad_norm=3", "one of them"});
  });
}

// Every norm finds non-finite gradients, also in gradients of 2 bytes, which
// are summed twice.
TEST(ClippingTest, NonFiniteGradientsSkipTheStep) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      for (const double type : {1.0, 2.0, 3.0, HUGE_VAL}) {
        RunThreadRanks(3, [&](const CommPtr& comm) {
          auto made = MakeEngine(comm, ModelOf({{40}}, dtype), "adamw");
          ASSERT_OK(made);
          Engine* engine = made->get();
          std::vector<float> grad(40, 1.0f);
          if (comm->rank() == 1) grad[33] = static_cast<float>(bad);
          Store(dtype, grad, engine->Grad(0)->data);
          const StepOptions options = {.max_grad_norm = 1,
                                       .grad_norm_type = type};
          StepReport report;
          ASSERT_OK(StepAll(engine, options, &report));
          EXPECT_TRUE(report.skipped);
          EXPECT_FALSE(std::isfinite(report.grad_norm));
          EXPECT_EQ(report.step, 0);
          ASSERT_OK(comm->Barrier("look", Deadline::After(30)));
          EXPECT_EQ(Load(dtype, engine->Param(0)->data, 40),
                    std::vector<float>(40));
        });
      }
    }
  }
}

TEST(LossScalingTest, SkipsAndBacksOffOnAllRanks) {
  RunThreadRanks(2, [](const CommPtr& comm) {
    auto made = MakeEngine(comm, ModelOf({{4}}), "sgd?lr=1",
                           "dynamic?init_scale=1024&growth_interval=2");
    ASSERT_OK(made);
    Engine* engine = made->get();
    EXPECT_EQ(engine->loss_scale(), 1024);
    StepReport report;

    *GradOf(engine, 0) =
        comm->rank() == 0 ? std::numeric_limits<float>::infinity() : 1;
    ASSERT_OK(StepAll(engine, StepOptions(), &report));
    EXPECT_TRUE(report.skipped);
    EXPECT_EQ(report.step, 0);
    EXPECT_EQ(report.loss_scale, 1024);
    EXPECT_EQ(engine->loss_scale(), 512);

    for (int step = 1; step <= 2; ++step) {
      EXPECT_TRUE(engine->ZeroGrad().ok());
      *GradOf(engine, 0) = 512;
      ASSERT_OK(StepAll(engine, StepOptions(), &report));
      EXPECT_FALSE(report.skipped);
      EXPECT_EQ(report.step, step);
      EXPECT_EQ(report.loss_scale, 512);
      EXPECT_EQ(ValueOf(engine, 0), static_cast<float>(-step));
    }
    EXPECT_EQ(engine->loss_scale(), 1024);

    const StepOptions options = {.loss_scale = 8};
    ExpectInvalid(StepAll(engine, options), {"loss_scale=8", "exclude"});
  });
}

// Ranks must have the same kind of loss scaling, even if the scales are equal
// at first.
TEST(LossScalingTest, RanksThatDifferAreADesync) {
  RunThreadRanks(2, [](const CommPtr& comm) {
    const auto made = MakeEngine(
        comm, ModelOf({{4}}), "sgd?lr=1",
        comm->rank() == 0 ? "static?scale=8" : "dynamic?init_scale=8");
    EXPECT_EQ(made.status().code(), StatusCode::kDesync);
    EXPECT_THAT(made.status().message(),
                HasSubstr("kind of loss_scaling: rank 0 has static, rank 1 has "
                          "dynamic"));
  });
}

}  // namespace
}  // namespace shard::groups_test
