// SPDX-License-Identifier: Apache-2.0
//
// Steps beside a model of them on one rank, in double: after each step the
// counters, the loss scale, the report and all parameters are those of the
// model. Random overflows, missing gradients, parameters that are frozen and
// trained again, loss scales and learning rates that the host sets.
// SHARD_TEST_SEED=N runs one script alone, the number that a failure prints,
// and SHARD_TEST_LONG all forms.

#include "tests/core/engine/step_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/optim/loss_scaler.h"
#include "tests/core/base/dice.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/exact_reference.h"
#include "tests/core/engine/training.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::step_model_test {
namespace {

using testing::Dice;
using testing::kModelRanks;
using testing::StepModel;
using testing::StepResult;
using testing::StepScript;

constexpr int kSteps = kSanitized ? 8 : 24;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Finite, but the sum of two is not.
constexpr float kHuge = 3e38f;

enum class Mode {
  kScaled,  // Dynamic loss scaling, missing gradients are skipped.
  kPlain,   // No scaling; all gradients are there.
  kBegun,   // begin_step, so no norm.
};

struct Form {
  const char* name;
  int stage;
  const char* link;
  const char* device;
  Mode mode;
};

// Returns steps that are possible in this mode.
std::vector<StepScript> MakeScript(const Model& model, Mode mode, Dice* dice) {
  const size_t params = model.params().size();
  std::vector<bool> frozen(params, false);
  std::vector<StepScript> script;
  for (int s = 0; s < kSteps; ++s) {
    StepScript& step = script.emplace_back();
    for (size_t p = 0; p < params; ++p) {
      // The first parameter always has gradients.
      if (p == 0 || !dice->Chance(4)) continue;
      (frozen[p] ? step.thaw : step.freeze).push_back(static_cast<ParamId>(p));
      frozen[p] = !frozen[p];
    }
    step.has.assign(kModelRanks, std::vector<bool>(params, true));
    if (dice->Chance(20)) step.lr = 0.002 * (1 + dice->Roll(5));
    if (mode == Mode::kBegun) continue;
    if (mode == Mode::kScaled) {
      if (dice->Chance(15)) step.loss_scale = 1 << dice->Roll(7);
      const int missing = dice->Pick<int>({0, 0, 10, 60});
      for (auto& has : step.has) {
        for (size_t p = 1; p < params; ++p) {
          if (dice->Chance(missing)) has[p] = false;
        }
      }
    }
    step.skip_nonfinite = mode == Mode::kPlain && dice->Chance(60);
    if (dice->Chance(50)) {
      step.max_grad_norm = 0.25 * (1 + dice->Roll(40));
      step.norm_type = dice->Pick<double>({0, 1, 2, 3, kInfinity});
    }
    const bool may_skip =
        mode == Mode::kScaled || step.skip_nonfinite || step.max_grad_norm > 0;
    if (!may_skip || !dice->Chance(30)) continue;
    const auto p = static_cast<size_t>(dice->Roll(static_cast<int>(params)));
    step.bad = static_cast<ParamId>(p);
    step.bad_value = dice->Pick<float>({kInfinity, -kInfinity, kNaN, kHuge});
    step.bad_rank = step.bad_value == kHuge ? -1 : dice->Roll(kModelRanks);
    // A gradient must count to do harm.
    for (int rank = 0; rank < kModelRanks; ++rank) {
      if (step.IsBad(rank, p)) step.has[static_cast<size_t>(rank)][p] = true;
    }
  }
  return script;
}

// The part of one rank.
class Rank {
 public:
  Rank(Engine* engine, Mode mode) : engine_(*engine), mode_(mode) {}

  void Step(int number, const StepScript& step, const StepResult& expected) {
    ASSERT_NO_FATAL_FAILURE(Change(step));
    StepOptions options;
    options.max_grad_norm = step.max_grad_norm;
    options.grad_norm_type = step.norm_type;
    options.skip_nonfinite = step.skip_nonfinite;
    if (mode_ == Mode::kBegun) ASSERT_OK(engine_.BeginStep(options));
    ASSERT_NO_FATAL_FAILURE(Backward(number, step));
    StepReport report;
    ASSERT_OK(engine_.Step(options, &report));
    ASSERT_OK(engine_.ZeroGrad());
    EXPECT_EQ(report.skipped, expected.skipped);
    EXPECT_EQ(report.step, expected.step);
    EXPECT_EQ(engine_.step(), expected.step);
    if (mode_ == Mode::kScaled) {
      EXPECT_EQ(report.loss_scale, expected.step_loss_scale);
      EXPECT_EQ(engine_.loss_scale(), expected.loss_scale);
      EXPECT_EQ(engine_.growth_tracker(), expected.growth_tracker);
    }
    if (std::isfinite(expected.grad_norm)) {
      EXPECT_NEAR(report.grad_norm, expected.grad_norm,
                  1e-6 * std::abs(expected.grad_norm));
    } else {
      EXPECT_EQ(std::isnan(report.grad_norm), std::isnan(expected.grad_norm));
      EXPECT_FALSE(std::isfinite(report.grad_norm));
    }
    Compare(expected.params);
  }

