// SPDX-License-Identifier: Apache-2.0
//
// Steps beside a model of them on one rank, in double: after each step the
// counters, the loss scale, the report and all parameters are those of the
// model. Random overflows, missing gradients, parameters that are frozen and
// trained again, loss scales and learning rates that the host sets.
// SHARD_TEST_SEED=N runs one script alone, the number that a failure prints.

#include <gtest/gtest.h>

#include <algorithm>
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
#include "kernels/formula/all.h"
#include "tests/core/base/dice.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/exact_reference.h"
#include "tests/core/engine/training.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::step_model_test {
namespace {

using testing::Dice;

constexpr int kWorldSize = 2;
constexpr int kSteps = 24;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Finite, but the sum of two is not.
constexpr float kHuge = 3e38f;

// What a host does in one step. The same on all ranks.
struct Event {
  std::vector<ParamId> freeze;
  std::vector<ParamId> thaw;
  double lr = 0;          // 0: unchanged.
  double loss_scale = 0;  // 0: unchanged.
  double max_grad_norm = 0;
  double norm_type = 0;
  bool skip_nonfinite = false;
  // By rank and ParamId: whether the rank has a gradient.
  std::vector<std::vector<bool>> has;
  // The parameter whose last element is bad on this rank, or on all (-1).
  ParamId bad = -1;
  int bad_rank = 0;
  float bad_value = 0;

  bool Has(int rank, size_t param) const {
    return has[static_cast<size_t>(rank)][param];
  }
  bool IsBad(int rank, size_t param) const {
    return static_cast<ParamId>(param) == bad &&
           (bad_rank < 0 || bad_rank == rank);
  }
  float Grad(int step, int rank, size_t param, size_t i, size_t numel) const {
    if (IsBad(rank, param) && i + 1 == numel) return bad_value;
    return ExactGrad(step, 1, rank, static_cast<ParamId>(param),
                     static_cast<int64_t>(i));
  }
};

// The results of a step.
struct Result {
  int64_t step;
  bool skipped;
  double grad_norm;
  double step_loss_scale;  // Of the gradients of the step.
  double loss_scale;       // Of the next step.
  int64_t growth_tracker;
  DoubleTensors params;
};

// The steps of an engine with AdamW and dynamic loss scaling, or none.
class StepModel {
 public:
  StepModel(const Model& model, std::vector<double> hypers, bool scales)
      : hypers_(std::move(hypers)), scales_(scales) {
    for (size_t p = 0; p < model.params().size(); ++p) {
      Param& param = params_.emplace_back();
      const auto numel = static_cast<size_t>(model.params()[p].numel);
      param.m.resize(numel);
      param.v.resize(numel);
      for (size_t i = 0; i < numel; ++i) {
        param.values.push_back(
            ExactInitial(static_cast<ParamId>(p), static_cast<int64_t>(i)));
      }
    }
  }

  static constexpr double kFirstScale = 8;
  static constexpr double kMost = 64;
  static constexpr int64_t kInterval = 3;
  static constexpr const char* kScaling =
      "dynamic?init_scale=8&growth_interval=3&min_scale=1&max_scale=64";

  Result Step(int number, const Event& event) {
    Change(event);
    const double step_scale = scale_;
    const DoubleTensors sums = SumsOf(number, event);
    const bool needs_norm =
        event.max_grad_norm > 0 || event.skip_nonfinite || scales_;
    const double norm = needs_norm ? NormOf(sums, event.norm_type) : -1;
    const bool skipped = needs_norm && !std::isfinite(norm);
    double coefficient = 1.0 / kWorldSize;
    if (event.max_grad_norm > 0) {
      coefficient *= std::min(1.0, event.max_grad_norm / (norm + 1e-6));
    }
    if (!skipped) {
      ++step_;
      for (size_t p = 0; p < params_.size(); ++p) {
        if (!sums[p].empty()) Update(sums[p], coefficient, &params_[p]);
      }
    }
    if (scales_) CountScale(skipped);
    Result result = {step_, skipped, norm, step_scale, scale_, good_, {}};
    for (const Param& param : params_) result.params.push_back(param.values);
    return result;
  }

 private:
  struct Param {
    std::vector<double> values, m, v;
    int64_t steps = 0;
    bool trainable = true;
  };

