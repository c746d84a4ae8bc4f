// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/tensor_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/formula/all.h"
#include "kernels/formula/scalars.h"
#include "tests/kernels/cpu/targets.h"
#include "tests/kernels/formula/tensor_reference.h"

namespace shard::tensor_step_test {
namespace {

using Shape = std::vector<int64_t>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Guard elements on both sides of each buffer, which the kernel must leave
// alone.
constexpr size_t kMargin = 16;

// A buffer between two margins, at an offset that no vector is aligned to
// unless it is 0.
class Guarded {
 public:
  Guarded(size_t count, size_t offset, float value)
      : begin_(kMargin + offset), count_(count) {
    values_.assign(begin_ + count + kMargin, kNan);
    for (size_t i = 0; i < count; ++i) data()[i] = value;
  }

  float* data() { return values_.data() + begin_; }
  float operator[](size_t i) const { return values_[begin_ + i]; }
  size_t size() const { return count_; }

  bool MarginsAreIntact() const {
    for (size_t i = 0; i < values_.size(); ++i) {
      const bool inside = i >= begin_ && i < begin_ + count_;
      if (!inside && !std::isnan(values_[i])) return false;
    }
    return true;
  }

 private:
  size_t begin_;
  size_t count_;
  std::vector<float> values_;
};

// One parameter, with everything that a step of it needs.
template <class F>
class Parameter {
 public:
  Parameter(Formula id, Shape shape, const std::vector<float>& start,
            std::vector<double> hypers, size_t offset = 0)
      : id_(id),
        shape_(std::move(shape)),
        hypers_(std::move(hypers)),
        param_(start.size(), offset, 0),
        scratch_(TensorScratchElements(id, shape_.data(), ndim()), offset,
                 kNan) {
    std::copy(start.begin(), start.end(), param_.data());
    for (int s = 0; s < F::kNumStates; ++s) {
      states_.emplace_back(
          static_cast<size_t>(F::StateNumel(s, shape_.data(), ndim())), offset,
          0.0f);
    }
  }

  void Step(const std::vector<float>& grad, int64_t step) {
    std::vector<float*> states;
    for (Guarded& state : states_) {
      states.push_back(state.size() == 0 ? nullptr : state.data());
    }
    TensorStepArgs args;
    args.grad = grad.data();
    args.param = param_.data();
    args.states = states.data();
    args.shape = shape_.data();
    args.ndim = ndim();
    args.scratch = scratch_.data();
    TensorStep(id_, FormulaScalars(id_, hypers_.data(), step).data(), args);
    EXPECT_TRUE(param_.MarginsAreIntact());
    EXPECT_TRUE(scratch_.MarginsAreIntact());
    for (const Guarded& state : states_) EXPECT_TRUE(state.MarginsAreIntact());
  }

  const Guarded& param() const { return param_; }
  const Guarded& state(size_t s) const { return states_[s]; }

 private:
  int ndim() const { return static_cast<int>(shape_.size()); }

