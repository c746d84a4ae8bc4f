// SPDX-License-Identifier: Apache-2.0

#include "core/partition/manual.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/core/base/expect_status.h"

namespace shard {
namespace {

TEST(PartitionManual, TakesWhatTheHostSays) {
  const auto result = PartitionManual({{4, 0}, {}, {2, 1}}, 5, 3);
  ASSERT_OK(result);
  EXPECT_EQ(result->owners, (std::vector<int32_t>{0, 2, 2, -1, 0}));
  EXPECT_EQ(result->order, (std::vector<int32_t>{4, 0, 2, 1}));
}

TEST(PartitionManual, MoreThanOneGroup) {
  const auto result = PartitionManual({{3, 0}, {1, 2}}, 4, 2);
  ASSERT_OK(result);
  using Lists = std::vector<std::vector<std::vector<int32_t>>>;
  EXPECT_EQ(ParamsPerRank(*result, {2, 2}, 2), (Lists{{{0}, {3}}, {{1}, {2}}}));
}

TEST(PartitionManual, NothingIsASubset) {
  const auto result = PartitionManual({{}, {}}, 2, 2);
  ASSERT_OK(result);
  EXPECT_EQ(result->owners, (std::vector<int32_t>{-1, -1}));
  EXPECT_TRUE(PartitionManual({{}}, 0, 1)->owners.empty());
}

TEST(PartitionManual, BadInputsAreNamed) {
  ExpectInvalid(PartitionManual({}, 1, 0), {"world size 0"});
  ExpectInvalid(PartitionManual({{0}}, -2, 1), {"-2"});
  ExpectInvalid(PartitionManual({{0}}, 1, 2), {"got 1", "world size 2"});
  ExpectInvalid(PartitionManual({{0}, {3}}, 3, 2), {"rank 1", "parameter 3"});
  ExpectInvalid(PartitionManual({{-1}}, 3, 1), {"rank 0", "parameter -1"});
  ExpectInvalid(PartitionManual({{2}, {1, 2}}, 3, 2),
                {"parameter 2", "rank 0", "rank 1"});
  ExpectInvalid(PartitionManual({{2, 2}}, 3, 1), {"parameter 2"});
}

}  // namespace
}  // namespace shard
