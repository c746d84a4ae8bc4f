// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's own optimizer runs, number for number, in every SIMD target this
// machine has: parameters at the recorded steps, states at the end.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/optim/optimizer.h"
#include "kernels/cpu/fused_step.h"
#include "tests/conformance/golden.h"

namespace shard {
namespace {

using nlohmann::json;

// The optimizer of a group in our text form.
std::string TextOf(const std::string& name, const json& group) {
  // Pairs that are hyperparameters of their own here.
  static const std::map<std::string, std::array<const char*, 2>> kPairs = {
      {"betas", {"beta1", "beta2"}},
      {"etas", {"etaminus", "etaplus"}},
      {"step_sizes", {"step_size_min", "step_size_max"}},
  };
  std::string text;
  for (const char c : name) text += static_cast<char>(std::tolower(c));
  text += '?';
  const auto add = [&text](std::string_view key, double value) {
    StrAppend(&text, text.back() == '?' ? "" : "&", key, "=", value);
  };
  for (const auto& [key, value] : group.items()) {
    if (key == "foreach") continue;
    // torch fills the sums from the argument of Adagrad's constructor, which
    // these runs left at 0, and does not look at the group's value.
    if (key == "initial_accumulator_value") continue;
    const auto pair = kPairs.find(key);
    if (pair != kPairs.end()) {
      for (size_t i = 0; i < 2; ++i) add(pair->second[i], value.at(i));
    } else if (value.is_boolean()) {
      add(key, value.get<bool>() ? 1 : 0);
    } else {
      add(key, value);
    }
  }
  return text;
}

// One group of a case on its way through the steps.
class GroupRun {
 public:
  GroupRun(const json& golden, size_t group, const std::string& text)
      : golden_(golden), group_(group), text_(text) {}

  // Compares at every recorded step, and the states at the end.
  void Run() {
    auto optimizer = Optimizer::Parse(text_);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status().ToString();
    optimizer_.emplace(*std::move(optimizer));
    param_ = golden_.at("init")[group_].get<std::vector<float>>();
    for (const float p : param_) largest_.push_back(std::abs(p));
    states_.assign(optimizer_->state_names().size(),
                   std::vector<float>(param_.size()));
    largest_state_.assign(states_.size(), std::vector<double>(param_.size()));

    const json& change = golden_.at("lr_change");
    const auto steps = golden_.at("steps").get<int64_t>();
    for (int64_t step = 1; step <= steps; ++step) {
      if (!change.is_null() && change[0] == step - 1) {
        ASSERT_TRUE(optimizer_->Set("lr", change[1]).ok());
      }
      Step(step);
      const auto recorded =
          golden_.at("params_after").find(std::to_string(step));
      if (recorded == golden_.at("params_after").end()) continue;
      CompareParams(step, (*recorded)[group_].get<std::vector<double>>());
    }
    CompareStates(steps, golden_.at("state_after")[group_]);
  }

 private:
  void Step(int64_t step) {
    const auto gradient =
        golden_.at("grads")[group_][static_cast<size_t>(step - 1)]
            .get<std::vector<float>>();
    const void* source = gradient.data();
    std::vector<void*> states;
    for (auto& state : states_) states.push_back(state.data());
    FusedStepArgs args;
    args.gradients = {&source, 1, DType::kF32};
    args.param = param_.data();
    args.states = states.data();
    args.count = param_.size();
    FusedStep(optimizer_->formula(), optimizer_->hypers().data(), step, args);
    for (size_t s = 0; s < states_.size(); ++s) {
      for (size_t i = 0; i < param_.size(); ++i) {
        largest_state_[s][i] =
            std::max<double>(largest_state_[s][i], std::abs(states_[s][i]));
      }
    }
  }

  // 2e-7 + 2e-6 m, m the largest magnitude of that element so far.
  void CompareParams(int64_t step, const std::vector<double>& expected) {
    ASSERT_EQ(expected.size(), param_.size());
    for (size_t i = 0; i < param_.size(); ++i) {
      largest_[i] = std::max(largest_[i], std::abs(expected[i]));
      EXPECT_NEAR(static_cast<double>(param_[i]), expected[i],
                  2e-7 + 2e-6 * largest_[i])
          << text_ << ", step " << step << ", element " << i << ", "
          << KernelTargetName();
    }
  }

  // 1e-6 m, m the largest magnitude that element of the state ever had: ten
  // steps round some ten times by at most 2^-24 = 6e-8 of it, and so does
  // torch. Nothing is allowed beyond: second moments of 1e-24 are compared too.
  // (Measured: at most 0.6e-6 m.)
  void CompareStates(int64_t steps, const json& golden) {
    // SGD has no "step".
    EXPECT_EQ(golden.value("step", steps), steps) << text_;
    EXPECT_EQ(golden.size() - golden.count("step"), states_.size()) << text_;
    for (size_t s = 0; s < states_.size(); ++s) {
      const std::string& name = optimizer_->state_names()[s];
      ASSERT_TRUE(golden.contains(name)) << text_ << ", " << name;
      const auto expected = golden.at(name).get<std::vector<double>>();
      ASSERT_EQ(expected.size(), param_.size());
      for (size_t i = 0; i < param_.size(); ++i) {
        const double largest =
            std::max(largest_state_[s][i], std::abs(expected[i]));
        EXPECT_NEAR(static_cast<double>(states_[s][i]), expected[i],
                    1e-6 * largest)
            << text_ << ", " << name << ", element " << i << ", "
            << KernelTargetName();
      }
    }
  }

  const json& golden_;
  const size_t group_;
  const std::string text_;
  std::optional<Optimizer> optimizer_;
  std::vector<float> param_;
  std::vector<std::vector<float>> states_;
  // The largest magnitude of each element so far.
  std::vector<double> largest_;
  std::vector<std::vector<double>> largest_state_;
};

TEST(OptimizersTest, MatchTorch) {
  const json document = LoadGolden("optimizers.json");
  const json cases = document.value("cases", json::array());
  std::set<std::string> names;
  int groups = 0;
  for (const json& golden : cases) {
    const std::string name = golden.at("optimizer");
    names.insert(name);
    for (size_t g = 0; g < golden.at("groups").size(); ++g) {
      const std::string text = TextOf(name, golden.at("groups")[g]);
      ++groups;
      const auto supported = static_cast<uint32_t>(hwy::SupportedTargets());
      for (uint32_t bit = 1; bit != 0; bit <<= 1) {
        if ((supported & bit) == 0) continue;
        hwy::SetSupportedTargetsForTest(bit);
        GroupRun(golden, g, text).Run();
      }
      hwy::SetSupportedTargetsForTest(0);
    }
  }
  EXPECT_EQ(cases.size(), 49u);
  EXPECT_EQ(groups, 68);
  EXPECT_EQ(names.size(), 8u);
}

}  // namespace
}  // namespace shard
