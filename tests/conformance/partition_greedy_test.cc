// SPDX-License-Identifier: Apache-2.0
//
// Compares the greedy partition with ZeroRedundancyOptimizer's: exactly, order
// included.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/partition/greedy.h"
#include "tests/conformance/golden.h"
#include "tests/core/base/expect_status.h"

namespace shard::partition_greedy_test {
namespace {

TEST(GoldenPartition, Greedy) {
  const nlohmann::json golden = LoadGolden("partition_greedy.json");
  size_t checked = 0;
  for (const nlohmann::json& expected : golden["cases"]) {
    SCOPED_TRACE(::testing::Message() << "case " << checked);
    const int world_size = expected["world_size"];
    const std::vector<std::vector<int64_t>> groups = expected["groups"];
    const auto assignment = PartitionGreedy(groups, world_size);
    ASSERT_OK(assignment);
    std::vector<size_t> sizes;
    for (const auto& group : groups) sizes.push_back(group.size());
    const nlohmann::json actual = ParamsPerRank(*assignment, sizes, world_size);
    EXPECT_EQ(actual, expected["params_per_rank"]);
    ++checked;
  }
  EXPECT_EQ(checked, 24u);
}

}  // namespace
}  // namespace shard::partition_greedy_test
