// SPDX-License-Identifier: Apache-2.0
//
// The fused step of AdamW with parameters, gradients and states in every
// precision: which inputs the results depend on, and whether it still learns.

#include "kernels/formula/narrow_states.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/fused_step.h"
#include "kernels/cpu/q8.h"
#include "kernels/cpu/random.h"
#include "kernels/formula/all.h"
#include "tests/core/base/sanitizers.h"
#include "tests/kernels/cpu/precision.h"
#include "tests/kernels/cpu/targets.h"
#include "tests/kernels/formula/reference.h"

namespace shard::narrow_states_test {
namespace {

class NarrowStatesTest : public TargetsTest {};

Problem AfterThreeSteps(const Way& way, size_t count,
                        const std::vector<size_t>& ends) {
  Problem problem(way, count);
  for (int64_t step = 1; step <= 3; ++step) {
    std::vector<Tensor> sources = problem.Sources(step);
    size_t begin = 0;
    for (const size_t end : ends) {
      problem.Step(Formula::kAdamWAmsgrad, HypersOf<AdamW>(), step, sources,
                   begin, end - begin);
      begin = end;
    }
  }
  return problem;
}

// A call on all elements and calls on parts have the same result, to the bit.
TEST_P(NarrowStatesTest, SplitCallsAreOneCall) {
  constexpr size_t kCount = 4001;
  for (Way way : AllWays()) {
    SCOPED_TRACE(Describe(way));
    if (way.state == DType::kQ8) {
      way.first_element = 768;
      EXPECT_EQ(AfterThreeSteps(way, kCount, {kCount}),
                AfterThreeSteps(way, kCount, {256, 256, 1792, kCount}));
    } else {
      way.first_element = 1001;
      EXPECT_EQ(AfterThreeSteps(way, kCount, {kCount}),
                AfterThreeSteps(way, kCount, {1, 24, 1333, 1333, kCount}));
    }
  }
}

// The seed matters where something is rounded stochastically, and only there.
TEST_P(NarrowStatesTest, RandomBitsAreUsedWhereTheHeaderSays) {
  for (Way way : AllWays()) {
    SCOPED_TRACE(Describe(way));
    const Problem one = AfterThreeSteps(way, 1000, {1000});
    way.seed = 2;
    const Problem two = AfterThreeSteps(way, 1000, {1000});
    const bool narrow = way.state != DType::kF32;
    EXPECT_EQ(one == two, !narrow && !way.stochastic);
    EXPECT_EQ(one.states[0] == two.states[0], !narrow);
  }
}

// Each element is rounded with the bits of the call's stream, each state with
// its own.
TEST_P(NarrowStatesTest, EachTensorHasItsOwnRandomBits) {
  constexpr size_t kCount = 1100;
  const RandomStream random = {1, 1, 3, 512};
  Way way;
  way.first_element = random.first_element;
  // With betas of 0 the states are the gradient and its square.
  const auto hypers = HypersOf<AdamW>({{"beta1", 0}, {"beta2", 0}});
  for (const DType state : {DType::kBF16, DType::kQ8}) {
    way.state = state;
    Problem problem(way, kCount);
    std::vector<Tensor> sources = problem.Sources(1);
    problem.Step(Formula::kAdamW, hypers, 1, sources, 0, kCount);
    std::vector<float> expected = sources[0].values();
    for (int s = 0; s < 2; ++s) {
      Tensor tensor(state, kCount);
      if (state == DType::kQ8) {
        EncodeQ8(AdamW::kStateKinds[s], expected.data(), kCount, &random,
                 TensorOfState(s), static_cast<uint8_t*>(tensor.data()),
                 tensor.scales());
      } else {
        std::vector<uint16_t> bits;
        for (int64_t b = 0; b * 256 < static_cast<int64_t>(kCount); ++b) {
          RandomStream block = random;
          block.first_element += 256 * b;
          bits.resize(bits.size() + 256);
          RandomBits(block, TensorOfState(s), bits.data() + 256 * b);
        }
        for (size_t i = 0; i < kCount; ++i) {
          static_cast<uint16_t*>(tensor.data())[i] = static_cast<uint16_t>(
              (std::bit_cast<uint32_t>(expected[i]) + bits[i]) >> 16);
        }
      }
      EXPECT_EQ(problem.states[static_cast<size_t>(s)], tensor)
          << DTypeName(state) << ", state " << s;
      for (float& g : expected) g *= g;
    }
  }
  way = {};
  way.first_element = random.first_element;
  way.param = DType::kBF16;
  way.stochastic = true;
  Problem problem(way, kCount);
  std::vector<float> expected = problem.param.values();
  std::vector<Tensor> sources = problem.Sources(1);
  problem.Step(Formula::kSgd, HypersOf<Sgd>({{"lr", 1}}), 1, sources, 0,
               kCount);
  const std::vector<float> g = sources[0].values();
  for (size_t i = 0; i < kCount; ++i) expected[i] -= g[i];
  Tensor tensor(DType::kBF16, kCount);
  Narrow(DType::kBF16, expected.data(), tensor.data(), kCount, &random);
  EXPECT_EQ(problem.param, tensor);
}

// The maximum of amsgrad takes no random bits: it would keep every rounding
// upwards. So it is the fp32 maximum rounded to nearest, whatever the seed is,
// and smaller gradients leave it as it is.
TEST_P(NarrowStatesTest, MaximaAreRoundedToNearest) {
  constexpr size_t kCount = 1100;
  const auto hypers = HypersOf<AdamW>({{"beta1", 0}, {"beta2", 0}});
  for (const DType state : {DType::kBF16, DType::kQ8}) {
    for (const uint64_t seed : {1, 2, 3}) {
      Way way;
      way.state = state;
      way.seed = seed;
      Problem problem(way, kCount);
      std::vector<Tensor> sources = problem.Sources(1);
      problem.Step(Formula::kAdamWAmsgrad, hypers, 1, sources, 0, kCount);
      std::vector<float> g = sources[0].values();
      std::vector<float> squares = g;
      for (float& square : squares) square *= square;
      Tensor maxima(state, kCount);
      if (state == DType::kQ8) {
        EncodeQ8(StateKind::kSquareMaximum, squares.data(), kCount, nullptr,
                 TensorOfState(2), static_cast<uint8_t*>(maxima.data()),
                 maxima.scales());
      } else {
        Narrow(DType::kBF16, squares.data(), maxima.data(), kCount, nullptr);
      }
      EXPECT_EQ(problem.states[2], maxima) << DTypeName(state) << seed;
      EXPECT_FALSE(problem.states[1] == maxima) << DTypeName(state) << seed;

      for (float& element : g) element /= 4;
      std::vector<Tensor> smaller;
      smaller.emplace_back(DType::kF32, g);
      problem.Step(Formula::kAdamWAmsgrad, hypers, 2, smaller, 0, kCount);
      EXPECT_EQ(problem.states[2], maxima) << DTypeName(state) << seed;
    }
  }
}

// Gradients become small: with beta2 = 0.999 their average shrinks by a
// thousandth in a step, which rounding to nearest would lose. One element of
// each block goes on as before, so that the scale of the block does not shrink
// with the others.
TEST_P(NarrowStatesTest, SlowAveragesDoNotFreeze) {
  constexpr size_t kCount = 2048;
  for (const DType state : {DType::kBF16, DType::kQ8}) {
    Way way;
    way.state = state;
    Problem narrow(way, kCount);
    way.state = DType::kF32;
    Problem wide(way, kCount);
    for (int64_t step = 1; step <= 1800; ++step) {
      std::vector<float> g(kCount, step <= 300 ? 1.0f : 0.1f);
      for (size_t i = 0; i < kCount; i += 256) g[i] = 1;
      std::vector<Tensor> sources;
      sources.emplace_back(DType::kF32, g);
      const auto hypers = HypersOf<AdamW>();
      narrow.Step(Formula::kAdamW, hypers, step, sources, 0, kCount);
      wide.Step(Formula::kAdamW, hypers, step, sources, 0, kCount);
    }
    Tensor& squares = narrow.states[1];
    std::vector<float> v(kCount);
    if (state == DType::kQ8) {
      DecodeQ8(StateKind::kSquareAverage,
               static_cast<const uint8_t*>(squares.data()), squares.scales(),
               v.data(), kCount);
    } else {
      v = squares.values();
    }
    const std::vector<float> expected = wide.states[1].values();
    double ratio = 0;
    for (size_t i = 0; i < kCount; ++i) {
      ratio += static_cast<double>(v[i] / expected[i]) / kCount;
    }
    EXPECT_NEAR(ratio, 1, 0.03) << DTypeName(state);
  }
}

// Returns the loss of a logistic regression of 512 weights on 2000 examples,
// after training on batches of 100.
double LogisticLoss(DType state, Formula formula) {
  constexpr size_t kWeights = 512;
  constexpr size_t kExamples = 2000;
  constexpr size_t kBatch = 100;
  const std::vector<float> truth = Random(kWeights, 5);
  const std::vector<float> inputs = Random(kWeights * kExamples, 6);
  const auto dot = [&](const std::vector<float>& w, size_t example) {
    double sum = 0;
    for (size_t i = 0; i < kWeights; ++i) {
      sum += static_cast<double>(w[i]) *
             static_cast<double>(inputs[example * kWeights + i]);
    }
    return sum / std::sqrt(static_cast<double>(kWeights));
  };
  std::vector<double> labels;
  for (size_t e = 0; e < kExamples; ++e) {
    labels.push_back(dot(truth, e) > 0 ? 1 : 0);
  }
  Way way;
  way.state = state;
  Problem problem(way, kWeights);
  problem.param = Tensor(DType::kF32, std::vector<float>(kWeights, 0.0f));
  const auto hypers = HypersOf<AdamW>({{"lr", 0.02}, {"weight_decay", 0.01}});
  for (int64_t step = 1; step <= 200; ++step) {
    const std::vector<float> weights = problem.param.values();
    std::vector<float> g(kWeights);
    for (size_t b = 0; b < kBatch; ++b) {
      const size_t e = (static_cast<size_t>(step) * kBatch + b) % kExamples;
      const double error = 1 / (1 + std::exp(-dot(weights, e))) - labels[e];
      for (size_t i = 0; i < kWeights; ++i) {
        g[i] += static_cast<float>(error) * inputs[e * kWeights + i] / kBatch;
      }
    }
    std::vector<Tensor> sources;
    sources.emplace_back(DType::kF32, g);
    problem.Step(formula, hypers, step, sources, 0, kWeights);
  }
  double loss = 0;
  const std::vector<float> weights = problem.param.values();
  for (size_t e = 0; e < kExamples; ++e) {
    const double z = dot(weights, e);
    loss += std::log1p(std::exp(labels[e] > 0 ? -z : z)) / kExamples;
  }
  return loss;
}

TEST(NarrowStatesConvergenceTest, NarrowStatesLearnAsWell) {
  if (kSanitized) GTEST_SKIP() << "what it learns is no question of memory";
  for (const Formula formula : {Formula::kAdamW, Formula::kAdamWAmsgrad}) {
    const double wide = LogisticLoss(DType::kF32, formula);
    EXPECT_LT(wide, 0.45);  // It began at 0.69.
    EXPECT_NEAR(LogisticLoss(DType::kBF16, formula), wide, 0.01 * wide);
    EXPECT_NEAR(LogisticLoss(DType::kQ8, formula), wide, 0.03 * wide);
  }
}

TEST_P(NarrowStatesTest, ZerosStayZero) {
  for (const Way& way : AllWays()) {
    SCOPED_TRACE(Describe(way));
    Problem problem(way, 333);
    problem.param = Tensor(way.param, std::vector<float>(333, 0.0f));
    problem.master.assign(problem.master.size(), 0.0f);
    std::vector<Tensor> sources;
    sources.emplace_back(way.gradient, std::vector<float>(333, 0.0f));
    for (int64_t step = 1; step <= 5; ++step) {
      problem.Step(Formula::kAdamW, HypersOf<AdamW>(), step, sources, 0, 333);
    }
    EXPECT_EQ(problem.param.values(), std::vector<float>(333, 0.0f));
  }
}

TEST_P(NarrowStatesTest, NothingToDo) {
  for (const Way& way : AllWays()) {
    Problem problem(way, 300);
    std::vector<Tensor> sources = problem.Sources(1);
    const Problem before = problem;
    problem.Step(Formula::kAdamW, HypersOf<AdamW>(), 1, sources, 0, 0);
    EXPECT_EQ(problem, before);
  }
}

SHARD_ON_ALL_TARGETS(NarrowStatesTest);

// Instruction sets with a fused multiply-add agree in all bits.
TEST(NarrowStatesTargetsTest, SameWithAvx2AndAvx512) {
  std::vector<uint32_t> fused;
  for (const uint32_t target : Targets()) {
    if (target == HWY_AVX2 || target == HWY_AVX3) fused.push_back(target);
  }
  for (const Way& way : AllWays()) {
    std::vector<Problem> results;
    for (const uint32_t target : fused) {
      hwy::SetSupportedTargetsForTest(target);
      results.push_back(AfterThreeSteps(way, 1500, {1500}));
    }
    hwy::SetSupportedTargetsForTest(0);
    for (const Problem& result : results) {
      EXPECT_EQ(result, results[0]) << Describe(way);
    }
  }
}

TEST(NarrowStateKindsTest, OnlyAdamHasNarrowStates) {
  for (const Formula formula : {Formula::kAdam, Formula::kAdamAmsgrad,
                                Formula::kAdamW, Formula::kAdamWAmsgrad}) {
    EXPECT_NE(NarrowStateKinds(formula), nullptr);
  }
  EXPECT_EQ(NarrowStateKinds(Formula::kRprop), nullptr);
  EXPECT_EQ(NarrowStateKinds(Formula::kSgd), nullptr);
}

}  // namespace
}  // namespace shard::narrow_states_test
