// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's own optimizer runs, number for number, in every SIMD target this
// machine has. A param group that uses what libshard does not have yet is left
// out; how many remain is asserted, so that none is left out unnoticed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/optim/optimizer.h"
#include "kernels/cpu/fused_step.h"
#include "tests/conformance/golden.h"

#include <hwy/targets.h>

namespace shard {
namespace {

using nlohmann::json;

// The optimizer of a group in our text form; nullopt where we have none.
std::optional<std::string> TextOf(const std::string& name, const json& group) {
  std::string text;
  if (name == "AdamW" && !group.at("amsgrad")) {
    text = StrCat("adamw?beta1=", group.at("betas")[0].get<double>(),
                  "&beta2=", group.at("betas")[1].get<double>());
  } else if (name == "SGD") {
    text = "sgd?";
  } else {
    return std::nullopt;
  }
  for (const auto& [key, value] : group.items()) {
    if (key == "betas" || key == "amsgrad" || key == "foreach") continue;
    const double number =
        value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<double>();
    StrAppend(&text, text.back() == '?' ? "" : "&", key, "=", number);
  }
  return text;
}

// Runs one group of a case and compares at every recorded step.
void RunGroup(const json& golden, size_t g, const std::string& text) {
  auto optimizer = Optimizer::Parse(text);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status().ToString();
  auto param = golden.at("init")[g].get<std::vector<float>>();
  // The largest magnitude of each element among the recorded steps so far.
  std::vector<double> largest;
  for (const float p : param) largest.push_back(std::abs(p));
  std::vector<std::vector<float>> states(kMaxStates,
                                         std::vector<float>(param.size()));
  std::vector<float*> pointers;
  for (auto& state : states) pointers.push_back(state.data());

  const json& change = golden.at("lr_change");
  for (int64_t step = 1; step <= golden.at("steps").get<int64_t>(); ++step) {
    if (!change.is_null() && change[0] == step - 1) {
      ASSERT_TRUE(optimizer->Set("lr", change[1]).ok());
    }
    const auto gradient =
        golden.at("grads")[g][static_cast<size_t>(step - 1)]
            .get<std::vector<float>>();
    const float* source = gradient.data();
    FusedStepArgs args;
    args.sources = &source;
    args.num_sources = 1;
    args.gradient_scale = 1;
    args.param = param.data();
    args.states = pointers.data();
    args.count = param.size();
    FusedStep(optimizer->formula(), optimizer->hypers().data(), step, args);

    const auto recorded = golden.at("params_after").find(std::to_string(step));
    if (recorded == golden.at("params_after").end()) continue;
    const auto expected = (*recorded)[g].get<std::vector<double>>();
    for (size_t i = 0; i < param.size(); ++i) {
      largest[i] = std::max(largest[i], std::abs(expected[i]));
      EXPECT_NEAR(static_cast<double>(param[i]), expected[i],
                  2e-7 + 2e-6 * largest[i])
          << text << ", step " << step << ", element " << i << ", "
          << KernelTargetName();
    }
  }
}

TEST(OptimizersTest, MatchTorch) {
  const json document = LoadGolden("optimizers.json");
  int groups = 0;
  for (const json& golden : document.value("cases", json::array())) {
    const std::string name = golden.at("optimizer");
    for (size_t g = 0; g < golden.at("groups").size(); ++g) {
      const auto text = TextOf(name, golden.at("groups")[g]);
      if (!text) continue;
      ++groups;
      const auto supported = static_cast<uint32_t>(hwy::SupportedTargets());
      for (uint32_t bit = 1; bit != 0; bit <<= 1) {
        if ((supported & bit) == 0) continue;
        hwy::SetSupportedTargetsForTest(bit);
        RunGroup(golden, g, *text);
      }
      hwy::SetSupportedTargetsForTest(0);
    }
  }
  EXPECT_EQ(groups, 15);
}

}  // namespace
}  // namespace shard
