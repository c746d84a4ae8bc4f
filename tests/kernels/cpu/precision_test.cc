// SPDX-License-Identifier: Apache-2.0
//
// The fused step with parameters and gradients that are not fp32, with and
// without master weights. States: narrow_states_test.cc.

#include "tests/kernels/cpu/precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cpu/fused_step.h"
#include "kernels/formula/all.h"
#include "kernels/formula/scalars.h"
#include "tests/kernels/cpu/halves.h"
#include "tests/kernels/cpu/targets.h"
#include "tests/kernels/formula/reference.h"

namespace shard::precision_test {
namespace {

class PrecisionTest : public TargetsTest {};

// Compares each step on its own, from the kernel's values before it. States are
// fp32.
template <class F, template <class> class Rule>
void ExpectMatchesReference(Formula id, const Way& way) {
  const auto hypers = HypersOf<F>({{"lr", 0.1},
                                   {"weight_decay", 0.05},
                                   {"momentum", F::kNumStates > 0 ? 0.9 : 0.0},
                                   {"maximize", 1}});
  for (const size_t count : {67u, 1500u}) {
    Problem problem(way, count);
    for (int64_t step = 1; step <= 3; ++step) {
      std::vector<Tensor> sources = problem.Sources(step);
      std::vector<double> before;
      for (const float p :
           way.master ? problem.master : problem.param.values()) {
        before.push_back(static_cast<double>(p));
      }
      std::vector<std::vector<float>> states;
      for (const Tensor& state : problem.states) {
        states.push_back(state.values());
      }
      std::vector<std::vector<float>> gradients;
      for (const Tensor& source : sources) gradients.push_back(source.values());
      problem.Step(id, hypers, step, sources, 0, count);

      const auto scalars = F::Prepare(hypers.data(), step);
      const Rule<DoubleArithmetic> rule(DoubleArithmetic(), scalars);
      const std::vector<float> after = problem.param.values();
      std::vector<std::vector<float>> states_after;
      for (const Tensor& state : problem.states) {
        states_after.push_back(state.values());
      }
      for (size_t i = 0; i < count; ++i) {
        double g = 0;
        for (const auto& source : gradients)
          g += static_cast<double>(source[i]);
        g *= scalars.gradient_sign / static_cast<double>(sources.size());
        double p = before[i];
        double state[kMaxStates];
        for (size_t s = 0; s < kMaxStates; ++s) {
          state[s] = static_cast<double>(states[s][i]);
        }
        rule.Update(g, p, state);
        const double bound = 1e-5 * (1 + std::abs(p));
        // Half a unit in the last place, relative to p, is largest where p is a
        // power of two.
        double rounding = 0;
        if (way.param == DType::kBF16) rounding = std::ldexp(1.0, -8);
        if (way.param == DType::kF16) rounding = std::ldexp(1.0, -11);
        rounding *= std::abs(p) + 1e-4;
        ASSERT_NEAR(static_cast<double>(after[i]), p, bound + rounding)
            << "step " << step << ", element " << i << ": " << Describe(way);
        if (way.master) {
          ASSERT_NEAR(static_cast<double>(problem.master[i]), p, bound);
          if (way.param != DType::kF32) {
            ASSERT_EQ(
                static_cast<double>(after[i]),
                HalfToDouble(way.param,
                             HalfFromFloat(way.param, problem.master[i])));
          } else {
            ASSERT_EQ(after[i], problem.master[i]);
          }
        }
        for (size_t s = 0; s < static_cast<size_t>(F::kNumStates); ++s) {
          ASSERT_NEAR(static_cast<double>(states_after[s][i]), state[s],
                      1e-5 * (1 + std::abs(state[s])));
        }
      }
    }
  }
}

#define SHARD_MATCHES_DOUBLE(Name)                             \
  TEST_P(PrecisionTest, Name##MatchesDouble) {                 \
    for (const DType param : kDTypes) {                        \
      for (const DType gradient : kDTypes) {                   \
        for (const bool master : {false, true}) {              \
          for (size_t sources = 1; sources <= 4; ++sources) {  \
            Way way;                                           \
            way.param = param;                                 \
            way.gradient = gradient;                           \
            way.master = master;                               \
            way.num_sources = sources;                         \
            ExpectMatchesReference<Name, formula::Name##Rule>( \
                Formula::k##Name, way);                        \
            if (HasFatalFailure()) return;                     \
          }                                                    \
        }                                                      \
      }                                                        \
    }                                                          \
  }
SHARD_ELEMENT_FORMULAS(SHARD_MATCHES_DOUBLE)
#undef SHARD_MATCHES_DOUBLE

// A parameter that begins at a cache line is written past the caches; others,
// and the rest at the end, are not. Both write the same bits, and no byte more.
TEST_P(PrecisionTest, WritesMastersCopyAtAnyAlignment) {
  constexpr uint16_t kUntouched = 0xABCD;
  for (const size_t count : {1u, 31u, 32u, 256u, 333u, 1100u}) {
    for (const size_t offset : {0u, 1u, 32u}) {
      alignas(64) uint16_t line[1200];
      std::fill(std::begin(line), std::end(line), kUntouched);
      std::vector<float> master = Random(count, 1);
      const std::vector<float> gradient = Random(count, 2);
      const void* source = gradient.data();
      FusedStepArgs args;
      args.gradients = {&source, 1, DType::kF32};
      args.param = line + offset;
      args.param_dtype = DType::kBF16;
      args.master = master.data();
      args.count = count;
      FusedStep(Formula::kSgd,
                FormulaScalars(Formula::kSgd, HypersOf<Sgd>().data(), 1).data(),
                args);
      for (size_t i = 0; i < std::size(line); ++i) {
        const bool inside = i >= offset && i < offset + count;
        ASSERT_EQ(line[i], inside
                               ? HalfFromFloat(DType::kBF16, master[i - offset])
                               : kUntouched)
            << i << " of " << count << " from " << offset;
      }
    }
  }
}

TEST_P(PrecisionTest, ClipsByValue) {
  Way way;
  way.clip_value = 0.25;
  for (const DType gradient : kDTypes) {
    way.gradient = gradient;
    way.param = DType::kF32;
    Problem problem(way, 100);
    const std::vector<float> before = problem.param.values();
    std::vector<Tensor> sources = problem.Sources(1);
    const std::vector<float> g = sources[0].values();
    problem.Step(Formula::kSgd, HypersOf<Sgd>({{"lr", 1}}), 1, sources, 0, 100);
    const std::vector<float> after = problem.param.values();
    for (size_t i = 0; i < before.size(); ++i) {
      const float clipped = std::fmin(0.25f, std::fmax(-0.25f, g[i]));
      EXPECT_EQ(after[i], before[i] - clipped);
    }
  }
}

// Updates of a twentieth of a unit in the last place are lost by rounding to
// nearest, and kept on average by stochastic rounding.
TEST_P(PrecisionTest, StochasticParametersMove) {
  for (const bool stochastic : {false, true}) {
    Way way;
    way.param = DType::kBF16;
    way.stochastic = stochastic;
    constexpr size_t kCount = 4096;
    Problem problem(way, kCount);
    problem.param = Tensor(DType::kBF16, std::vector<float>(kCount, 1.0f));
    std::vector<Tensor> sources;
    sources.emplace_back(DType::kF32, std::vector<float>(kCount, -1.0f));
    constexpr int kSteps = 100;
    for (int64_t step = 1; step <= kSteps; ++step) {
      problem.Step(Formula::kSgd, HypersOf<Sgd>({{"lr", 1.0 / 128 / 20}}), step,
                   sources, 0, kCount);
    }
    double mean = 0;
    for (const float p : problem.param.values()) {
      mean += static_cast<double>(p) / kCount;
    }
    // The tolerance is five standard deviations of the mean of 4096 sums of 100
    // roundings.
    const double moved = kSteps / 128.0 / 20;
    EXPECT_NEAR(mean, stochastic ? 1 + moved : 1.0,
                5 * std::sqrt(kSteps * 0.05) / 128 / 64);
  }
}

SHARD_ON_ALL_TARGETS(PrecisionTest);

}  // namespace
}  // namespace shard::precision_test