  void Change(const Event& event) {
    for (const ParamId p : event.freeze) {
      params_[static_cast<size_t>(p)].trainable = false;
    }
    for (const ParamId p : event.thaw) {
      Param& param = params_[static_cast<size_t>(p)];
      param.trainable = true;
      param.steps = 0;
      std::fill(param.m.begin(), param.m.end(), 0);
      std::fill(param.v.begin(), param.v.end(), 0);
    }
    if (event.lr > 0) hypers_[AdamW::kLr] = event.lr;
    if (event.loss_scale > 0) {
      scale_ = event.loss_scale;
      good_ = 0;
    }
  }

  // Returns the sums of gradients; empty for parameters that are not stepped.
  DoubleTensors SumsOf(int number, const Event& event) const {
    DoubleTensors sums(params_.size());
    for (size_t p = 0; p < params_.size(); ++p) {
      if (!params_[p].trainable) continue;
      const size_t numel = params_[p].values.size();
      for (int rank = 0; rank < kWorldSize; ++rank) {
        if (!event.Has(rank, p)) continue;
        sums[p].resize(numel);
        for (size_t i = 0; i < numel; ++i) {
          sums[p][i] += event.Grad(number, rank, p, i, numel);
        }
      }
    }
    return sums;
  }

  // Returns the norm of the sums, which are fp32, over the number of ranks.
  static double NormOf(const DoubleTensors& sums, double type) {
    double largest = 0;
    double total = 0;
    const double p = type == 0 ? 2 : type;
    for (const auto& sum : sums) {
      for (const double value : sum) {
        const double g =
            std::abs(static_cast<double>(static_cast<float>(value)));
        if (std::isnan(g)) return g;
        largest = std::max(largest, g);
        if (!std::isinf(p)) total += std::pow(g, p);
      }
    }
    const bool is_largest = std::isinf(p) || !std::isfinite(largest);
    return (is_largest ? largest : std::pow(total, 1 / p)) / kWorldSize;
  }

  void Update(const std::vector<double>& sum, double coefficient,
              Param* param) const {
    const auto t = static_cast<double>(++param->steps);
    const double beta1 = hypers_[AdamW::kBeta1];
    const double beta2 = hypers_[AdamW::kBeta2];
    const double lr = hypers_[AdamW::kLr];
    for (size_t i = 0; i < sum.size(); ++i) {
      const double g = sum[i] * coefficient;
      param->m[i] = beta1 * param->m[i] + (1 - beta1) * g;
      param->v[i] = beta2 * param->v[i] + (1 - beta2) * g * g;
      const double root = std::sqrt(param->v[i] / (1 - std::pow(beta2, t)));
      param->values[i] *= 1 - lr * hypers_[AdamW::kWeightDecay];
      param->values[i] -= lr * (param->m[i] / (1 - std::pow(beta1, t))) /
                          (root + hypers_[AdamW::kEps]);
    }
  }

  void CountScale(bool skipped) {
    if (skipped) {
      scale_ = std::max(1.0, scale_ / 2);
      good_ = 0;
    } else if (++good_ == kInterval) {
      scale_ = std::min(kMost, scale_ * 2);
      good_ = 0;
    }
  }

  std::vector<double> hypers_;
  const bool scales_;
  std::vector<Param> params_;
  int64_t step_ = 0;
  double scale_ = kFirstScale;
  int64_t good_ = 0;
};

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

// Returns events that are possible for this mode.
std::vector<Event> Script(const Model& model, Mode mode, Dice* dice) {
  const size_t params = model.params().size();
  std::vector<bool> frozen(params, false);
  std::vector<Event> script;
  for (int s = 0; s < kSteps; ++s) {
    Event& event = script.emplace_back();
    for (size_t p = 0; p < params; ++p) {
      // The first parameter always has gradients.
      if (p == 0 || !dice->Chance(4)) continue;
      (frozen[p] ? event.thaw : event.freeze)
          .push_back(static_cast<ParamId>(p));
      frozen[p] = !frozen[p];
    }
    event.has.assign(kWorldSize, std::vector<bool>(params, true));
    if (dice->Chance(20)) event.lr = 0.002 * (1 + dice->Roll(5));
    if (mode == Mode::kBegun) continue;
    if (mode == Mode::kScaled) {
      if (dice->Chance(15)) event.loss_scale = 1 << dice->Roll(7);
      const int missing = dice->Pick<int>({0, 0, 10, 60});
      for (auto& has : event.has) {
        for (size_t p = 1; p < params; ++p) {
          if (dice->Chance(missing)) has[p] = false;
        }
      }
    }
    event.skip_nonfinite = mode == Mode::kPlain && dice->Chance(60);
    if (dice->Chance(50)) {
      event.max_grad_norm = 0.25 * (1 + dice->Roll(40));
      event.norm_type = dice->Pick<double>({0, 1, 2, 3, kInfinity});
    }
    const bool may_skip = mode == Mode::kScaled || event.skip_nonfinite ||
                          event.max_grad_norm > 0;
    if (!may_skip || !dice->Chance(30)) continue;
    const auto p = static_cast<size_t>(dice->Roll(static_cast<int>(params)));
    event.bad = static_cast<ParamId>(p);
    event.bad_value = dice->Pick<float>({kInfinity, -kInfinity, kNaN, kHuge});
    event.bad_rank = event.bad_value == kHuge ? -1 : dice->Roll(kWorldSize);
    // A gradient must count to do harm.
    for (int rank = 0; rank < kWorldSize; ++rank) {
      if (event.IsBad(rank, p)) event.has[static_cast<size_t>(rank)][p] = true;
    }
  }
  return script;
}

// The part of one rank.
class Rank {
 public:
  Rank(Engine* engine, Mode mode) : engine_(*engine), mode_(mode) {}

