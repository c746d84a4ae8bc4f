// SPDX-License-Identifier: Apache-2.0
//
// The profiles of Adam and AdamW against the programs they are named after
// (programs.h): the bits are equal, on every instruction set, whatever the
// gradients.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/fused_step.h"
#include "kernels/formula/all.h"
#include "kernels/formula/scalars.h"
#include "tests/kernels/cpu/programs.h"
#include "tests/kernels/cpu/targets.h"
#include "tests/kernels/formula/reference.h"

namespace shard::profiles_test {
namespace {

// Calls the kernel. No other function here does.
void StepOurs(Formula formula, const std::vector<double>& hypers, int64_t step,
              const std::vector<float>& gradient, Tensors* t) {
  const void* const source = gradient.data();
  void* const states[] = {t->exp_avg.data(), t->exp_avg_sq.data()};
  FusedStepArgs args;
  args.gradients = {&source, 1, DType::kF32};
  args.param = t->param.data();
  args.states = states;
  args.count = gradient.size();
  FusedStep(formula, FormulaScalars(formula, hypers.data(), step).data(), args);
}

// Returns whether the instruction set in use has a fused multiply-add: p = -lr
// g + p with lr = g = 1 + 2^-12 and p = 1 + 2^-11 is -2^-24 with one rounding,
// and 0 with two.
bool Fuses() {
  const double x = 1 + std::ldexp(1, -12);
  Tensors t = {{static_cast<float>(1 + std::ldexp(1, -11))}, {0}, {0}};
  StepOurs(Formula::kSgd, HypersOf<Sgd>({{"lr", x}}), 1,
           {static_cast<float>(x)}, &t);
  return t.param[0] != 0;
}

struct Case {
  const char* name;
  Formula formula;
  int profile;
  bool decoupled;
};

constexpr Case kCases[] = {
    {"adam, apex", Formula::kAdamApex, AdamMoments::kApex, false},
    {"adamw, apex", Formula::kAdamWApex, AdamMoments::kApex, true},
    {"adam, deepspeed_cpu", Formula::kAdamDeepSpeedCpu,
     AdamMoments::kDeepSpeedCpu, false},
    {"adamw, deepspeed_cpu", Formula::kAdamWDeepSpeedCpu,
     AdamMoments::kDeepSpeedCpu, true},
    {"adamw, llmc", Formula::kAdamWLlmc, AdamMoments::kLlmc, true},
    {"adamw, llmc_cpu", Formula::kAdamWLlmcCpu, AdamMoments::kLlmcCpu, true},
    {"adamw, ggml", Formula::kAdamWGgml, AdamMoments::kGgml, true},
};

std::unique_ptr<Program> ProgramOf(const Case& c, bool fuses) {
  switch (c.profile) {
    case AdamMoments::kApex:
      return std::make_unique<Apex>(fuses, c.decoupled);
    case AdamMoments::kDeepSpeedCpu:
      return std::make_unique<DeepSpeedCpu>(fuses, c.decoupled);
    case AdamMoments::kLlmc:
      return std::make_unique<Llmc>(fuses);
    case AdamMoments::kLlmcCpu:
      return std::make_unique<LlmcCpu>(fuses);
    default:
      return std::make_unique<Ggml>(fuses);
  }
}

std::vector<double> HypersOfCase(const Case& c, double maximize = 0) {
  const HyperValues values = {{"lr", kLr},
                              {"beta1", kBeta1},
                              {"beta2", kBeta2},
                              {"eps", kEps},
                              {"weight_decay", kWeightDecay},
                              {"maximize", maximize},
                              {"profile", c.profile}};
  return c.decoupled ? HypersOf<AdamW>(values) : HypersOf<Adam>(values);
}

// Whole vectors of every instruction set, and a rest.
constexpr size_t kCount = 1024 + 67;

// Returns one kind of gradient per element, so that its moments live on that
// scale: as in training, zeros, tiny ones (their squares vanish or are
// denormal) and huge ones, always or now and then.
std::vector<float> Gradient(int64_t step) {
  std::mt19937 generator(static_cast<uint32_t>(1000 + step));
  std::normal_distribution<float> normal;
  std::vector<float> gradient(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const float g = normal(generator);
    const float scales[] = {1, 1e-3f, 0, 1e-12f, 1e-21f, 1e4f};
    const size_t kind = i % 7;
    const size_t now = kind < 6 ? kind : static_cast<size_t>(step + i) % 6;
    gradient[i] = g * scales[now];
  }
  return gradient;
}

Tensors Start() {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  Tensors t;
  t.exp_avg.assign(kCount, 0);
  t.exp_avg_sq.assign(kCount, 0);
  for (size_t i = 0; i < kCount; ++i) t.param.push_back(normal(generator));
  return t;
}

void ExpectEqualBits(const std::vector<float>& ours,
                     const std::vector<float>& theirs, const char* what) {
  for (size_t i = 0; i < ours.size(); ++i) {
    uint32_t bits, expected;
    std::memcpy(&bits, &ours[i], sizeof(bits));
    std::memcpy(&expected, &theirs[i], sizeof(expected));
    ASSERT_EQ(bits, expected)
        << what << ", element " << i << ": " << ours[i] << ", not " << theirs[i]
        << ", " << KernelTargetName();
  }
}

void ExpectEqualBits(const Tensors& ours, const Tensors& theirs) {
  ExpectEqualBits(ours.param, theirs.param, "param");
  ExpectEqualBits(ours.exp_avg, theirs.exp_avg, "exp_avg");
  ExpectEqualBits(ours.exp_avg_sq, theirs.exp_avg_sq, "exp_avg_sq");
}

// Runs on each instruction set of this machine, one by one.
class ProfilesTest : public TargetsTest {};

TEST_P(ProfilesTest, HaveTheBitsOfTheirPrograms) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const auto program = ProgramOf(c, Fuses());
    Tensors theirs = Start();
    Tensors ours = theirs;
    for (int64_t step = 1; step <= 50; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const std::vector<float> gradient = Gradient(step);
      program->Step(gradient, &theirs);
      StepOurs(c.formula, HypersOfCase(c), step, gradient, &ours);
      ExpectEqualBits(ours, theirs);
      if (HasFatalFailure()) return;
    }
    ASSERT_TRUE(std::isfinite(ours.param[0]));
  }
}

