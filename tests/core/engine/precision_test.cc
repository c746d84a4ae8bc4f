// SPDX-License-Identifier: Apache-2.0
//
// Parameters in bf16 and f16, with master weights and without. Runs are
// compared with references in double, in which every rounding of a dtype is
// written out, and with runs in fp32.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/optim/optimizer.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/states.h"
#include "tests/core/engine/training.h"
#include "tests/kernels/cpu/halves.h"
#include "tests/kernels/formula/reference.h"

namespace shard::precision_test {
namespace {

using Values = std::vector<std::vector<float>>;  // By ParamId.

const std::vector<std::vector<int64_t>> kShapes = {
    {9, 30}, {5}, {}, {0, 4}, {300}};

double RoundTo(DType dtype, float value) {
  if (dtype == DType::kF32) return static_cast<double>(value);
  return HalfToDouble(dtype, HalfFromFloat(dtype, value));
}

// Returns the distance from the greatest number of `dtype` that is at most
// |value| to the next number.
double UnitInTheLastPlace(DType dtype, double value) {
  const auto magnitude = static_cast<float>(std::abs(value));
  uint16_t bits = HalfFromFloat(dtype, magnitude);
  if (HalfToDouble(dtype, bits) > std::abs(value)) --bits;
  return HalfToDouble(dtype, static_cast<uint16_t>(bits + 1)) -
         HalfToDouble(dtype, bits);
}

// The parameters and master weights after each step.
struct Trace {
  std::vector<Values> params;
  std::vector<StateValues> masters;
};

Trace Record(Training training) {
  Trace trace;
  for (int step = 0; step < training.steps; ++step) {
    Values values;
    for (const auto& param : training.model->params()) {
      values.emplace_back(static_cast<size_t>(param.numel));
    }
    trace.params.push_back(values);
    trace.masters.push_back(values);
  }
  training.after_step = [&](Engine* engine, int step) {
    const auto index = static_cast<size_t>(step - 1);
    CopyState(*engine, kMasterState, &trace.masters[index]);
    if (engine->comm()->rank() != 0) return;
    for (size_t p = 0; p < trace.params[index].size(); ++p) {
      const auto tensor = engine->Param(static_cast<ParamId>(p));
      trace.params[index][p] =
          Load(training.model->params()[p].dtype, tensor->data, tensor->numel);
    }
  };
  Train(training);
  return trace;
}

struct Case {
  DType dtype;
  Masters masters;
  bool f32_grads;
  bool clipped;
  int world_size;
};

// An optimizer in double for the whole model. After each step its parameters
// are set to the library's, so that each step is compared on its own.
template <class F, template <class> class Rule>
class InDouble {
 public:
  InDouble(const Training& training, const Case& c)
      : training_(training), case_(c) {
    for (size_t p = 0; p < kShapes.size(); ++p) {
      params_.emplace_back();
      for (const float value : InitialValues(training, p)) {
        params_[p].push_back({RoundTo(c.dtype, value), {}});
      }
    }
  }

  // Returns the norm of the mean of the ranks' gradients.
  double Step(int step) {
    const std::vector<std::vector<double>> gradients = Gradients(step);
    double squares = 0;
    for (const auto& gradient : gradients) {
      for (const double g : gradient) squares += g * g;
    }
    const double norm = std::sqrt(squares);
    const double most = training_.step.max_grad_norm;
    const double scale = most > 0 ? std::min(1.0, most / (norm + 1e-6)) : 1;
    const auto hypers = Optimizer::Parse(training_.optimizer)->hypers();
    const auto scalars = F::Prepare(hypers.data(), step);
    const Rule<DoubleArithmetic> rule(DoubleArithmetic(), scalars);
    for (size_t p = 0; p < params_.size(); ++p) {
      for (size_t i = 0; i < params_[p].size(); ++i) {
        Element& e = params_[p][i];
        rule.Update(gradients[p][i] * scale, e.param, e.states);
      }
    }
    return norm;
  }

  double& param(size_t p, size_t i) { return params_[p][i].param; }

 private:
  struct Element {
    double param;
    double states[kMaxStates];
  };

