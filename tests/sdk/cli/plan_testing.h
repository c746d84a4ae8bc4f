// SPDX-License-Identifier: Apache-2.0
//
// Plans of one small model, by `shardctl plan`.

#ifndef SHARD_TESTS_SDK_CLI_PLAN_TESTING_H_
#define SHARD_TESTS_SDK_CLI_PLAN_TESTING_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/sdk/cli/checkpoint_testing.h"

namespace shardctl_testing {

using Json = nlohmann::json;

// The model has 4 blocks of 1024 x 1024 = 2^20 elements, and 2^20 more, tied: 5
// x 2^20.
inline constexpr const char* kModel = R"({
  "class": "Net",
  "params": [{"name": "embed", "shape": [1024, 1024]}],
  "modules": [{"name": "h", "class": "Block", "count": 4,
               "params": [{"name": "w", "shape": [1024, 1024]}]}],
  "ties": [{"name": "head.out.weight", "param": "embed"}]
})";
inline constexpr double kMiB = 1 << 20;

class PlanFixture : public ::testing::Test {
 protected:
  PlanFixture() { WriteFile(model_, kModel); }

  Result Plan(std::vector<std::string> options) {
    options.insert(options.begin(), {"plan", model_});
    return RunShardctl(options);
  }
  Json PlanJson(std::vector<std::string> options) {
    options.push_back("--json");
    const Result result = Plan(options);
    EXPECT_EQ(result.code, 0) << result.error;
    return ParseJson(result);
  }

  Folder folder_;
  const std::string model_ = folder_ / "model.json";
};

}  // namespace shardctl_testing

#endif  // SHARD_TESTS_SDK_CLI_PLAN_TESTING_H_