// A run moves here after 20 steps in another program: its parameters and
// moments are loaded, and our first step is number 21.
TEST_P(ProfilesTest, GoOnWhereTheirProgramsStopped) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const auto program = ProgramOf(c, Fuses());
    Tensors theirs = Start();
    for (int64_t step = 1; step <= 20; ++step) {
      program->Step(Gradient(step), &theirs);
    }
    Tensors ours = theirs;
    for (int64_t step = 21; step <= 50; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const std::vector<float> gradient = Gradient(step);
      program->Step(gradient, &theirs);
      StepOurs(c.formula, HypersOfCase(c), step, gradient, &ours);
      ExpectEqualBits(ours, theirs);
      if (HasFatalFailure()) return;
    }
  }
}

// A step uphill is one downhill on the negative gradient, in every bit.
TEST_P(ProfilesTest, MaximizeNegatesTheGradient) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    Tensors up = Start();
    Tensors down = up;
    for (int64_t step = 1; step <= 3; ++step) {
      std::vector<float> gradient = Gradient(step);
      StepOurs(c.formula, HypersOfCase(c, 1), step, gradient, &up);
      for (float& g : gradient) g = -g;
      StepOurs(c.formula, HypersOfCase(c), step, gradient, &down);
      ExpectEqualBits(up, down);
    }
  }
}