 private:
  void Change(const StepScript& step) {
    if (!step.freeze.empty()) {
      ASSERT_OK(engine_.SetTrainable(step.freeze, false, 0));
    }
    if (!step.thaw.empty()) {
      ASSERT_OK(engine_.SetTrainable(step.thaw, true, 0));
    }
    if (step.lr > 0) ASSERT_OK(engine_.SetHyper(kAllGroups, "lr", step.lr));
    if (step.loss_scale > 0) {
      ASSERT_OK(engine_.SetLossScale({step.loss_scale, 0}));
    }
  }

  template <typename Act>
  void ForEachParam(int32_t unit, Act act) {
    for (const int32_t b : engine_.plan().unit(unit).buffers) {
      const FlatBufferPlan& buffer = engine_.plan().buffer(b);
      for (const Slot& slot : buffer.layout.slots()) {
        act(static_cast<size_t>(slot.param), buffer.trainable);
      }
    }
  }

  void Backward(int number, const StepScript& step) {
    const auto units = static_cast<int32_t>(engine_.plan().units().size());
    for (int32_t unit = units; unit-- > 0;) {
      ASSERT_OK(engine_.UnitAcquire(unit, Pass::kBackward, 0));
      std::vector<ParamId> written;
      bool all = true;
      ForEachParam(unit, [&](size_t param, bool trainable) {
        if (!trainable) return;
        const bool has = step.Has(engine_.comm()->rank(), param);
        all = all && has;
        if (!has) return;
        WriteGrad(number, step, param);
        written.push_back(static_cast<ParamId>(param));
      });
      // Parameters that are not declared have no gradient.
      if (!all) {
        for (const ParamId param : written) {
          ASSERT_OK(engine_.MarkParamGradReady(param));
        }
      }
      if (!written.empty()) ASSERT_OK(engine_.MarkUnitGradsReady(unit));
      ASSERT_OK(engine_.UnitRelease(unit));
    }
  }

  void WriteGrad(int number, const StepScript& step, size_t param) {
    const auto grad = engine_.Grad(static_cast<ParamId>(param));
    ASSERT_OK(grad);
    const float scale =
        mode_ == Mode::kScaled ? static_cast<float>(engine_.loss_scale()) : 1;
    engine_.host_stream().Call(
        "write a gradient", [to = *grad, number, &step, param, scale,
                             rank = engine_.comm()->rank()] {
          const auto numel = static_cast<size_t>(to.numel);
          std::vector<float> values(numel);
          for (size_t i = 0; i < numel; ++i) {
            const float g = step.Grad(number, rank, param, i, numel);
            values[i] = g == kHuge ? g : g * scale;
          }
          Store(DType::kF32, values, to.data);
          return Status();
        });
  }

  void Compare(const DoubleTensors& expected) {
    const auto units = static_cast<int32_t>(engine_.plan().units().size());
    for (int32_t unit = 0; unit < units; ++unit) {
      ASSERT_OK(engine_.UnitAcquire(unit, Pass::kForward, 0));
      ForEachParam(unit, [&](size_t param, bool) {
        const auto tensor = engine_.Param(static_cast<ParamId>(param));
        ASSERT_OK(tensor);
        engine_.host_stream().Call(
            "compare a parameter",
            [from = *tensor, param, &expected = expected[param]]() -> Status {
              const std::string difference = DifferenceOf(
                  DType::kF32, Load(DType::kF32, from.data, from.numel),
                  expected);
              if (difference.empty()) return Status();
              return Corrupt("parameter ", param, ": ", difference);
            });
      });
      ASSERT_OK(engine_.UnitRelease(unit));
    }
    ASSERT_OK(engine_.host_stream().Synchronize(Deadline::After(60)));
  }

