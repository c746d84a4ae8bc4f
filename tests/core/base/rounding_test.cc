// SPDX-License-Identifier: Apache-2.0

#include "core/base/rounding.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace shard::rounding_test {
namespace {

TEST(Rounding, GivesTheNearestMultiples) {
  EXPECT_EQ(RoundDown(0, 8), 0);
  EXPECT_EQ(RoundUp(0, 8), 0);
  for (int value = 9; value < 16; ++value) {
    EXPECT_EQ(RoundDown(value, 8), 8);
    EXPECT_EQ(RoundUp(value, 8), 16);
  }
  EXPECT_EQ(RoundDown(16, 8), 16);
  EXPECT_EQ(RoundUp(16, 8), 16);
  EXPECT_EQ(RoundUp(uint64_t{10}, 3), 12u);
}

// The multiple need not be a power of two, and the result may be the largest
// of its type.
TEST(Rounding, ReachesTheEndOfTheType) {
  EXPECT_EQ(RoundDown(UINT64_MAX, 4096), UINT64_MAX - 4095);
  EXPECT_EQ(RoundUp(UINT64_MAX - 5000, 4096), UINT64_MAX - 4095);
  EXPECT_EQ(RoundUp(int64_t{7}, 5), 10);
}

}  // namespace
}  // namespace shard::rounding_test
