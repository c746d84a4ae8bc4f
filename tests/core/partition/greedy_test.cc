// SPDX-License-Identifier: Apache-2.0

#include "core/partition/greedy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/core/base/expect_status.h"

namespace shard {
namespace {

// Computes the partition by its definition, in O(n W).
Assignment Reference(const std::vector<std::vector<int64_t>>& groups,
                     int world_size) {
  std::vector<int64_t> loads(static_cast<size_t>(world_size), 0);
  Assignment assignment;
  for (const std::vector<int64_t>& group : groups) {
    const size_t base = assignment.owners.size();
    std::vector<size_t> order(group.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return group[a] > group[b]; });
    assignment.owners.resize(base + group.size());
    for (const size_t i : order) {
      const auto least = std::min_element(loads.begin(), loads.end());
      *least += group[i];
      assignment.owners[base + i] = static_cast<int32_t>(least - loads.begin());
      assignment.order.push_back(static_cast<int32_t>(base + i));
    }
  }
  return assignment;
}

TEST(PartitionGreedy, LargestFirstToTheLeastLoaded) {
  const auto result = PartitionGreedy({{1, 5, 3, 5}}, 2);
  ASSERT_OK(result);
  EXPECT_EQ(result->order, (std::vector<int32_t>{1, 3, 2, 0}));
  EXPECT_EQ(result->owners, (std::vector<int32_t>{1, 0, 0, 1}));
}

TEST(PartitionGreedy, EqualsTheDefinition) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int world_size = 1 + static_cast<int>(random() % 70);
    std::vector<std::vector<int64_t>> groups(1 + random() % 3);
    const int64_t magnitudes[] = {3, 100, 1 << 20, int64_t{1} << 40};
    for (std::vector<int64_t>& group : groups) {
      group.resize(random() % 200);
      const int64_t limit = magnitudes[random() % 4];
      for (int64_t& numel : group) {
        numel = static_cast<int64_t>(random() * uint64_t{random()} %
                                     static_cast<uint64_t>(limit));
      }
    }
    const auto result = PartitionGreedy(groups, world_size);
    ASSERT_OK(result);
    const Assignment expected = Reference(groups, world_size);
    EXPECT_EQ(result->owners, expected.owners);
    EXPECT_EQ(result->order, expected.order);
  }
}

TEST(PartitionGreedy, AddingAGroupMovesNoEarlierParameter) {
  const std::vector<std::vector<int64_t>> groups = {{7, 2, 9, 4}, {8, 8, 1}};
  GreedyPartitioner partitioner(3);
  Assignment assignment;
  ASSERT_OK(partitioner.AddGroup(groups[0], &assignment));
  const std::vector<int32_t> first = assignment.owners;
  ASSERT_OK(partitioner.AddGroup(groups[1], &assignment));
  EXPECT_TRUE(
      std::equal(first.begin(), first.end(), assignment.owners.begin()));
  EXPECT_EQ(assignment.owners, PartitionGreedy(groups, 3)->owners);
}

TEST(PartitionGreedy, EdgeCases) {
  EXPECT_TRUE(PartitionGreedy({}, 4)->owners.empty());
  EXPECT_TRUE(PartitionGreedy({{}, {}}, 4)->owners.empty());
  // Parameters without elements add no load, so all go to the lowest rank.
  EXPECT_EQ(PartitionGreedy({{0, 0, 0}}, 4)->owners,
            (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(PartitionGreedy({{5}}, 16384)->owners, (std::vector<int32_t>{0}));
  EXPECT_EQ(
      PartitionGreedy({{std::numeric_limits<int64_t>::max(), 0}}, 2)->owners,
      (std::vector<int32_t>{0, 1}));
}

TEST(PartitionGreedy, BadInputsAreNamed) {
  ExpectInvalid(PartitionGreedy({{1}}, 0), {"world size 0"});
  ExpectInvalid(PartitionGreedy({{1}}, -4), {"world size -4"});
  ExpectInvalid(PartitionGreedy({{1, 2}, {3, -7}}, 2),
                {"parameter 3", "-7 elements"});
  ExpectInvalid(
      PartitionGreedy({{std::numeric_limits<int64_t>::max()}, {1}}, 2),
      {"2 parameters", "2^63-1"});
}

TEST(PartitionGreedy, AnErrorLeavesThePartitionerAsItWas) {
  GreedyPartitioner partitioner(2);
  Assignment assignment;
  ASSERT_OK(partitioner.AddGroup({4, 4, 4}, &assignment));
  ExpectInvalid(partitioner.AddGroup({9, -1}, &assignment), {"-1"});
  ASSERT_OK(partitioner.AddGroup({1}, &assignment));
  EXPECT_EQ(assignment.owners, (std::vector<int32_t>{0, 1, 0, 1}));
}

TEST(ParamsPerRank, EveryRankHasEveryGroup) {
  const auto result = PartitionGreedy({{5, 3}, {1}}, 3);
  ASSERT_OK(result);
  const auto ranks = ParamsPerRank(*result, {2, 1}, 3);
  using Lists = std::vector<std::vector<std::vector<int32_t>>>;
  EXPECT_EQ(ranks, (Lists{{{0}, {}}, {{1}, {}}, {{}, {2}}}));
}

}  // namespace
}  // namespace shard