  Engine& engine_;
  const Mode mode_;
};

class StepModelTest : public ::testing::TestWithParam<Form> {
 protected:
  static void RunScript(uint64_t seed) {
    SCOPED_TRACE(StrCat("SHARD_TEST_SEED=", seed));
    const Form& form = GetParam();
    Dice dice(seed);
    UnitTraining training;
    training.model = BlockModel(12);
    training.optimizer = "adamw?lr=0.01";
    training.plan.stage = form.stage;
    training.plan.world_size = kModelRanks;
    const auto plan = PlanOf(training);
    ASSERT_OK(plan);
    EXPECT_TRUE(ShardsAsItsStage(**plan));
    const std::vector<StepScript> script =
        MakeScript(*training.model, form.mode, &dice);
    const auto optimizer = Optimizer::Parse(training.optimizer);
    ASSERT_OK(optimizer);
    StepModel model(*training.model, optimizer->hypers(),
                    form.mode == Mode::kScaled);
    std::vector<StepResult> expected;
    for (int s = 0; s < kSteps; ++s) {
      expected.push_back(model.Step(s + 1, script[static_cast<size_t>(s)]));
    }
    EngineOptions options;
    options.device = form.device;
    if (form.mode == Mode::kScaled) {
      options.loss_scaler = *LossScaler::Parse(StepModel::kScaling);
      options.missing_grads = MissingGrads::kSkip;
    }
    RunThreadRanks(
        kModelRanks,
        [&](const auto& comm) {
          auto engine = CreateEngine(*plan, comm, options);
          ASSERT_OK(engine);
          Rank rank(engine->get(), form.mode);
          ASSERT_NO_FATAL_FAILURE(Fill(engine->get()));
          for (int s = 0; s < kSteps; ++s) {
            SCOPED_TRACE(StrCat("rank ", comm->rank(), ", step ", s + 1));
            const auto at = static_cast<size_t>(s);
            rank.Step(s + 1, script[at], expected[at]);
            if (HasFailure()) break;
          }
        },
        60, form.link);
  }

  static void Fill(Engine* engine) {
    const auto& params = engine->plan().model().params();
    for (size_t p = 0; p < params.size(); ++p) {
      std::vector<float> values;
      for (int64_t i = 0; i < params[p].numel; ++i) {
        values.push_back(ExactInitial(static_cast<ParamId>(p), i));
      }
      ASSERT_OK(engine->SetParam(static_cast<ParamId>(p), values.data(),
                                 values.size() * sizeof(float)));
    }
    ASSERT_OK(engine->BroadcastParams(0));
  }
};

TEST_P(StepModelTest, EqualsTheModel) {
  if (const char* seed = std::getenv("SHARD_TEST_SEED")) {
    return RunScript(std::strtoull(seed, nullptr, 10));
  }
  // Another script for each form.
  RunScript(std::hash<std::string_view>()(GetParam().name) % 1000);
}

std::vector<Form> Forms() {
  static const char* const kNames[] = {"cpu", "async"};
  static const char* const kDevices[] = {
      "cpu", "cpu-async?max_delay=0.00002&host=async"};
  // One half of the forms has each pair of their values.
  const bool all = std::getenv("SHARD_TEST_LONG") != nullptr;
  static std::vector<std::string> names;
  names.reserve(100);
  std::vector<Form> forms;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* link : {"", "direct=0"}) {
      for (int device = 0; device < 2; ++device) {
        for (const Mode mode : {Mode::kScaled, Mode::kPlain, Mode::kBegun}) {
          const int number =
              stage + (*link == 0 ? 0 : 1) + device + static_cast<int>(mode);
          if (!all && number % 2 == 1) continue;
          // Memory is used alike without a device's delays.
          if (kAddressSanitized && device == 1 && mode == Mode::kPlain)
            continue;
          const char* const kind = mode == Mode::kScaled  ? "scaled"
                                   : mode == Mode::kPlain ? "plain"
                                                          : "begun";
          names.push_back(StrCat("stage", stage, *link == 0 ? "_" : "_apart_",
                                 kNames[device], "_", kind));
          forms.push_back(
              {names.back().c_str(), stage, link, kDevices[device], mode});
        }
      }
    }
  }
  return forms;
}

INSTANTIATE_TEST_SUITE_P(Forms, StepModelTest, ::testing::ValuesIn(Forms()),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace shard::step_model_test
