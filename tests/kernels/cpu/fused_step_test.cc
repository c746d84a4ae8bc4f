// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/fused_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/formula/all.h"
#include "kernels/formula/scalars.h"
#include "tests/core/base/sanitizers.h"
#include "tests/kernels/cpu/targets.h"
#include "tests/kernels/formula/reference.h"

namespace shard::fused_step_test {
namespace {

std::vector<float> Random(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

class FusedStepTest : public TargetsTest {};

template <class F, template <class> class Rule>
void ExpectMatchesReference(Formula id, const std::vector<double>& hypers) {
  // Odd sizes reach the tail loop; 1 source is the pre-reduced form.
  for (const size_t count : {1u, 15u, 16u, 67u, 1024u}) {
    for (const size_t num_sources : {1u, 2u, 5u}) {
      std::vector<float> param = Random(count, 1);
      Reference<F, Rule> reference(param, hypers);
      std::vector<std::vector<float>> states(kMaxStates,
                                             std::vector<float>(count));
      std::vector<void*> state_pointers;
      for (auto& state : states) state_pointers.push_back(state.data());
      for (int64_t step = 1; step <= 4; ++step) {
        std::vector<std::vector<float>> sources;
        std::vector<const void*> pointers;
        for (size_t w = 0; w < num_sources; ++w) {
          sources.push_back(
              Random(count, static_cast<uint32_t>(100 * step + w)));
        }
        for (const auto& source : sources) pointers.push_back(source.data());
        const double scale = 1.0 / static_cast<double>(num_sources);
        FusedStepArgs args;
        args.gradients = {pointers.data(), num_sources, DType::kF32};
        args.gradient_scale = scale;
        args.param = param.data();
        args.states = state_pointers.data();
        args.count = count;
        FusedStep(id, FormulaScalars(id, hypers.data(), step).data(), args);
        reference.Step(sources, scale, step);
      }
      for (size_t i = 0; i < count; ++i) {
        const double expected = reference.param()[i];
        ASSERT_NEAR(static_cast<double>(param[i]), expected,
                    1e-5 * (1 + std::abs(expected)))
            << "element " << i << " of " << count << ", " << num_sources
            << " sources, " << KernelTargetName();
        for (int s = 0; s < F::kNumStates; ++s) {
          const double state = reference.state(i, s);
          ASSERT_NEAR(static_cast<double>(states[static_cast<size_t>(s)][i]),
                      state, 1e-5 * (1 + std::abs(state)));
        }
      }
    }
  }
}

// Returns values other than the defaults, for which F is the form that serves.
template <class F>
std::vector<double> UnusualHypers(double maximize) {
  for (const double momentum : {0.0, 0.9}) {
    for (const double flag : {0.0, 1.0}) {
      for (double profile = 0; profile < std::size(AdamMoments::kProfiles);
           ++profile) {
        const auto hypers = HypersOf<F>({{"lr", 0.1},
                                         {"beta1", 0.8},
                                         {"beta2", 0.97},
                                         {"eps", 1e-6},
                                         {"weight_decay", 0.05},
                                         {"amsgrad", flag},
                                         {"maximize", maximize},
                                         {"profile", profile},
                                         {"lr_decay", 0.1},
                                         {"initial_accumulator_value", 0.1},
                                         {"alpha", 0.9},
                                         {"momentum", momentum},
                                         {"centered", flag},
                                         {"dampening", 0.3},
                                         {"rho", 0.8},
                                         // The step size reaches both bounds.
                                         {"step_size_min", 0.03},
                                         {"step_size_max", 0.13}});
        if (F::IsFor(hypers.data())) return hypers;
      }
    }
  }
  return {};
}

// Defines a test for each formula of the registry, a new one included.
#define SHARD_MATCHES_DOUBLE(Name)                                        \
  TEST_P(FusedStepTest, Name##MatchesDouble) {                            \
    for (const double maximize : {0.0, 1.0}) {                            \
      const auto hypers = UnusualHypers<Name>(maximize);                  \
      ASSERT_FALSE(hypers.empty());                                       \
      ExpectMatchesReference<Name, formula::Name##Rule>(Formula::k##Name, \
                                                        hypers);          \
    }                                                                     \
  }
SHARD_ELEMENT_FORMULAS(SHARD_MATCHES_DOUBLE)
#undef SHARD_MATCHES_DOUBLE

TEST_P(FusedStepTest, SgdNesterovMatchesDouble) {
  ExpectMatchesReference<SgdMomentum, formula::SgdMomentumRule>(
      Formula::kSgdMomentum, {0.1, 0.9, 0, 0.01, 1, 0});
}

// Expects padding, which is zero everywhere, to stay zero and not become NaN:
// it is summed, cast and sent like the rest.
void ExpectZerosStayZero(Formula id, const std::vector<double>& hypers) {
  constexpr size_t kCount = 67;
  const std::vector<float> gradient(kCount);
  const void* source = gradient.data();
  std::vector<float> param(kCount);
  std::vector<std::vector<float>> states(kMaxStates,
                                         std::vector<float>(kCount));
  std::vector<void*> pointers;
  for (auto& state : states) pointers.push_back(state.data());
  FusedStepArgs args;
  args.gradients = {&source, 1, DType::kF32};
  args.gradient_scale = 0.5;
  args.param = param.data();
  args.states = pointers.data();
  args.count = kCount;
  for (int64_t step = 1; step <= 20; ++step) {
    FusedStep(id, FormulaScalars(id, hypers.data(), step).data(), args);
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(param[i], 0) << "step " << step << ", element " << i;
      for (const auto& state : states) ASSERT_TRUE(std::isfinite(state[i]));
    }
  }
}

TEST_P(FusedStepTest, ZerosStayZero){
#define SHARD_ZEROS_STAY_ZERO(Name)                                          \
  {                                                                          \
    SCOPED_TRACE(#Name);                                                     \
    ExpectZerosStayZero(Formula::k##Name, HypersOf<Name>());                 \
    ExpectZerosStayZero(Formula::k##Name,                                    \
                        HypersOf<Name>({{"maximize", 1},                     \
                                        {"weight_decay", 0.1},               \
                                        {"initial_accumulator_value", 1}})); \
  }
    SHARD_ELEMENT_FORMULAS(SHARD_ZEROS_STAY_ZERO)
#undef SHARD_ZEROS_STAY_ZERO
}

// A constant gradient has no variance; rounding must not make it negative.
TEST_P(FusedStepTest, RmsPropCenteredStaysFinite) {
  const auto hypers = HypersOf<RmsPropCentered>({{"alpha", 0.5}});
  const std::vector<float> gradient = Random(1024, 7);
  const void* source = gradient.data();
  std::vector<float> param(gradient.size());
  std::vector<float> square_avg(gradient.size());
  std::vector<float> grad_avg(gradient.size());
  void* const states[] = {square_avg.data(), grad_avg.data()};
  FusedStepArgs args;
  args.gradients = {&source, 1, DType::kF32};
  args.param = param.data();
  args.states = states;
  args.count = param.size();
  size_t negative = 0;
  for (int64_t step = 1; step <= 60; ++step) {
    FusedStep(
        Formula::kRmsPropCentered,
        FormulaScalars(Formula::kRmsPropCentered, hypers.data(), step).data(),
        args);
    for (size_t i = 0; i < param.size(); ++i) {
      ASSERT_TRUE(std::isfinite(param[i])) << "step " << step << ", " << i;
      if (square_avg[i] - grad_avg[i] * grad_avg[i] < 0) ++negative;
    }
  }
  EXPECT_GT(negative, 0u) << "the case this test is about did not occur";
}

SHARD_ON_ALL_TARGETS(FusedStepTest);

TEST(KernelTargetTest, SeveralTargetsWereTested) {
  // Any processor of the last decade has AVX2 and the sets before it. Under
  // sanitizers AVX2 alone is compiled.
  EXPECT_GE(Targets().size(), kSanitized ? 1u : 2u);
}

}  // namespace
}  // namespace shard::fused_step_test
