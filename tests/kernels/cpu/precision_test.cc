// SPDX-License-Identifier: Apache-2.0
//
// The fused step in every precision: parameters, gradients and states that are
// not fp32, with and without master weights.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/fused_step.h"
#include "kernels/cpu/q8.h"
#include "kernels/cpu/random.h"
#include "kernels/formula/all.h"
#include "kernels/formula/narrow_states.h"
#include "tests/kernels/cpu/halves.h"
#include "tests/kernels/cpu/targets.h"
#include "tests/kernels/formula/reference.h"

namespace shard {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

std::vector<float> Random(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// A tensor of any dtype, aligned to its elements and no more.
class Tensor {
 public:
  Tensor(DType dtype, size_t count)
      : dtype_(dtype),
        count_(count),
        bytes_(count * DTypeSize(dtype) + 64),
        offset_(4),
        scales_((count + 255) / 256) {}

  Tensor(DType dtype, const std::vector<float>& values)
      : Tensor(dtype, values.size()) {
    Narrow(dtype, values.data(), data(), values.size(), nullptr);
  }

  void* data() { return bytes_.data() + offset_; }
  void* at(size_t i) { return bytes_.data() + offset_ + i * DTypeSize(dtype_); }
  float* scales() { return scales_.data(); }
  std::vector<float> values() const {
    std::vector<float> wide(count_);
    Widen(dtype_, bytes_.data() + offset_, wide.data(), count_);
    return wide;
  }
  bool operator==(const Tensor& other) const = default;

 private:
  DType dtype_;
  size_t count_;
  std::vector<uint8_t> bytes_;
  size_t offset_;
  std::vector<float> scales_;
};

struct Way {
  DType param = DType::kF32;
  DType gradient = DType::kF32;
  bool master = false;
  DType state = DType::kF32;
  bool stochastic = false;
  size_t num_sources = 1;
  double clip_value = std::numeric_limits<double>::infinity();
  uint64_t seed = 1;
  int64_t first_element = 0;
};

// A parameter with all that belongs to it.
struct Problem {
  Problem(const Way& w, size_t size)
      : way(w),
        count(size),
        param(w.param, Random(size, 1)),
        master(param.values()) {
    for (int k = 0; k < kMaxStates; ++k) states.emplace_back(w.state, size);
  }

  // Elements [begin, begin + n) of a step with these gradients.
  void Step(Formula formula, const std::vector<double>& hypers, int64_t step,
            std::vector<Tensor>& sources, size_t begin, size_t n) {
    std::vector<const void*> data;
    for (Tensor& source : sources) data.push_back(source.at(begin));
    std::vector<void*> state_data;
    std::vector<float*> scales;
    for (Tensor& state : states) {
      state_data.push_back(state.at(begin));
      scales.push_back(state.scales() + begin / 256);
    }
    FusedStepArgs args;
    args.gradients = {data.data(), data.size(), way.gradient};
    args.gradient_scale = 1.0 / static_cast<double>(sources.size());
    args.clip_value = way.clip_value;
    args.param = param.at(begin);
    args.param_dtype = way.param;
    if (way.master) args.master = master.data() + begin;
    args.stochastic_rounding = way.stochastic;
    args.states = state_data.data();
    args.state_dtype = way.state;
    args.scales = scales.data();
    args.random = {way.seed, static_cast<uint32_t>(step), 3,
                   way.first_element + static_cast<int64_t>(begin)};
    args.count = n;
    FusedStep(formula, hypers.data(), step, args);
  }

  std::vector<Tensor> Sources(int64_t step) const {
    std::vector<Tensor> sources;
    for (size_t w = 0; w < way.num_sources; ++w) {
      sources.emplace_back(way.gradient,
                           Random(count, static_cast<uint32_t>(100 * step) +
                                             static_cast<uint32_t>(w)));
    }
    return sources;
  }

  bool operator==(const Problem& other) const {
    return param == other.param && master == other.master &&
           states == other.states;
  }

  Way way;
  size_t count;
  Tensor param;
  std::vector<float> master;
  std::vector<Tensor> states;
};

std::string Describe(const Way& s) {
  return std::string("parameter ") + DTypeName(s.param) + ", gradient " +
         DTypeName(s.gradient) + ", state " + DTypeName(s.state) +
         (s.master ? ", master" : "") + ", sources " +
         std::to_string(s.num_sources) + ", " + KernelTargetName();
}

class PrecisionTest : public TargetsTest {};

// Each step on its own, from where the kernel is: with fp32 states.
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
        // Half a unit in the last place, of which p may be at the upper end.
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

// The ways of AdamW that round something.
std::vector<Way> AllWays() {
  std::vector<Way> ways;
  for (const DType state : {DType::kF32, DType::kBF16, DType::kQ8}) {
    for (const DType param : kDTypes) {
      for (const bool master : {false, true}) {
        Way way;
        way.param = param;
        way.gradient = param;
        way.master = master;
        way.state = state;
        way.num_sources = 2;
        ways.push_back(way);
      }
    }
    Way way;
    way.param = DType::kBF16;
    way.stochastic = true;
    way.state = state;
    ways.push_back(way);
  }
  return ways;
}

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

// A call on all elements and calls on parts have one result, to the bit.
TEST_P(PrecisionTest, SplitCallsAreOneCall) {
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
TEST_P(PrecisionTest, RandomBitsAreUsedWhereTheHeaderSays) {
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

// Which bits round what: those of the call's stream, in the tensor's own.
TEST_P(PrecisionTest, EachTensorHasItsOwnRandomBits) {
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
        std::vector<uint32_t> bits;
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

// A parameter at the start of a cache line is written past the caches, others
// and what is left at the end are not: the same bits, and no byte more.
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
      FusedStep(Formula::kSgd, HypersOf<Sgd>().data(), 1, args);
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

// Updates of a twentieth of a unit in the last place are lost to nearest, and
// kept on average stochastically.
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
    // Five standard deviations of the mean of 4096 sums of 100 roundings.
    const double moved = kSteps / 128.0 / 20;
    EXPECT_NEAR(mean, stochastic ? 1 + moved : 1.0,
                5 * std::sqrt(kSteps * 0.05) / 128 / 64);
  }
}

// With beta2 = 0.999, to nearest an average in 8 or 16 bits would stay at what
// it is when gradients grow tenfold; ours follows.
TEST_P(PrecisionTest, SlowAveragesDoNotFreeze) {
  for (const DType state : {DType::kBF16, DType::kQ8}) {
    Way way;
    way.state = state;
    constexpr size_t kCount = 2048;
    Problem narrow(way, kCount);
    way.state = DType::kF32;
    Problem wide(way, kCount);
    const auto hypers = HypersOf<AdamW>();
    for (int64_t step = 1; step <= 600; ++step) {
      std::vector<float> values = Random(kCount, static_cast<uint32_t>(step));
      for (float& value : values) value *= step <= 300 ? 1 : 10;
      std::vector<Tensor> sources;
      sources.emplace_back(DType::kF32, values);
      narrow.Step(Formula::kAdamW, hypers, step, sources, 0, kCount);
      wide.Step(Formula::kAdamW, hypers, step, sources, 0, kCount);
    }
    // The parameter's whole path depends on the averages.
    double distance = 0;
    double path = 0;
    const auto start = Random(kCount, 1);
    for (size_t i = 0; i < kCount; ++i) {
      const auto a = static_cast<double>(narrow.param.values()[i]);
      const auto b = static_cast<double>(wide.param.values()[i]);
      distance += (a - b) * (a - b);
      const double c = b - static_cast<double>(start[i]);
      path += c * c;
    }
    EXPECT_LT(std::sqrt(distance / path), state == DType::kQ8 ? 0.15 : 0.03)
        << DTypeName(state);
  }
}

// Logistic regression of 512 weights on 2000 examples, batches of 100.
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

TEST(PrecisionConvergenceTest, NarrowStatesLearnAsWell) {
  for (const Formula formula : {Formula::kAdamW, Formula::kAdamWAmsgrad}) {
    const double wide = LogisticLoss(DType::kF32, formula);
    EXPECT_LT(wide, 0.45);  // From 0.69.
    EXPECT_NEAR(LogisticLoss(DType::kBF16, formula), wide, 0.01 * wide);
    EXPECT_NEAR(LogisticLoss(DType::kQ8, formula), wide, 0.03 * wide);
  }
}

TEST_P(PrecisionTest, ZerosStayZero) {
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

TEST_P(PrecisionTest, NothingToDo) {
  for (const Way& way : AllWays()) {
    Problem problem(way, 300);
    std::vector<Tensor> sources = problem.Sources(1);
    const Problem before = problem;
    problem.Step(Formula::kAdamW, HypersOf<AdamW>(), 1, sources, 0, 0);
    EXPECT_EQ(problem, before);
  }
}

SHARD_ON_ALL_TARGETS(PrecisionTest);

// Where there is a fused multiply-add, all bits agree.
TEST(PrecisionTargetsTest, SameWithAvx2AndAvx512) {
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

TEST(NarrowStatesTest, OfAdam) {
  for (const Formula formula : {Formula::kAdam, Formula::kAdamAmsgrad,
                                Formula::kAdamW, Formula::kAdamWAmsgrad}) {
    EXPECT_NE(NarrowStateKinds(formula), nullptr);
  }
  EXPECT_EQ(NarrowStateKinds(Formula::kRprop), nullptr);
  EXPECT_EQ(NarrowStateKinds(Formula::kSgd), nullptr);
}

}  // namespace
}  // namespace shard
