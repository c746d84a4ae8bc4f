// SPDX-License-Identifier: Apache-2.0
//
// Muon's passes, worked out by hand, and the values that it derives from a
// shape. Whole steps: tests/kernels/cpu/muon_step_test.cc.

#include "kernels/formula/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "tests/kernels/formula/reference.h"

namespace shard::muon_test {
namespace {

double Direction(double g, double* buffer, const HyperValues& values) {
  const auto hypers = HypersOf<Muon>(values);
  return formula::MuonMomentumRule<DoubleArithmetic>(
             DoubleArithmetic(), Muon::Prepare(hypers.data(), 1).momentum)
      .Direction(g, *buffer);
}

TEST(MuonTest, MomentumByHand) {
  double b = 4;
  // b = 0.75 * 4 + 0.25 * 8. Nesterov repeats this once more: d = 0.75 * 5 +
  // 0.25 * 8.
  EXPECT_DOUBLE_EQ(Direction(8, &b, {{"momentum", 0.75}}), 5.75);
  EXPECT_DOUBLE_EQ(b, 5);
  // b = 0.75 * 5 - 0.25 * 3
  EXPECT_DOUBLE_EQ(Direction(-3, &b, {{"momentum", 0.75}, {"nesterov", 0}}), 3);
  EXPECT_DOUBLE_EQ(b, 3);
  // torch's defaults: momentum 0.95, nesterov.
  EXPECT_DOUBLE_EQ(Direction(3 + 20, &b, {}), 3 + 1 + 0.95);
}

double Apply(double o, double p, int64_t rows, int64_t cols,
             const HyperValues& values) {
  const auto hypers = HypersOf<Muon>(values);
  formula::MuonApplyRule<DoubleArithmetic>(
      DoubleArithmetic(),
      Muon::ApplyTo(Muon::Prepare(hypers.data(), 1), rows, cols))
      .Update(o, p);
  return p;
}

TEST(MuonTest, ApplyByHand) {
  const HyperValues values = {{"lr", 0.5}, {"weight_decay", 0.5}};
  // p = 0.75 * 8 - 0.5 * 2, whatever the number of columns above 9.
  EXPECT_DOUBLE_EQ(Apply(2, 8, 9, 9, values), 5);
  EXPECT_DOUBLE_EQ(Apply(2, 8, 9, 90, values), 5);
  // sqrt(36 / 9) = 2
  EXPECT_DOUBLE_EQ(Apply(2, 8, 36, 9, values), 4);
  // torch's defaults: lr 1e-3, weight_decay 0.1.
  EXPECT_DOUBLE_EQ(Apply(1, 1, 1, 1, {}), 1 - 1e-4 - 1e-3);
}

TEST(MuonTest, MatchRmsAdamwByHand) {
  const HyperValues values = {
      {"lr", 0.5}, {"weight_decay", 0}, {"adjust_lr_fn", Muon::kMatchRmsAdamW}};
  // 0.2 sqrt(25) = 1, of the greater side.
  EXPECT_DOUBLE_EQ(Apply(2, 8, 25, 4, values), 7);
  EXPECT_DOUBLE_EQ(Apply(2, 8, 4, 25, values), 7);
  EXPECT_DOUBLE_EQ(Apply(2, 8, 100, 100, values), 6);
  EXPECT_STREQ(Muon::kAdjustments[Muon::kOriginal], "original");
  EXPECT_STREQ(Muon::kAdjustments[Muon::kMatchRmsAdamW], "match_rms_adamw");
}

TEST(MuonTest, FitsMatricesOnly) {
  const int64_t matrix[] = {3, 5, 7};
  EXPECT_EQ(Muon::ShapeError(matrix, 2), nullptr);
  for (const int ndim : {0, 1, 3}) {
    EXPECT_NE(std::string(Muon::ShapeError(matrix, ndim)).find("2 dimensions"),
              std::string::npos)
        << ndim;
  }
  const int64_t empty[] = {0, 5};
  EXPECT_EQ(Muon::ShapeError(empty, 2), nullptr);
  const int64_t greatest[] = {int64_t{2147483647}, int64_t{2147483647}};
  EXPECT_EQ(Muon::ShapeError(greatest, 2), nullptr);
  for (const int64_t too_large : {int64_t{2147483648}, int64_t{1} << 60}) {
    const int64_t tall[] = {too_large, 1};
    const int64_t wide[] = {1, too_large};
    EXPECT_NE(Muon::ShapeError(tall, 2), nullptr);
    EXPECT_NE(Muon::ShapeError(wide, 2), nullptr);
  }
}

TEST(MuonTest, StateHasTheParametersShape) {
  const int64_t shape[] = {3, 5};
  EXPECT_EQ(Muon::StateNumel(0, shape, 2), 15);
}

TEST(MuonTest, CostIsThatOfTheProducts) {
  const int64_t wide[] = {2, 5};
  const int64_t tall[] = {5, 2};
  // Half of 2 * 2 * 2 * 5, half of 2 * 2 * 2 * 2, 2 * 2 * 2 * 5.
  EXPECT_EQ(Muon::Cost(wide, 2), 20 + 8 + 40);
  EXPECT_EQ(Muon::Cost(tall, 2), Muon::Cost(wide, 2));
  const int64_t empty[] = {0, 5};
  EXPECT_EQ(Muon::Cost(empty, 2), 0);
  // The compiler must not know the value: it would convert by rules of its own.
  volatile int64_t most = 2147483647;
  const int64_t greatest[] = {most, most};
  EXPECT_EQ(Muon::Cost(greatest, 2), std::numeric_limits<int64_t>::max());
  const int64_t large[] = {1 << 20, 1 << 20};
  EXPECT_EQ(Muon::Cost(large, 2), int64_t{1} << 62);
}

TEST(MuonTest, StepsAreWhole) {
  EXPECT_EQ(Muon::Conflict(HypersOf<Muon>({{"ns_steps", 99}}).data()), nullptr);
  EXPECT_STREQ(Muon::Conflict(HypersOf<Muon>({{"ns_steps", 2.5}}).data()),
               "needs a whole number of ns_steps");
}

}  // namespace
}  // namespace shard::muon_test
