// SPDX-License-Identifier: Apache-2.0
//
// A step whose gradients are not finite leaves no trace: on no rank does it
// change a bit of parameters or states, the step number, or anything that later
// steps depend on.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/states.h"
#include "tests/core/engine/training.h"

namespace shard::skip_test {
namespace {

constexpr int kWorldSize = 3;
constexpr int kBadStep = 3;  // The bad step comes before the third good one.

struct Kind {
  const char* name;
  const char* optimizer;
  DType dtype = DType::kF32;
  Masters masters = Masters::kF32;
  bool f32_grads = false;
};

// A reason for the ranks to check whether gradients are finite.
struct Reason {
  const char* name;
  double max_grad_norm = 0;
  double grad_norm_type = 0;
  bool skip_nonfinite = false;
  const char* loss_scaling = "";
};

constexpr Reason kReasons[] = {
    {.name = "skip_nonfinite", .skip_nonfinite = true},
    {.name = "norm 2", .max_grad_norm = 0.5},
    {.name = "norm 3", .max_grad_norm = 0.5, .grad_norm_type = 3},
    {.name = "norm inf",
     .max_grad_norm = 0.5,
     .grad_norm_type = std::numeric_limits<double>::infinity()},
    {.name = "loss scaling",
     .loss_scaling = "dynamic?init_scale=8&growth_interval=2"},
};

// A bad element in one rank's gradient, or one that overflows in the sum.
struct Bad {
  const char* name;
  float value;
  bool on_all_ranks = false;
};

constexpr Bad kBads[] = {
    {.name = "infinity", .value = std::numeric_limits<float>::infinity()},
    {.name = "nan", .value = std::numeric_limits<float>::quiet_NaN()},
    {.name = "overflow", .value = 3e38f, .on_all_ranks = true},
};

std::vector<std::vector<unsigned char>> ParamBytes(const Engine& engine) {
  std::vector<std::vector<unsigned char>> all;
  for (const EngineBuffer& buffer : engine.memory().buffers()) {
    const auto* data = testing::KernelView(
        static_cast<const unsigned char*>(buffer.ParamAt(0)));
    all.emplace_back(data,
                     data + DTypeBytes(buffer.plan->dtype,
                                       buffer.plan->layout.padded_numel()));
  }
  return all;
}

// Takes a step with a bad value in the last element of the last parameter,
// which rank 0 does not own. All other gradients are 0.
void TakeBadStep(Engine* engine, const StepOptions& options, const Bad& bad) {
  const auto params = ParamBytes(*engine);
  const auto states = StateBytes(*engine);
  const double scale = engine->loss_scale();
  const auto last =
      static_cast<ParamId>(engine->plan().model().params().size() - 1);
  const auto grad = engine->Grad(last);
  if (bad.on_all_ranks || engine->comm()->rank() == 0) {
    const DType dtype = engine->memory().buffers()[0].plan->grad_dtype;
    unsigned char* const element = static_cast<unsigned char*>(grad->data) +
                                   DTypeBytes(dtype, grad->numel - 1);
    Store(dtype, {bad.value}, element);
  }
  StepReport report;
  ASSERT_OK(engine->Step(options, &report));
  EXPECT_TRUE(report.skipped);
  EXPECT_FALSE(std::isfinite(report.grad_norm));
  EXPECT_EQ(report.step, kBadStep - 1);
  EXPECT_EQ(report.loss_scale, scale);
  EXPECT_EQ(engine->loss_scale(), scale == 1 ? 1 : scale / 2);
  EXPECT_TRUE(ParamBytes(*engine) == params);
  EXPECT_TRUE(StateBytes(*engine) == states);
  EXPECT_TRUE(engine->ZeroGrad().ok());
}

class SkipTest : public ::testing::TestWithParam<Kind> {};

TEST_P(SkipTest, LeavesNoTrace) {
  const Kind& kind = GetParam();
  Training training;
  training.model = ModelOf({{9, 30}, {12, 7}, {9, 30}, {6, 50}}, kind.dtype);
  training.optimizer = kind.optimizer;
  training.plan.world_size = kWorldSize;
  training.plan.masters = kind.masters;
  training.plan.f32_grads = kind.f32_grads;
  training.plan.seed = 5;
  for (const Reason& reason : kReasons) {
    const auto scaler = LossScaler::Parse(reason.loss_scaling);
    ASSERT_OK(scaler);
    training.step.max_grad_norm = reason.max_grad_norm;
    training.step.grad_norm_type = reason.grad_norm_type;
    training.step.skip_nonfinite = reason.skip_nonfinite;
    // Loss scales are powers of two, which change no bits.
    training.engine.loss_scaler = LossScaler();
    training.before_step = nullptr;
    const auto undisturbed = Train(training);
    training.engine.loss_scaler = *scaler;
    for (const Bad& bad : kBads) {
      // Which value it is decides no path: under a sanitizer each reason has
      // one.
      const auto turn = (&reason - kReasons) % std::ssize(kBads);
      if (kSanitized && &bad - kBads != turn) continue;
      SCOPED_TRACE(StrCat(reason.name, ", ", bad.name));
      training.before_step = [&](Engine* engine, int step) {
        if (step == kBadStep) TakeBadStep(engine, training.step, bad);
      };
      StepReport report;
      EXPECT_EQ(Train(training, &report), undisturbed);
      EXPECT_EQ(report.step, training.steps);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, SkipTest,
    ::testing::Values(
        Kind{.name = "sgd", .optimizer = "sgd?lr=0.01&momentum=0.9"},
        Kind{.name = "adamw", .optimizer = "adamw?lr=0.01"},
        Kind{.name = "adamw_q8", .optimizer = "adamw?lr=0.01&states=q8"},
        Kind{.name = "adamw_bf16_masters",
             .optimizer = "adamw?lr=0.01",
             .dtype = DType::kBF16},
        Kind{.name = "adamw_bf16_stochastic",
             .optimizer = "adamw?lr=0.01&states=bf16",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneStochastic},
        Kind{.name = "lamb", .optimizer = "lamb?lr=0.01"},
        Kind{.name = "adafactor_bf16",
             .optimizer = "adafactor?lr=0.01",
             .dtype = DType::kBF16,
             .f32_grads = true},
        Kind{.name = "muon", .optimizer = "muon?lr=0.01"},
        Kind{.name = "muon_bf16_stochastic",
             .optimizer = "muon?lr=0.01",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneStochastic}),
    [](const auto& info) { return std::string(info.param.name); });

// The gradients of all groups decide whether any group is stepped.
TEST(SkipGroupsTest, OneGroupsGradientsStopAll) {
  Training training;
  training.model = ModelOf({{9, 30}, {12, 7}, {50}});
  ASSERT_OK(training.model->AddParamGroup("adamw?states=q8", std::vector{2}));
  ASSERT_OK(training.model->AddParamGroup("lamb", std::vector{1}));
  training.optimizer = "muon?lr=0.01";
  training.plan.world_size = kWorldSize;
  training.step.skip_nonfinite = true;
  const auto undisturbed = Train(training);
  training.before_step = [&](Engine* engine, int step) {
    if (step == kBadStep) TakeBadStep(engine, training.step, kBads[0]);
  };
  EXPECT_EQ(Train(training), undisturbed);
}

}  // namespace
}  // namespace shard::skip_test
