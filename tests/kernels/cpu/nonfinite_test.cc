// SPDX-License-Identifier: Apache-2.0
//
// Gradients that are infinite or NaN, in every rule, precision and instruction
// set. A NaN stays visible, and an infinity has the result that torch gives it.
// The expectations are those of docs/numerics.md ("Gradients that are not
// finite").

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cpu/fused_step.h"
#include "kernels/cpu/tensor_step.h"
#include "kernels/formula/all.h"
#include "kernels/formula/narrow_states.h"
#include "kernels/formula/scalars.h"
#include "tests/kernels/cpu/precision.h"
#include "tests/kernels/cpu/targets.h"
#include "tests/kernels/formula/tensor_reference.h"

namespace shard::nonfinite_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kBad[] = {kNan, kInf, -kInf};

// A block of 256 elements, whole vectors, and a rest that fills none.
constexpr size_t kCount = 256 + 29;
// Positions in a vector, at the ends of a block, and in the rest.
constexpr size_t kPositions[] = {0, 5, 255, 256, kCount - 1};

// Returns NaN or an infinity as it is, and 0 for every finite number.
float KindOf(double x) {
  if (std::isnan(x)) return kNan;
  return std::isinf(x) ? static_cast<float>(x) : 0;
}

bool SameKind(float x, float y) {
  return std::isnan(x) == std::isnan(y) && (std::isnan(x) || x == y);
}

// The effect on a parameter of a step with the gradient `bad`, as torch has it.
enum class Rule {
  kNormalized,  // Divided by its own magnitude: inf / inf.
  kLinear,      // Taken as it is.
  // Reduced to its sign: an infinity's is like others; NaN has none and stays.
  kSign,
  kTorchSign,  // Reduced to torch's sign, which is 0 for NaN.
};

template <class F>
constexpr Rule kRuleOf = Rule::kNormalized;
template <>
constexpr Rule kRuleOf<Sgd> = Rule::kLinear;
template <>
constexpr Rule kRuleOf<SgdMomentum> = Rule::kLinear;
template <>
constexpr Rule kRuleOf<Lion> = Rule::kSign;
template <>
constexpr Rule kRuleOf<Rprop> = Rule::kTorchSign;

// Returns the kind of the parameter after that step.
float ExpectedKind(Rule rule, float bad) {
  switch (rule) {
    case Rule::kNormalized:
      return kNan;
    case Rule::kLinear:
      return std::isnan(bad) ? kNan : -bad;
    case Rule::kSign:
      return std::isnan(bad) ? kNan : 0;
    case Rule::kTorchSign:
      return 0;
  }
  return 0;
}

class NonfiniteTest : public TargetsTest {};

// Returns every way that a rule supports: with and without master weights, with
// states of every kind.
std::vector<Way> WaysOf(Formula formula) {
  std::vector<Way> ways;
  for (const Way& way : AllWays()) {
    if (way.state == DType::kF32 || NarrowStateKinds(formula) != nullptr) {
      ways.push_back(way);
    }
  }
  return ways;
}

// A parameter of a way, with two blocks of states, after some steps. Copies of
// it continue from there.
class Trained {
 public:
  Trained(Formula formula, std::vector<double> hypers, const Way& way)
      : formula_(formula), hypers_(std::move(hypers)), problem_(way, kCount) {}

  // Takes a step in which `bad`, if it is not 0, is the last source's gradient
  // at `position`.
  void Step(float bad = 0, size_t position = 0) {
    ++step_;
    std::vector<Tensor> sources = problem_.Sources(step_);
    if (bad != 0) {
      std::vector<float> values = sources.back().values();
      values[position] = bad;
      sources.back() = Tensor(problem_.way.gradient, values);
    }
    problem_.Step(formula_, hypers_, step_, sources, 0, kCount);
  }