  Formula id_;
  Shape shape_;
  std::vector<double> hypers_;
  Guarded param_;
  std::vector<Guarded> states_;
  Guarded scratch_;
};

size_t NumelOf(const Shape& shape) {
  return static_cast<size_t>(
      ShapeNumel(shape.data(), static_cast<int>(shape.size())));
}

std::vector<float> Random(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// Returns gradients with exact zeros, 1e-12 and 1e4 among them in some steps,
// and only zeros in one.
std::vector<float> Gradient(size_t count, int64_t step) {
  std::vector<float> grad = Random(count, static_cast<uint32_t>(1000 + step));
  for (size_t i = 0; i < count; ++i) {
    if (i % 5 == 1) grad[i] = 0;
    if (i % 7 == 2) grad[i] = 1e-12f;
    if (i % 11 == 3 && step % 3 == 0) grad[i] = 1e4f;
    if (step == 5) grad[i] = 0;
  }
  return grad;
}

// The shapes have fewer elements than a vector, whole vectors, and some more;
// more columns than are summed at once; and rows that no group of rows divides.
const Shape kShapes[] = {
    {},         {1},        {15},        {64},      {1003},       {1, 1},
    {1, 37},    {37, 1},    {2, 64},     {33, 17},  {300, 5},     {5, 300},
    {64, 64},   {3, 2200},  {6, 1024},   {3, 4, 5}, {2, 3, 4, 6}, {7, 3, 3},
    {2, 1, 70}, {2, 70, 1}, {1, 1, 1, 1}};

class TensorStepTest : public TargetsTest {};

// Compares within rounding, relative to `most`: the largest value that each
// element has had.
void ExpectNear(const Guarded& actual, const std::vector<double>& expected,
                double least, std::vector<double>* most) {
  ASSERT_EQ(actual.size(), expected.size());
  most->resize(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    (*most)[i] = std::max((*most)[i], std::abs(expected[i]));
    ASSERT_NEAR(static_cast<double>(actual[i]), expected[i],
                least + 2e-6 * (*most)[i])
        << "element " << i;
  }
}

template <class F>
void ExpectMatchesDouble(Formula id, const std::vector<double>& hypers) {
  for (const Shape& shape : kShapes) {
    const std::vector<float> start = Random(NumelOf(shape), 1);
    Parameter<F> parameter(id, shape, start, hypers, 3);
    TensorReference<F> reference(shape, start, hypers);
    std::vector<double> param_most;
    std::vector<std::vector<double>> state_most(F::kNumStates);
    for (int64_t step = 1; step <= 12; ++step) {
      SCOPED_TRACE(::testing::PrintToString(shape) + ", step " +
                   std::to_string(step));
      const std::vector<float> grad = Gradient(start.size(), step);
      parameter.Step(grad, step);
      reference.Step(grad, step);
      ExpectNear(parameter.param(), reference.param(), 2e-7, &param_most);
      for (size_t s = 0; s < F::kNumStates; ++s) {
        SCOPED_TRACE(F::kStates[s]);
        ExpectNear(parameter.state(s), reference.state(s), 1e-30,
                   &state_most[s]);
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_P(TensorStepTest, LambMatchesDouble) {
  ExpectMatchesDouble<Lamb>(Formula::kLamb, HypersOf<Lamb>());
  ExpectMatchesDouble<Lamb>(Formula::kLamb, HypersOf<Lamb>({{"lr", 0.03},
                                                            {"beta1", 0.8},
                                                            {"beta2", 0.97},
                                                            {"eps", 1e-4},
                                                            {"weight_decay", 0},
                                                            {"maximize", 1}}));
}

TEST_P(TensorStepTest, AdafactorMatchesDouble) {
  ExpectMatchesDouble<Adafactor>(Formula::kAdafactor, HypersOf<Adafactor>());
  ExpectMatchesDouble<Adafactor>(Formula::kAdafactor,
                                 HypersOf<Adafactor>({{"lr", 0.1},
                                                      {"beta2_decay", -0.5},
                                                      {"eps1", 1e-4},
                                                      {"eps2", 2},
                                                      {"d", 1.25},
                                                      {"weight_decay", 0.1},
                                                      {"maximize", 1}}));
}

// The alignment and the earlier contents of the scratch change no bit.
template <class F>
void ExpectSameBitsAnywhere(Formula id) {
  for (const Shape& shape : {Shape{1003}, Shape{33, 17}, Shape{4, 1030}}) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    const std::vector<float> start = Random(NumelOf(shape), 1);
    Parameter<F> first(id, shape, start, HypersOf<F>(), 0);
    Parameter<F> second(id, shape, start, HypersOf<F>(), 5);
    for (int64_t step = 1; step <= 3; ++step) {
      const std::vector<float> grad = Gradient(start.size(), step);
      first.Step(grad, step);
      second.Step(grad, step);
    }
    for (size_t i = 0; i < start.size(); ++i) {
      ASSERT_EQ(first.param()[i], second.param()[i]) << i;
    }
  }
}

// Without any gradient, nothing is NaN, and only weight decay changes the
// parameter.
template <class F>
void ExpectZerosAreHarmless(Formula id, const HyperValues& values) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    const std::vector<float> zeros(NumelOf(shape));
    const std::vector<float> start(zeros.size(), 0.5f);
    Parameter<F> none(id, shape, zeros, HypersOf<F>(values));
    Parameter<F> some(id, shape, start, HypersOf<F>(values));
    for (int64_t step = 1; step <= 3; ++step) {
      none.Step(zeros, step);
      some.Step(zeros, step);
    }
    for (size_t i = 0; i < zeros.size(); ++i) {
      ASSERT_EQ(none.param()[i], 0) << i;
      ASSERT_EQ(some.param()[i], 0.5f) << i;
    }
    for (size_t s = 0; s < F::kNumStates; ++s) {
      for (size_t i = 0; i < some.state(s).size(); ++i) {
        ASSERT_EQ(some.state(s)[i], 0) << i;
      }
    }
  }
}

// An empty parameter, of any number of dimensions, is a step that does nothing.
// It needs no pointers to states either, though col_var of {0, 5} has 5
// elements.
template <class F>
void ExpectEmptyIsFine(Formula id) {
  for (const Shape& shape : {Shape{0}, Shape{0, 5}, Shape{5, 0}, Shape{2, 0, 3},
                             Shape{0, 2, 3}, Shape{0, 0}}) {
    Parameter<F> parameter(id, shape, {}, HypersOf<F>());
    parameter.Step({}, 1);
    for (size_t s = 0; s < F::kNumStates; ++s) {
      for (size_t i = 0; i < parameter.state(s).size(); ++i) {
        EXPECT_EQ(parameter.state(s)[i], 0);
      }
    }
  }
}

TEST_P(TensorStepTest, SameBitsAnywhere) {
  ExpectSameBitsAnywhere<Lamb>(Formula::kLamb);
  ExpectSameBitsAnywhere<Adafactor>(Formula::kAdafactor);
}

TEST_P(TensorStepTest, ZerosAreHarmless) {
  ExpectZerosAreHarmless<Lamb>(Formula::kLamb, {{"weight_decay", 0}});
  ExpectZerosAreHarmless<Adafactor>(Formula::kAdafactor, {});
  ExpectZerosAreHarmless<Adafactor>(Formula::kAdafactor,
                                    {{"eps1", 0}, {"maximize", 1}});
}

TEST_P(TensorStepTest, EmptyIsFine) {
  ExpectEmptyIsFine<Lamb>(Formula::kLamb);
  ExpectEmptyIsFine<Adafactor>(Formula::kAdafactor);
}

// The squares of these values are no floats: that of 1e25 overflows, that of
// 1e-25 vanishes. Their norms are.
TEST_P(TensorStepTest, NormsHoldWhatAFloatsSquareCannot) {
  for (const float size : {1e25f, 1e-25f}) {
    Parameter<Lamb> lamb(Formula::kLamb, {20}, std::vector<float>(20, size),
                         HypersOf<Lamb>({{"weight_decay", 0}}));
    lamb.Step(std::vector<float>(20, 1.0f), 1);
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_NEAR(lamb.param()[i] / size, 1 - 1e-3f, 1e-6f);
    }
  }
  Parameter<Adafactor> adafactor(Formula::kAdafactor, {4, 5},
                                 std::vector<float>(20, 1e25f),
                                 HypersOf<Adafactor>());
  adafactor.Step(std::vector<float>(20, 1.0f), 1);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(adafactor.param()[i] / 1e25f, 1 - 1e-2f, 1e-6f);
  }
}

TEST(TensorScratchTest, IsWhatTheHeaderSays) {
  const Shape conv = {8, 4, 3, 5};
  EXPECT_EQ(TensorScratchElements(Formula::kLamb, conv.data(), 4), 0u);
  EXPECT_EQ(TensorScratchElements(Formula::kAdafactor, conv.data(), 4),
            8u * 4 * (3 + 5));
  EXPECT_EQ(TensorScratchElements(Formula::kAdafactor, conv.data(), 1), 0u);
  EXPECT_EQ(TensorScratchElements(Formula::kAdafactor, conv.data(), 0), 0u);
}

SHARD_ON_ALL_TARGETS(TensorStepTest);

}  // namespace
}  // namespace shard::tensor_step_test