  // Returns the mean of the ranks' gradients. Each rank's gradient is rounded,
  // their sum is not.
  std::vector<std::vector<double>> Gradients(int step) const {
    const DType dtype = case_.f32_grads ? DType::kF32 : case_.dtype;
    std::vector<std::vector<double>> mean;
    for (const auto& elements : params_) mean.emplace_back(elements.size());
    for (int rank = 0; rank < case_.world_size; ++rank) {
      for (size_t p = 0; p < mean.size(); ++p) {
        const auto values = GradientValues(training_, rank, step, p);
        for (size_t i = 0; i < values.size(); ++i) {
          mean[p][i] += RoundTo(dtype, values[i]) / case_.world_size;
        }
      }
    }
    return mean;
  }

  const Training& training_;
  const Case case_;
  std::vector<std::vector<Element>> params_;
};

class EnginePrecisionTest : public ::testing::TestWithParam<Case> {};

template <class F, template <class> class Rule>
void ExpectMatchesDouble(const Case& c, const char* optimizer) {
  Training training;
  training.model = ModelOf(kShapes, c.dtype);
  training.optimizer = optimizer;
  training.plan.world_size = c.world_size;
  training.plan.f32_grads = c.f32_grads;
  training.plan.masters = c.masters;
  training.step.max_grad_norm = c.clipped ? 0.5 : 0;
  training.all_ranks = true;
  const Trace trace = Record(training);

  InDouble<F, Rule> reference(training, c);
  for (int step = 1; step <= training.steps; ++step) {
    const double norm = reference.Step(step);
    // The norm is large enough for clipping to change the gradients.
    ASSERT_GT(norm, 1);
    const auto index = static_cast<size_t>(step - 1);
    for (size_t p = 0; p < kShapes.size(); ++p) {
      const std::vector<float>& after = trace.params[index][p];
      for (size_t i = 0; i < after.size(); ++i) {
        const auto got = static_cast<double>(after[i]);
        double& expected = reference.param(p, i);
        const double bound = 1e-6 * (1 + std::abs(expected));
        if (c.masters == Masters::kF32) {
          const float master = trace.masters[index][p][i];
          ASSERT_NEAR(static_cast<double>(master), expected, bound)
              << "step " << step << ", element " << i << " of p" << p;
          ASSERT_EQ(got, RoundTo(c.dtype, master));
          expected = static_cast<double>(master);
        } else {
          ASSERT_NEAR(got, expected,
                      bound + UnitInTheLastPlace(c.dtype, expected) / 2)
              << "step " << step << ", element " << i << " of p" << p;
          expected = got;
        }
      }
    }
  }
}

TEST_P(EnginePrecisionTest, AdamWMatchesDouble) {
  ExpectMatchesDouble<AdamW, formula::AdamWRule>(
      GetParam(), "adamw?lr=0.02&beta1=0.8&beta2=0.95&weight_decay=0.1");
}

// SGD's steps, unlike AdamW's, are proportional to the gradient.
TEST_P(EnginePrecisionTest, SgdMatchesDouble) {
  ExpectMatchesDouble<SgdMomentum, formula::SgdMomentumRule>(
      GetParam(), "sgd?lr=0.02&momentum=0.8&weight_decay=0.1");
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const Masters masters : {Masters::kF32, Masters::kNoneNearest}) {
      for (const bool f32_grads : {false, true}) {
        for (const bool clipped : {false, true}) {
          for (const int world_size : {1, 2, 3}) {
            cases.push_back({dtype, masters, f32_grads, clipped, world_size});
          }
        }
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, EnginePrecisionTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           const Case& c = info.param;
                           return StrCat(
                               DTypeName(c.dtype),
                               c.masters == Masters::kF32 ? "_masters"
                                                          : "_nearest",
                               c.f32_grads ? "_f32_grads" : "",
                               c.clipped ? "_clipped" : "", "_W", c.world_size);
                         });

// Returns shapes for the optimizer; Muon takes only matrices.
std::vector<std::vector<int64_t>> ShapesFor(const std::string& optimizer) {
  if (optimizer.substr(0, 4) == "muon") return {{9, 30}, {12, 7}, {9, 30}};
  return kShapes;
}

// Returns the parameters after a training in fp32: on processors where the
// tests have ranks on GPUs, but for Muon, whose matrices GPUs multiply in
// another order.
Values TrainWide(Training training) {
  training.model = ModelOf(ShapesFor(training.optimizer));
  training.on_processors = testing::TestsAreOn("fake_nccl") &&
                           training.optimizer.substr(0, 4) != "muon";
  return Train(training);
}

class NarrowParamsTest : public ::testing::TestWithParam<const char*> {};

// The gradients lose nothing by being stored, so that the masters are the
// parameters of the run in fp32.
TEST_P(NarrowParamsTest, MastersAreTheRunInFp32) {
  Training training;
  training.optimizer = GetParam();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int world_size : {1, 2, 3}) {
      for (const double max_grad_norm : {0.0, 0.5}) {
        // Under a sanitizer, each number of ranks clips in one of the dtypes.
        if (kSanitized && (dtype == DType::kBF16) ==
                              ((world_size % 2 == 0) == (max_grad_norm > 0))) {
          continue;
        }
        training.values = dtype;
        training.plan.world_size = world_size;
        training.step.max_grad_norm = max_grad_norm;
        const Values wide = TrainWide(training);
        training.model = ModelOf(ShapesFor(training.optimizer), dtype);
        const Trace trace = Record(training);
        ASSERT_EQ(trace.masters.back(), wide)
            << DTypeName(dtype) << ", " << world_size << " ranks, norm "
            << max_grad_norm;
        for (size_t p = 0; p < wide.size(); ++p) {
          EXPECT_EQ(trace.params.back()[p], Rounded(dtype, wide[p]));
        }
      }
    }
  }
}

