// SPDX-License-Identifier: Apache-2.0
//
// LAMB, worked out by hand: torch has none to compare with.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/formula/all.h"
#include "tests/kernels/formula/tensor_reference.h"

namespace shard::lamb_test {
namespace {

using LambReference = TensorReference<Lamb>;

TEST(LambTest, ByHand) {
  LambReference lamb({2}, {3.0f, -4.0f},
                     HypersOf<Lamb>({{"lr", 0.1},
                                     {"beta1", 0.5},
                                     {"beta2", 0.75},
                                     {"eps", 1},
                                     {"weight_decay", 0.25}}));
  // m / (1 - 0.5) = g, v / (1 - 0.75) = g g: g / (|g| + 1) + 0.25 p.
  lamb.Step({1.0f, 3.0f}, 1);
  EXPECT_DOUBLE_EQ(lamb.state(0)[0], 0.5);
  EXPECT_DOUBLE_EQ(lamb.state(0)[1], 1.5);
  EXPECT_DOUBLE_EQ(lamb.state(1)[0], 0.25);
  EXPECT_DOUBLE_EQ(lamb.state(1)[1], 2.25);
  // u = (0.5 + 0.75, 0.75 - 1); |p| = 5, |u| = sqrt(1.625).
  const double ratio = 5 / std::sqrt(1.625);
  const double p0 = 3 - 0.1 * ratio * 1.25;
  const double p1 = -4 + 0.1 * ratio * 0.25;
  EXPECT_DOUBLE_EQ(lamb.param()[0], p0);
  EXPECT_DOUBLE_EQ(lamb.param()[1], p1);

  // m = (-0.75, 0.75) / 0.75; v = (1.1875, 1.6875) / 0.4375.
  lamb.Step({-2.0f, 0.0f}, 2);
  EXPECT_DOUBLE_EQ(lamb.state(0)[0], -0.75);
  EXPECT_DOUBLE_EQ(lamb.state(0)[1], 0.75);
  EXPECT_DOUBLE_EQ(lamb.state(1)[0], 1.1875);
  EXPECT_DOUBLE_EQ(lamb.state(1)[1], 1.6875);
  const double u0 = -1 / (std::sqrt(1.1875 / 0.4375) + 1) + 0.25 * p0;
  const double u1 = 1 / (std::sqrt(1.6875 / 0.4375) + 1) + 0.25 * p1;
  const double second = std::hypot(p0, p1) / std::hypot(u0, u1);
  EXPECT_NEAR(lamb.param()[0], p0 - 0.1 * second * u0, 1e-15);
  EXPECT_NEAR(lamb.param()[1], p1 - 0.1 * second * u1, 1e-15);
}

// Without a gradient u is weight decay alone, and the trust ratio undoes its
// size: p moves by lr |p|.
TEST(LambTest, DecayAloneMovesByLr) {
  for (const double weight_decay : {1e-6, 0.01, 100.0}) {
    LambReference lamb({3}, {1.0f, 0.0f, -2.0f},
                       HypersOf<Lamb>({{"weight_decay", weight_decay}}));
    lamb.Step({0.0f, 0.0f, 0.0f}, 1);
    EXPECT_NEAR(lamb.param()[0], 1 - 1e-3, 1e-15);
    EXPECT_EQ(lamb.param()[1], 0);
    EXPECT_NEAR(lamb.param()[2], -2 + 2e-3, 1e-15);
  }
}

// Where |p| is 0 the ratio is 1, or a parameter that starts at 0 would stay
// there.
TEST(LambTest, AZeroParameterMovesAsAdam) {
  LambReference lamb({2}, {0.0f, 0.0f}, HypersOf<Lamb>({{"eps", 0}}));
  lamb.Step({5.0f, -1e-6f}, 1);
  EXPECT_NEAR(lamb.param()[0], -1e-3, 1e-15);
  EXPECT_NEAR(lamb.param()[1], 1e-3, 1e-15);
}

// Where |u| is 0 there is nothing to move by, and no 0 / 0.
TEST(LambTest, AZeroUpdateLeavesTheParameter) {
  LambReference lamb({2}, {1.0f, 2.0f}, HypersOf<Lamb>({{"weight_decay", 0}}));
  lamb.Step({0.0f, 0.0f}, 1);
  EXPECT_EQ(lamb.param()[0], 1);
  EXPECT_EQ(lamb.param()[1], 2);
  LambReference both({1}, {0.0f}, HypersOf<Lamb>());
  both.Step({0.0f}, 1);
  EXPECT_EQ(both.param()[0], 0);
}

// The ratio has no bound: |p| = 200, |u| = 1 gives 200, where others stop at 10
// or at 1. The ratio does not need weight decay.
TEST(LambTest, TheRatioIsNotClamped) {
  LambReference lamb({1}, {200.0f},
                     HypersOf<Lamb>({{"eps", 0}, {"weight_decay", 0}}));
  lamb.Step({7.0f}, 1);
  EXPECT_NEAR(lamb.param()[0], 200 - 1e-3 * 200, 1e-12);
}

// maximize negates the gradient, not weight decay.
TEST(LambTest, MaximizeIsTheOtherGradient) {
  const std::vector<float> start = {0.5f, -2.0f, 3.0f};
  LambReference up({3}, start, HypersOf<Lamb>({{"maximize", 1}}));
  LambReference down({3}, start, HypersOf<Lamb>());
  for (int step = 1; step <= 3; ++step) {
    up.Step({1.0f, -0.25f, 4.0f}, step);
    down.Step({-1.0f, 0.25f, -4.0f}, step);
  }
  for (size_t i = 0; i < start.size(); ++i) {
    EXPECT_DOUBLE_EQ(up.param()[i], down.param()[i]);
  }
}

}  // namespace
}  // namespace shard::lamb_test