// The profiles are one optimizer in different roundings.
TEST_P(ProfilesTest, DifferFromTorchInRoundingOnly) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Formula torch = c.decoupled ? Formula::kAdamW : Formula::kAdam;
    Tensors expected = Start();
    Tensors ours = expected;
    size_t different = 0;
    for (int64_t step = 1; step <= 20; ++step) {
      const std::vector<float> gradient = Gradient(step);
      const auto hypers = HypersOfCase(c);
      StepOurs(torch, hypers, step, gradient, &expected);
      StepOurs(c.formula, hypers, step, gradient, &ours);
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_NEAR(ours.param[i], expected.param[i], 4e-6f)
            << "step " << step << ", element " << i;
        if (ours.param[i] != expected.param[i]) ++different;
      }
    }
    // With equal bits everywhere, the profile would do nothing.
    EXPECT_GT(different, kCount / 4);
  }
}

SHARD_ON_ALL_TARGETS(ProfilesTest);

// The runs are so long that the products of DeepSpeed vanish beside 1 and float
// powers underflow.
TEST(ProfileConstantsTest, ConstantsStayTheirPrograms) {
  for (const double beta : {0.0, 0.9, 0.999}) {
    const auto hypers =
        HypersOf<AdamW>({{"beta1", beta},
                         {"beta2", beta},
                         {"lr", 1},
                         {"profile", AdamMoments::kDeepSpeedCpu}});
    const auto float_beta = static_cast<float>(beta);
    float product = 1;
    int64_t step = 0;
    for (const int64_t next : {1, 2, 100, 1000, 17000, 17328, 20000, 100000}) {
      for (; step < next; ++step) product *= float_beta;
      const auto s = AdamWDeepSpeedCpu::Prepare(hypers.data(), step);
      const float correction = 1 - product;
      ASSERT_EQ(s.negative_step_size, -1 / correction) << beta << ", " << step;
      ASSERT_EQ(s.inverse_root_correction2, 1 / std::sqrt(correction))
          << beta << ", " << step;
    }
  }
}

// lr wd is so small beside 1 that its own rounding shows in few of these
// values.
TEST(ProfileConstantsTest, GgmlsDecayIsRoundedOnce) {
  size_t differ = 0;
  for (int i = 1; i <= 1000; ++i) {
    const auto lr = static_cast<float>(i) / 1000;
    const float weight_decay = 0.3f;
    const auto hypers = HypersOf<AdamW>({{"lr", lr},
                                         {"weight_decay", weight_decay},
                                         {"profile", AdamMoments::kGgml}});
    const double decay = AdamWGgml::Prepare(hypers.data(), 1).decay;
    ASSERT_EQ(decay, std::fma(-lr, weight_decay, 1.0f)) << lr;
    const float product = lr * weight_decay;
    if (decay != 1.0f - product) ++differ;
  }
  EXPECT_GT(differ, 0u);
}

// The three ways to compute a power of beta have three results: a profile with
// the constants of another would not pass.
TEST(ProfileConstantsTest, TheThreeCorrectionsDiffer) {
  const HyperValues values = {{"beta1", 0.999}, {"beta2", 0.999}};
  const auto hypers = HypersOf<AdamW>(values);
  size_t differ = 0;
  for (int64_t step = 100; step < 200; ++step) {
    const double apex = AdamWApex::Prepare(hypers.data(), step).correction1;
    const double llmc = AdamWLlmc::Prepare(hypers.data(), step).correction1;
    const double deepspeed =
        -1e-3 /
        AdamWDeepSpeedCpu::Prepare(hypers.data(), step).negative_step_size;
    EXPECT_NEAR(apex, llmc, 1e-6);
    EXPECT_NEAR(apex, deepspeed, 1e-5);
    if (apex != llmc && std::abs(apex - deepspeed) > 1e-7) ++differ;
  }
  EXPECT_GT(differ, 0u);
}

}  // namespace
}  // namespace shard::profiles_test
