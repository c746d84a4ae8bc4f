// SPDX-License-Identifier: Apache-2.0
//
// Lion, worked out by hand: torch has none to compare with.

#include <gtest/gtest.h>

#include "kernels/formula/all.h"
#include "tests/kernels/formula/reference.h"

namespace shard::lion_test {
namespace {

class LionTest : public ::testing::Test {
 protected:
  void Step(double g, const HyperValues& values) {
    const auto hypers = HypersOf<Lion>(values);
    const formula::LionRule<DoubleArithmetic> rule(
        DoubleArithmetic(), Lion::Prepare(hypers.data(), ++t_));
    rule.Update(g, p_, &m_);
  }

  int64_t t_ = 0;
  double p_ = 1;
  double m_ = 0;
};

TEST_F(LionTest, ByHand) {
  const HyperValues values = {
      {"lr", 0.1}, {"beta1", 0.75}, {"beta2", 0.5}, {"weight_decay", 0.5}};
  // c = 0.25 * 4 > 0; p = 1 * 0.95 - 0.1; m = 0.5 * 4.
  Step(4, values);
  EXPECT_DOUBLE_EQ(p_, 0.85);
  EXPECT_DOUBLE_EQ(m_, 2);
  // c = 0.75 * 2 - 0.25 * 4 > 0: momentum outvotes the gradient.
  // p = 0.85 * 0.95 - 0.1; m = 0.5 * 2 - 0.5 * 4.
  Step(-4, values);
  EXPECT_DOUBLE_EQ(p_, 0.7075);
  EXPECT_DOUBLE_EQ(m_, -1);
  // c = -0.75 + 0.25 * 3 = 0: only the decay. m = -0.5 + 1.5.
  Step(3, values);
  EXPECT_DOUBLE_EQ(p_, 0.672125);
  EXPECT_DOUBLE_EQ(m_, 1);
  // c = 0.75 - 0.25 * 5 < 0. p = 0.672125 * 0.95 + 0.1; m = 0.5 - 2.5.
  Step(-5, values);
  EXPECT_DOUBLE_EQ(p_, 0.73851875);
  EXPECT_DOUBLE_EQ(m_, -2);
}

TEST_F(LionTest, DefaultsAreThePapers) {
  Step(0.5, {});
  EXPECT_DOUBLE_EQ(p_, 1 - 1e-4);
  EXPECT_DOUBLE_EQ(m_, 0.5 * (1 - 0.99));
}

// The size of a gradient does not matter, only its sign.
TEST_F(LionTest, MovesByLrAlone) {
  Step(1e-30, {{"lr", 0.25}});
  EXPECT_DOUBLE_EQ(p_, 0.75);
  Step(0, {{"lr", 0.25}});
  EXPECT_DOUBLE_EQ(p_, 0.5);
}

}  // namespace
}  // namespace shard::lion_test