  std::vector<float> param() const { return problem_.param.values(); }
  float master(size_t i) const { return problem_.master[i]; }
  float state(size_t s, size_t i) const {
    return problem_.states[s].values()[i];
  }
  // Returns the last step's gradient of one source, with `bad` at `position` if
  // it is not 0.
  std::vector<float> Gradient(float bad, size_t position) const {
    std::vector<float> values = problem_.Sources(step_).back().values();
    if (bad != 0) values[position] = bad;
    return values;
  }

 private:
  Formula formula_;
  std::vector<double> hypers_;
  Problem problem_;
  int64_t step_ = 0;
};

template <class F>
std::vector<double> Hypers() {
  return HypersOf<F>({{"lr", 0.01}, {"weight_decay", 0.01}, {"momentum", 0.9}});
}

template <class F>
void ExpectVisible(Formula formula) {
  for (const Way& way : WaysOf(formula)) {
    SCOPED_TRACE(Describe(way));
    Trained before(formula, Hypers<F>(), way);
    // The bad gradient comes in the first step, where states are zeros, and in
    // the second.
    for (int done = 0; done < 2; ++done, before.Step()) {
      Trained clean = before;
      clean.Step();
      const std::vector<float> good = clean.param();
      for (const float bad : kBad) {
        const float expected = ExpectedKind(kRuleOf<F>, bad);
        for (const size_t position : kPositions) {
          SCOPED_TRACE(std::to_string(bad) + " after " + std::to_string(done) +
                       " steps, element " + std::to_string(position));
          Trained run = before;
          run.Step(bad, position);
          const std::vector<float> param = run.param();
          for (size_t i = 0; i < kCount; ++i) {
            if (i == position) continue;
            ASSERT_EQ(param[i], good[i]) << "neighbour " << i;
          }
          ASSERT_TRUE(SameKind(KindOf(param[position]), expected))
              << param[position];
          if (!way.master) continue;
          ASSERT_TRUE(SameKind(KindOf(run.master(position)), expected))
              << run.master(position);
        }
      }
    }
  }
}