  void Step(int number, const Event& event, const Result& expected) {
    ASSERT_NO_FATAL_FAILURE(Change(event));
    StepOptions options;
    options.max_grad_norm = event.max_grad_norm;
    options.grad_norm_type = event.norm_type;
    options.skip_nonfinite = event.skip_nonfinite;
    if (mode_ == Mode::kBegun) ASSERT_OK(engine_.BeginStep(options));
    ASSERT_NO_FATAL_FAILURE(Backward(number, event));
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
  void Change(const Event& event) {
    if (!event.freeze.empty()) {
      ASSERT_OK(engine_.SetTrainable(event.freeze, false, 0));
    }
    if (!event.thaw.empty()) {
      ASSERT_OK(engine_.SetTrainable(event.thaw, true, 0));
    }
    if (event.lr > 0) ASSERT_OK(engine_.SetHyper(kAllGroups, "lr", event.lr));
    if (event.loss_scale > 0) {
      ASSERT_OK(engine_.SetLossScale({event.loss_scale, 0}));
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

  void Backward(int number, const Event& event) {
    const auto units = static_cast<int32_t>(engine_.plan().units().size());
    for (int32_t unit = units; unit-- > 0;) {
      ASSERT_OK(engine_.UnitAcquire(unit, Pass::kBackward, 0));
      std::vector<ParamId> written;
      bool all = true;
      ForEachParam(unit, [&](size_t param, bool trainable) {
        if (!trainable) return;
        const bool has = event.Has(engine_.comm()->rank(), param);
        all = all && has;
        if (!has) return;
        WriteGrad(number, event, param);
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

  void WriteGrad(int number, const Event& event, size_t param) {
    const auto grad = engine_.Grad(static_cast<ParamId>(param));
    ASSERT_OK(grad);
    const float scale =
        mode_ == Mode::kScaled ? static_cast<float>(engine_.loss_scale()) : 1;
    engine_.host_stream().Call(
        "write a gradient", [to = *grad, number, &event, param, scale,
                             rank = engine_.comm()->rank()] {
          const auto numel = static_cast<size_t>(to.numel);
          std::vector<float> values(numel);
          for (size_t i = 0; i < numel; ++i) {
            const float g = event.Grad(number, rank, param, i, numel);
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
    training.plan.world_size = kWorldSize;
    const auto plan = PlanOf(training);
    ASSERT_OK(plan);
    EXPECT_TRUE(ShardsAsItsStage(**plan));
    const std::vector<Event> script = Script(*training.model, form.mode, &dice);
    const auto optimizer = Optimizer::Parse(training.optimizer);
    ASSERT_OK(optimizer);
    StepModel model(*training.model, optimizer->hypers(),
                    form.mode == Mode::kScaled);
    std::vector<Result> expected;
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
        kWorldSize,
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
  static std::vector<std::string> names;
  names.reserve(100);
  std::vector<Form> forms;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* link : {"", "direct=0"}) {
      for (int device = 0; device < 2; ++device) {
        for (const Mode mode : {Mode::kScaled, Mode::kPlain, Mode::kBegun}) {
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
