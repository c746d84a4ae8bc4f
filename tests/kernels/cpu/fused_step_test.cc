// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/fused_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

// Before Highway, so that the rules below are the plain ones.
#include "kernels/formula/all.h"

#include <hwy/targets.h>

namespace shard {
namespace {

struct DoubleArithmetic {
  using V = double;
  V Set(double x) const { return x; }
  V Add(V x, V y) const { return x + y; }
  V Sub(V x, V y) const { return x - y; }
  V Mul(V x, V y) const { return x * y; }
  V Div(V x, V y) const { return x / y; }
  V MulAdd(V x, V y, V z) const { return x * y + z; }
  V Sqrt(V x) const { return std::sqrt(x); }
};

// The formula in double, element by element.
template <class F, template <class> class Rule>
class Reference {
 public:
  Reference(std::vector<float> param, std::vector<double> hypers)
      : param_(param.begin(), param.end()),
        states_(param.size(), std::vector<double>(kMaxStates)),
        hypers_(std::move(hypers)) {}

  void Step(const std::vector<std::vector<float>>& sources, double scale,
            int64_t step) {
    const auto scalars = F::Prepare(hypers_.data(), step);
    const Rule<DoubleArithmetic> rule(DoubleArithmetic(), scalars);
    for (size_t i = 0; i < param_.size(); ++i) {
      double g = 0;
      for (const auto& source : sources) g += static_cast<double>(source[i]);
      rule.Update(g * scale * scalars.gradient_sign, param_[i],
                  states_[i].data());
    }
  }

  const std::vector<double>& param() const { return param_; }
  double state(size_t i, int s) const {
    return states_[i][static_cast<size_t>(s)];
  }

 private:
  std::vector<double> param_;
  std::vector<std::vector<double>> states_;
  std::vector<double> hypers_;
};

std::vector<float> Random(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// Each instruction set this machine has, one by one.
class FusedStepTest : public testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

template <class F, template <class> class Rule>
void ExpectMatchesReference(Formula id, const std::vector<double>& hypers) {
  // Odd sizes reach the tail loop; 1 source is the pre-reduced form.
  for (const size_t count : {1u, 15u, 16u, 67u, 1024u}) {
    for (const size_t num_sources : {1u, 2u, 5u}) {
      std::vector<float> param = Random(count, 1);
      Reference<F, Rule> reference(param, hypers);
      std::vector<std::vector<float>> states(kMaxStates,
                                             std::vector<float>(count));
      std::vector<float*> state_pointers;
      for (auto& state : states) state_pointers.push_back(state.data());
      for (int64_t step = 1; step <= 4; ++step) {
        std::vector<std::vector<float>> sources;
        std::vector<const float*> pointers;
        for (size_t w = 0; w < num_sources; ++w) {
          sources.push_back(
              Random(count, static_cast<uint32_t>(100 * step + w)));
        }
        for (const auto& source : sources) pointers.push_back(source.data());
        const double scale = 1.0 / static_cast<double>(num_sources);
        FusedStepArgs args;
        args.sources = pointers.data();
        args.num_sources = num_sources;
        args.gradient_scale = scale;
        args.param = param.data();
        args.states = state_pointers.data();
        args.count = count;
        FusedStep(id, hypers.data(), step, args);
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

TEST_P(FusedStepTest, AdamWMatchesDouble) {
  ExpectMatchesReference<AdamW, formula::AdamWRule>(
      Formula::kAdamW, {0.1, 0.9, 0.99, 1e-8, 0.05, 0});
}

TEST_P(FusedStepTest, AdamWMaximizeMatchesDouble) {
  ExpectMatchesReference<AdamW, formula::AdamWRule>(
      Formula::kAdamW, {0.1, 0.8, 0.999, 1e-6, 0, 1});
}

TEST_P(FusedStepTest, SgdMatchesDouble) {
  ExpectMatchesReference<Sgd, formula::SgdRule>(Formula::kSgd,
                                                {0.1, 0, 0, 0.01, 0, 0});
}

TEST_P(FusedStepTest, SgdMomentumMatchesDouble) {
  ExpectMatchesReference<SgdMomentum, formula::SgdMomentumRule>(
      Formula::kSgdMomentum, {0.1, 0.9, 0.3, 0.01, 0, 0});
}

TEST_P(FusedStepTest, SgdNesterovMatchesDouble) {
  ExpectMatchesReference<SgdMomentum, formula::SgdMomentumRule>(
      Formula::kSgdMomentum, {0.1, 0.9, 0, 0.01, 1, 0});
}

TEST_P(FusedStepTest, ReduceSquaresSumsInSourceOrder) {
  for (const size_t count : {1u, 16u, 67u, 4096u}) {
    std::vector<std::vector<float>> sources = {
        Random(count, 1), Random(count, 2), Random(count, 3)};
    const std::vector<std::vector<float>> original = sources;
    std::vector<const float*> pointers;
    for (const auto& source : sources) pointers.push_back(source.data());
    // In place, as the engine does it.
    const double squares =
        ReduceSquares(pointers.data(), 3, sources[1].data(), count);
    double expected = 0;
    for (size_t i = 0; i < count; ++i) {
      const float sum = (original[0][i] + original[1][i]) + original[2][i];
      ASSERT_EQ(sources[1][i], sum) << i;
      expected += static_cast<double>(sum) * static_cast<double>(sum);
    }
    EXPECT_NEAR(squares, expected, 1e-12 * expected);
  }
}

TEST_P(FusedStepTest, ReduceSquaresShowsWhatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t where : {0u, 17u, 66u}) {
      std::vector<float> values(67, 1.0f);
      values[where] = bad;
      const float* source = values.data();
      std::vector<float> sum(67);
      EXPECT_FALSE(std::isfinite(ReduceSquares(&source, 1, sum.data(), 67)));
    }
  }
}

// The largest finite floats have finite squares in double.
TEST_P(FusedStepTest, ReduceSquaresDoesNotOverflow) {
  const std::vector<float> values(64, std::numeric_limits<float>::max());
  const float* source = values.data();
  std::vector<float> sum(64);
  EXPECT_TRUE(std::isfinite(ReduceSquares(&source, 1, sum.data(), 64)));
}

std::vector<uint32_t> Targets() {
  std::vector<uint32_t> targets;
  const auto supported = static_cast<uint32_t>(hwy::SupportedTargets());
  for (uint32_t bit = 1; bit != 0; bit <<= 1) {
    // Only what the kernel was compiled for can be forced.
    hwy::SetSupportedTargetsForTest(bit);
    if ((supported & bit) != 0 &&
        std::string(KernelTargetName()) ==
            hwy::TargetName(static_cast<int>(bit))) {
      targets.push_back(bit);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  return targets;
}

INSTANTIATE_TEST_SUITE_P(AllTargets, FusedStepTest,
                         testing::ValuesIn(Targets()), [](const auto& info) {
                           return std::string(
                               hwy::TargetName(static_cast<int>(info.param)));
                         });

TEST(KernelTargetTest, SeveralTargetsWereTested) {
  // The baseline at least, and on any processor of the last decade AVX2.
  EXPECT_GE(Targets().size(), 2u);
}

}  // namespace
}  // namespace shard
