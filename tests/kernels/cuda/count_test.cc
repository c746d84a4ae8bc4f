// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/count.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "tests/kernels/cuda/run_kernel.h"

namespace shard::count_test {
namespace {

// One thread counts, whatever the launch.
TEST(CountTest, AddsOne) {
  for (const testing::Grid& grid : testing::kGrids) {
    uint32_t count = std::numeric_limits<uint32_t>::max() - 1;
    uint32_t copy = 7;
    const cuda::CountArgs args = {&count, &copy};
    testing::RunKernel("shard_count", args, grid);
    EXPECT_EQ(count, std::numeric_limits<uint32_t>::max());
    EXPECT_EQ(copy, count);
    testing::RunKernel("shard_count", args, grid);
    EXPECT_EQ(count, 0u);
    EXPECT_EQ(copy, 0u);
  }
}

}  // namespace
}  // namespace shard::count_test