// Each element is rounded to one of its neighbours, and rounded up with a
// probability of its distance from the lower one in units in the last place.
// The sum over elements of the squared deviations, each in units of its
// variance, has the mean n and the standard deviation sqrt(2 n).
TEST_P(NarrowParamsTest, StochasticRoundingIsUnbiased) {
  constexpr int kSeeds = 32;
  Training training;
  training.optimizer = GetParam();
  training.values = DType::kBF16;
  training.steps = 1;
  for (const int world_size : {1, 2, 3}) {
    // Chances are no question of memory or threads.
    if (kSanitized && world_size != 2) continue;
    training.plan.world_size = world_size;
    training.step.max_grad_norm = world_size == 2 ? 0.5 : 0;
    const Values exact = TrainWide(training);
    training.model = ModelOf(ShapesFor(training.optimizer), DType::kBF16);
    training.plan.masters = Masters::kNoneStochastic;

    Values ups;
    for (const auto& values : exact) ups.emplace_back(values.size());
    for (int seed = 1; seed <= kSeeds; ++seed) {
      training.plan.seed = static_cast<uint64_t>(seed);
      const Values rounded = Train(training);
      for (size_t p = 0; p < exact.size(); ++p) {
        for (size_t i = 0; i < exact[p].size(); ++i) {
          const auto x = static_cast<double>(exact[p][i]);
          const auto y = static_cast<double>(rounded[p][i]);
          ASSERT_LT(std::abs(y - x), UnitInTheLastPlace(DType::kBF16, x));
          ups[p][i] += y > x ? 1.0f : 0.0f;
        }
      }
    }
    double deviations = 0;
    double count = 0;
    for (size_t p = 0; p < exact.size(); ++p) {
      for (size_t i = 0; i < exact[p].size(); ++i) {
        const auto x = static_cast<double>(exact[p][i]);
        const double unit = UnitInTheLastPlace(DType::kBF16, x);
        const double chance = x / unit - std::floor(x / unit);
        if (chance < 0.1 || chance > 0.9) continue;
        const double off = static_cast<double>(ups[p][i]) - kSeeds * chance;
        deviations += off * off / (kSeeds * chance * (1 - chance));
        ++count;
      }
    }
    ASSERT_GT(count, 200);
    EXPECT_NEAR(deviations / count, 1, 5 * std::sqrt(2 / count))
        << world_size << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, NarrowParamsTest,
                         ::testing::Values("sgd?lr=1&momentum=0.9",
                                           "adamw?lr=0.01",
                                           "adamw?lr=0.01&states=q8",
                                           "lamb?lr=0.01", "adafactor?lr=0.01",
                                           "muon?lr=0.01"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) {
                             if (std::isalnum(c) == 0) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace shard::precision_test