TEST_P(NonfiniteTest, ElementsBecomeWhatTorchMakesOfThem) {
#define SHARD_VISIBLE(Name)                \
  {                                        \
    SCOPED_TRACE(#Name);                   \
    ExpectVisible<Name>(Formula::k##Name); \
    if (HasFatalFailure()) return;         \
  }
  SHARD_ELEMENT_FORMULAS(SHARD_VISIBLE)
#undef SHARD_VISIBLE
}

// Compares every rule and every state with the same rule in double, which has
// no vectors, in the step of the bad gradient and in the two after it.
template <class F, template <class> class R>
void ExpectKindsOfDouble(Formula formula) {
  const auto hypers = Hypers<F>();
  for (const float bad : kBad) {
    for (const size_t position : kPositions) {
      SCOPED_TRACE(std::to_string(bad) + " at " + std::to_string(position));
      Trained run(formula, hypers, {});
      Reference<F, R> reference(run.param(), hypers);
      for (int64_t step = 1; step <= 4; ++step) {
        const float now = step == 2 ? bad : 0;
        run.Step(now, position);
        reference.Step({run.Gradient(now, position)}, 1, step);
        const std::vector<float> param = run.param();
        for (size_t i = 0; i < kCount; ++i) {
          ASSERT_TRUE(SameKind(KindOf(param[i]), KindOf(reference.param()[i])))
              << param[i] << ", not " << reference.param()[i] << ", element "
              << i << ", step " << step;
        }
        for (int s = 0; s < F::kNumStates; ++s) {
          const float state = run.state(static_cast<size_t>(s), position);
          const double expected = reference.state(position, s);
          ASSERT_TRUE(SameKind(KindOf(state), KindOf(expected)))
              << F::kStates[s] << " is " << state << ", not " << expected
              << ", step " << step;
        }
      }
    }
  }
}

TEST_P(NonfiniteTest, StatesAreThoseOfTheRuleInDouble){
#define SHARD_KINDS(Name)                                             \
  {                                                                   \
    SCOPED_TRACE(#Name);                                              \
    ExpectKindsOfDouble<Name, formula::Name##Rule>(Formula::k##Name); \
    if (HasFatalFailure()) return;                                    \
  }
    SHARD_ELEMENT_FORMULAS(SHARD_KINDS)
#undef SHARD_KINDS
}

// A block of 8-bit states has one scale. A NaN there makes the whole block NaN,
// and the parameters of that block from the next step on. No other block
// changes.
TEST_P(NonfiniteTest, EightBitStatesAreLostByTheBlock) {
  Way way;
  way.state = DType::kQ8;
  Trained clean(Formula::kAdamW, HypersOf<AdamW>(), way);
  const Trained before = clean;
  clean.Step();
  clean.Step();
  const std::vector<float> good = clean.param();
  for (const float bad : kBad) {
    for (const size_t position : kPositions) {
      Trained run = before;
      run.Step(bad, position);
      run.Step();
      const std::vector<float> param = run.param();
      for (size_t i = 0; i < kCount; ++i) {
        if (i / 256 == position / 256) {
          ASSERT_TRUE(std::isnan(param[i])) << i;
        } else {
          ASSERT_EQ(param[i], good[i]) << i;
        }
      }
    }
  }
}

// As in torch.clamp, an infinity is cut to the bound, and NaN stays.
TEST_P(NonfiniteTest, ClippingByValueCutsInfinitiesOnly) {
  for (Way way : WaysOf(Formula::kAdamW)) {
    way.clip_value = 0.25;
    SCOPED_TRACE(Describe(way));
    const Trained before(Formula::kAdamW, HypersOf<AdamW>(), way);
    for (const float bad : kBad) {
      for (const size_t position : kPositions) {
        Trained run = before;
        run.Step(bad, position);
        Trained cut = before;
        cut.Step(bad < 0 ? -100.0f : 100.0f, position);
        const std::vector<float> param = run.param();
        const std::vector<float> expected = cut.param();
        for (size_t i = 0; i < kCount; ++i) {
          if (std::isnan(bad) && i == position) {
            ASSERT_TRUE(std::isnan(param[i])) << i;
          } else {
            ASSERT_EQ(param[i], expected[i]) << i;
          }
        }
      }
    }
  }
}

// The infinities of two ranks with opposite signs sum to NaN, not to a finite
// number.
TEST_P(NonfiniteTest, OppositeInfinitiesAreNan) {
  Way way;
  way.num_sources = 2;
  Problem problem(way, kCount);
  std::vector<Tensor> sources = problem.Sources(1);
  for (size_t w = 0; w < 2; ++w) {
    std::vector<float> values = sources[w].values();
    for (const size_t i : kPositions) values[i] = w == 0 ? kInf : -kInf;
    sources[w] = Tensor(DType::kF32, values);
  }
  problem.Step(Formula::kSgd, HypersOf<Sgd>(), 1, sources, 0, kCount);
  const std::vector<float> param = problem.param.values();
  for (const size_t i : kPositions) EXPECT_TRUE(std::isnan(param[i])) << i;
}

using Shape = std::vector<int64_t>;

// A parameter that is stepped by the kernel and by the rule in double.
template <class F>
class Tensors {
 public:
  Tensors(Formula formula, Shape shape)
      : formula_(formula),
        shape_(std::move(shape)),
        numel_(static_cast<size_t>(ShapeNumel(shape_.data(), ndim()))),
        param_(Random(numel_, 1)),
        scratch_(TensorScratchElements(formula, shape_.data(), ndim())),
        reference_(shape_, param_, HypersOf<F>()) {
    for (int s = 0; s < F::kNumStates; ++s) {
      states_.emplace_back(
          static_cast<size_t>(F::StateNumel(s, shape_.data(), ndim())));
    }
  }

  // Takes a step with the gradient `bad` at `position`, unless `bad` is 0.
  void Step(int64_t step, float bad, size_t position) {
    std::vector<float> grad = Random(numel_, static_cast<uint32_t>(100 + step));
    if (bad != 0) grad[position] = bad;
    std::vector<float*> states;
    for (std::vector<float>& state : states_) states.push_back(state.data());
    TensorStepArgs args;
    args.grad = grad.data();
    args.param = param_.data();
    args.states = states.data();
    args.shape = shape_.data();
    args.ndim = ndim();
    args.scratch = scratch_.data();
    TensorStep(formula_,
               FormulaScalars(formula_, HypersOf<F>().data(), step).data(),
               args);
    reference_.Step(grad, step);
  }

  size_t numel() const { return numel_; }
  const std::vector<float>& param() const { return param_; }
  const std::vector<double>& expected() const { return reference_.param(); }
  const std::vector<std::vector<float>>& states() const { return states_; }
  const std::vector<double>& expected_state(size_t s) const {
    return reference_.state(s);
  }

 private:
  int ndim() const { return static_cast<int>(shape_.size()); }

  Formula formula_;
  Shape shape_;
  size_t numel_;
  std::vector<float> param_;
  std::vector<std::vector<float>> states_;
  std::vector<float> scratch_;
  TensorReference<F> reference_;
};

// Expects exactly those elements to become NaN that `spoiled` names; the others
// are the reference's. `spoiled(shape, i, position)` says whether a gradient at
// `position` that is not finite makes element i NaN. In step 1 Adafactor has no
// memory, and from step 3 on most of an average is memory.
template <class F, class Spoiled>
void ExpectSpoils(Formula formula, const Spoiled& spoiled) {
  for (const Shape& shape :
       {Shape{}, Shape{1}, Shape{19}, Shape{2, 3}, Shape{3, 2}, Shape{1, 40},
        Shape{40, 1}, Shape{33, 17}, Shape{2, 1030}, Shape{3, 4, 5}}) {
    for (const int64_t bad_step : {1, 2, 6}) {
      for (const float bad : kBad) {
        const Tensors<F> first(formula, shape);
        for (const size_t position :
             {size_t{0}, first.numel() / 2, first.numel() - 1}) {
          SCOPED_TRACE(::testing::PrintToString(shape) + ", " +
                       std::to_string(bad) + " in step " +
                       std::to_string(bad_step) + ", element " +
                       std::to_string(position));
          Tensors<F> t(formula, shape);
          for (int64_t step = 1; step < bad_step; ++step) t.Step(step, 0, 0);
          t.Step(bad_step, bad, position);
          for (int after = 0; after < 2; ++after) {
            for (size_t i = 0; i < t.numel(); ++i) {
              if (spoiled(shape, i, position)) {
                ASSERT_TRUE(std::isnan(t.param()[i])) << i;
                ASSERT_TRUE(std::isnan(t.expected()[i])) << i;
              } else {
                ASSERT_NEAR(static_cast<double>(t.param()[i]), t.expected()[i],
                            1e-5)
                    << i;
              }
            }
            for (size_t s = 0; s < t.states().size(); ++s) {
              for (size_t i = 0; i < t.states()[s].size(); ++i) {
                ASSERT_TRUE(SameKind(KindOf(t.states()[s][i]),
                                     KindOf(t.expected_state(s)[i])))
                    << F::kStates[s] << ", " << i;
              }
            }
            t.Step(bad_step + 1 + after, 0, 0);
          }
        }
      }
    }
  }
}

// Adafactor loses all of a matrix, but no other matrix of the same parameter;
// of a vector it loses the element.
TEST_P(NonfiniteTest, AdafactorLosesTheMatrix) {
  ExpectSpoils<Adafactor>(
      Formula::kAdafactor, [](const Shape& shape, size_t i, size_t position) {
        if (shape.size() < 2) return i == position;
        const auto matrix =
            static_cast<size_t>(shape[shape.size() - 2] * shape.back());
        return i / matrix == position / matrix;
      });
}

// LAMB loses the whole parameter, whose trust ratio is one.
TEST_P(NonfiniteTest, LambLosesTheParameter) {
  ExpectSpoils<Lamb>(Formula::kLamb,
                     [](const Shape&, size_t, size_t) { return true; });
}

SHARD_ON_ALL_TARGETS(NonfiniteTest);

}  // namespace
}  // namespace shard::nonfinite_test
