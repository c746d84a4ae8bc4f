// SPDX-License-Identifier: Apache-2.0
//
// The rules that every formula of the registry must keep, in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/formula/all.h"
#include "tests/kernels/formula/reference.h"
#include "tests/kernels/formula/tensor_reference.h"

namespace shard::formulas_test {
namespace {

template <class F>
void ExpectSoundDeclaration() {
  std::set<std::string_view> names;
  for (const Hyper& hyper : F::kHypers) {
    EXPECT_TRUE(names.insert(hyper.name).second) << hyper.name;
    EXPECT_GE(hyper.fallback, hyper.min) << hyper.name;
    EXPECT_LE(hyper.fallback, hyper.max) << hyper.name;
    if (hyper.choices == nullptr) continue;
    // Choices are read from, and written into, one text.
    std::set<std::string_view> choices;
    for (int i = 0; i <= static_cast<int>(hyper.max); ++i) {
      const std::string_view choice = hyper.choices[i];
      EXPECT_TRUE(choices.insert(choice).second) << choice;
      EXPECT_EQ(choice.find_first_of("?&="), choice.npos) << choice;
      EXPECT_FALSE(choice.empty()) << hyper.name;
    }
  }
  EXPECT_STREQ(F::kHypers[0].name, "lr");
  EXPECT_EQ(F::Conflict(HypersOf<F>().data()), nullptr);
  names.clear();
  for (int s = 0; s < F::kNumStates; ++s) {
    EXPECT_TRUE(names.insert(F::kStates[s]).second) << F::kStates[s];
  }
}

TEST(FormulasTest, DeclarationsAreSound) {
#define SHARD_CHECK(Name)           \
  {                                 \
    SCOPED_TRACE(#Name);            \
    ExpectSoundDeclaration<Name>(); \
  }
  SHARD_FORMULAS(SHARD_CHECK)
#undef SHARD_CHECK
}

// Checks the values that a tensor formula derives from a shape: some state for
// every parameter that it steps, none larger than the parameter where that has
// one element or more, and nothing to do where it has none.
template <class F>
void ExpectSoundShapes() {
  const std::vector<std::vector<int64_t>> shapes = {
      {},        {1},          {7}, {5, 3}, {1, 1},
      {4, 1, 6}, {2, 3, 4, 5}, {0}, {0, 5}, {3, 0}};
  for (const auto& shape : shapes) {
    SCOPED_TRACE(::testing::PrintToString(shape));
    const auto ndim = static_cast<int>(shape.size());
    const int64_t numel = ShapeNumel(shape.data(), ndim);
    if (const char* shape_error = F::ShapeError(shape.data(), ndim)) {
      EXPECT_STRNE(shape_error, "");
      continue;
    }
    if (numel == 0) {
      EXPECT_EQ(F::Cost(shape.data(), ndim), 0);
      continue;
    }
    EXPECT_GT(F::Cost(shape.data(), ndim), 0);
    int64_t total = 0;
    for (int s = 0; s < F::kNumStates; ++s) {
      const int64_t state = F::StateNumel(s, shape.data(), ndim);
      EXPECT_GE(state, 0) << F::kStates[s];
      EXPECT_LE(state, numel) << F::kStates[s];
      total += state;
    }
    EXPECT_GT(total, 0);
  }
}

TEST(FormulasTest, ShapesAreSound){
#define SHARD_CHECK(Name)      \
  {                            \
    SCOPED_TRACE(#Name);       \
    ExpectSoundShapes<Name>(); \
  }
    SHARD_TENSOR_FORMULAS(SHARD_CHECK)
#undef SHARD_CHECK
}

// Returns the names of the formulas that serve a choice, in the registry's
// order.
std::vector<std::string> NamesServed(const HyperValues& choice) {
  std::vector<std::string> names;
#define SHARD_ADD(Name)                             \
  if (Name::IsFor(HypersOf<Name>(choice).data())) { \
    names.push_back(Name::kName);                   \
  }
  SHARD_FORMULAS(SHARD_ADD)
#undef SHARD_ADD
  return names;
}

// Returns the names of the optimizers that accept a choice without a conflict.
std::vector<std::string> NamesAllowed(const HyperValues& choice) {
  std::vector<std::string> names;
#define SHARD_ADD(Name)                                           \
  if (Name::Conflict(HypersOf<Name>(choice).data()) == nullptr) { \
    names.push_back(Name::kName);                                 \
  }
  SHARD_FORMULAS(SHARD_ADD)
#undef SHARD_ADD
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// Exactly one form of an optimizer serves any choice of hyperparameters without
// a conflict, and its forms stand together.
TEST(FormulasTest, OneFormServesEachChoice) {
  std::vector<std::string> known;
#define SHARD_ADD(Name) known.push_back(Name::kName);
  SHARD_FORMULAS(SHARD_ADD)
#undef SHARD_ADD
  known.erase(std::unique(known.begin(), known.end()), known.end());
  EXPECT_EQ(std::set<std::string>(known.begin(), known.end()).size(),
            known.size());
  for (const double amsgrad : {0.0, 1.0}) {
    for (const double centered : {0.0, 1.0}) {
      for (const double momentum : {0.0, 0.9}) {
        EXPECT_EQ(NamesServed({{"amsgrad", amsgrad},
                               {"centered", centered},
                               {"momentum", momentum}}),
                  known);
      }
    }
  }
  for (const double amsgrad : {0.0, 1.0}) {
    for (double profile = 0; profile < std::size(AdamMoments::kProfiles);
         ++profile) {
      for (double states = 0; states < std::size(kStorages); ++states) {
        const HyperValues choice = {
            {"amsgrad", amsgrad}, {"profile", profile}, {"states", states}};
        EXPECT_EQ(NamesServed(choice), NamesAllowed(choice))
            << AdamMoments::kProfiles[static_cast<size_t>(profile)]
            << ", amsgrad=" << amsgrad;
      }
    }
  }
}

// The choices that are allowed, listed by hand: a conflict too many would hide
// a form.
TEST(FormulasTest, AdamHasTheProfilesWithAnL2Penalty) {
  const auto allows = [](double profile, double amsgrad, const char* name) {
    const auto names =
        NamesAllowed({{"profile", profile}, {"amsgrad", amsgrad}});
    return std::count(names.begin(), names.end(), name) == 1;
  };
  for (const int profile :
       {AdamMoments::kTorch, AdamMoments::kApex, AdamMoments::kDeepSpeedCpu}) {
    EXPECT_TRUE(allows(profile, 0, "adam")) << profile;
  }
  for (const int profile :
       {AdamMoments::kLlmc, AdamMoments::kLlmcCpu, AdamMoments::kGgml}) {
    EXPECT_FALSE(allows(profile, 0, "adam")) << profile;
  }
  for (int profile = 0; profile < 6; ++profile) {
    const bool torch = profile == AdamMoments::kTorch;
    EXPECT_TRUE(allows(profile, 0, "adamw")) << profile;
    EXPECT_EQ(allows(profile, 1, "adamw"), torch) << profile;
    EXPECT_EQ(allows(profile, 1, "adam"), torch) << profile;
  }
}

// Some formula uses all of kMaxStates.
TEST(FormulasTest, MaxStatesIsNotTooLarge) {
  int most = 0;
#define SHARD_COMPARE(Name) most = std::max(most, Name::kNumStates);
  SHARD_FORMULAS(SHARD_COMPARE)
#undef SHARD_COMPARE
  EXPECT_EQ(most, kMaxStates);
}

// Expects steps to go downhill on p p / 2 from both sides, and uphill with
// maximize.
template <class F, template <class> class Rule>
void ExpectDescent(double maximize) {
  const auto hypers = HypersOf<F>({{"maximize", maximize}});
  const std::vector<float> start = {1.0f, -1.0f};
  Reference<F, Rule> reference(start, hypers);
  for (int64_t step = 1; step <= 5; ++step) {
    const std::vector<float> gradient(reference.param().begin(),
                                      reference.param().end());
    reference.Step({gradient}, 1, step);
  }
  const double distance = std::abs(reference.param()[0]);
  if (maximize != 0) {
    EXPECT_GT(distance, 1);
  } else {
    EXPECT_LT(distance, 1);
  }
  EXPECT_DOUBLE_EQ(reference.param()[1], -reference.param()[0]);
}

template <class F>
bool HasMaximize() {
  for (const Hyper& hyper : F::kHypers) {
    if (std::string_view(hyper.name) == "maximize") return true;
  }
  return false;
}

// Expects the same of a whole matrix.
template <class F>
void ExpectTensorDescent(double maximize) {
  TensorReference<F> reference({1, 2}, {1.0f, -1.0f},
                               HypersOf<F>({{"maximize", maximize}}));
  for (int64_t step = 1; step <= 5; ++step) {
    reference.Step({reference.param().begin(), reference.param().end()}, step);
  }
  const double distance = std::abs(reference.param()[0]);
  if (maximize != 0) {
    EXPECT_GT(distance, 1);
  } else {
    EXPECT_LT(distance, 1);
  }
  EXPECT_DOUBLE_EQ(reference.param()[1], -reference.param()[0]);
}

TEST(FormulasTest, GoesDownhillOrUp){
#define SHARD_CHECK(Name)                          \
  {                                                \
    SCOPED_TRACE(#Name);                           \
    ExpectDescent<Name, formula::Name##Rule>(0);   \
    if (HasMaximize<Name>()) {                     \
      ExpectDescent<Name, formula::Name##Rule>(1); \
    }                                              \
  }
    SHARD_ELEMENT_FORMULAS(SHARD_CHECK)
#undef SHARD_CHECK
#define SHARD_CHECK(Name)           \
  {                                 \
    SCOPED_TRACE(#Name);            \
    ExpectTensorDescent<Name>(0);   \
    if (HasMaximize<Name>()) {      \
      ExpectTensorDescent<Name>(1); \
    }                               \
  }
        SHARD_TENSOR_FORMULAS(SHARD_CHECK)
#undef SHARD_CHECK
}

// As in torch, Rprop reads lr on the first step only.
TEST(FormulasTest, RpropReadsLrOnTheFirstStepOnly) {
  const auto first = HypersOf<Rprop>({{"lr", 0.25}});
  const auto later = HypersOf<Rprop>({{"lr", 9}});
  double p = 1;
  double states[kMaxStates] = {};
  const DoubleArithmetic a;
  formula::RpropRule<DoubleArithmetic>(a, Rprop::Prepare(first.data(), 1))
      .Update(3, p, states);
  EXPECT_DOUBLE_EQ(p, 0.75);
  // The direction is the same, so the step grows: 0.25 * 1.2.
  formula::RpropRule<DoubleArithmetic>(a, Rprop::Prepare(later.data(), 2))
      .Update(1e-3, p, states);
  EXPECT_DOUBLE_EQ(p, 0.45);
  // The direction is the other one: the step is halved and not taken, and the
  // gradient forgotten ...
  formula::RpropRule<DoubleArithmetic>(a, Rprop::Prepare(later.data(), 3))
      .Update(-1, p, states);
  EXPECT_DOUBLE_EQ(p, 0.45);
  EXPECT_DOUBLE_EQ(states[0], 0);
  // ... so that the next direction counts as neither.
  formula::RpropRule<DoubleArithmetic>(a, Rprop::Prepare(later.data(), 4))
      .Update(-1, p, states);
  EXPECT_DOUBLE_EQ(p, 0.6);
}

TEST(FormulasTest, AdagradStartsFromTheInitialValue) {
  const auto hypers = HypersOf<Adagrad>(
      {{"lr", 0.5}, {"initial_accumulator_value", 7}, {"lr_decay", 1}});
  double p = 1;
  double states[kMaxStates] = {};
  const DoubleArithmetic a;
  formula::AdagradRule<DoubleArithmetic>(a, Adagrad::Prepare(hypers.data(), 1))
      .Update(3, p, states);
  EXPECT_DOUBLE_EQ(states[0], 16);
  EXPECT_NEAR(p, 1 - 0.5 * 3 / 4, 1e-9);
  formula::AdagradRule<DoubleArithmetic>(a, Adagrad::Prepare(hypers.data(), 2))
      .Update(3, p, states);
  EXPECT_DOUBLE_EQ(states[0], 25);
  EXPECT_NEAR(p, 0.625 - 0.25 * 3 / 5, 1e-9);
}

}  // namespace
}  // namespace shard::formulas_test
