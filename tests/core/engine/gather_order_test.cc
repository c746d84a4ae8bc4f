// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/gather_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace shard::gather_order_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kUnits = 4;
constexpr int32_t kPrefetch = 2;

class GatherOrderTest : public ::testing::Test {
 protected:
  void Record(const std::vector<int32_t>& units) {
    for (const int32_t unit : units) order_.Record(unit);
  }
  std::vector<int32_t> Next() const {
    return {order_.Next().begin(), order_.Next().end()};
  }

  GatherOrder order_{kUnits, kPrefetch};
};

TEST_F(GatherOrderTest, NothingIsExpectedInTheFirstStep) {
  EXPECT_THAT(Next(), IsEmpty());
  Record({0, 1});
  EXPECT_THAT(Next(), IsEmpty());
}

TEST_F(GatherOrderTest, TheNextUnitsAreThoseOfTheStepBefore) {
  Record({0, 1, 2, 2, 1});
  order_.FinishStep();
  EXPECT_THAT(Next(), ElementsAre(0, 1));
  Record({0, 1});
  EXPECT_THAT(Next(), ElementsAre(2, 2));
  Record({2, 2});
  EXPECT_THAT(Next(), ElementsAre(1));
  Record({1});
  EXPECT_THAT(Next(), IsEmpty());
  order_.FinishStep();
  EXPECT_THAT(Next(), ElementsAre(0, 1));
}

TEST_F(GatherOrderTest, AnotherOrderStartsANewRecord) {
  Record({0, 1, 2});
  order_.FinishStep();
  Record({0, 3});
  EXPECT_THAT(Next(), IsEmpty());
  Record({1});
  order_.FinishStep();
  Record({0});
  EXPECT_THAT(Next(), ElementsAre(3, 1));
}

TEST_F(GatherOrderTest, AStepWithoutAcquiresKeepsNoOrder) {
  order_.FinishStep();
  Record({2});
  EXPECT_THAT(Next(), IsEmpty());
  order_.FinishStep();
  EXPECT_THAT(Next(), ElementsAre(2));
}

TEST_F(GatherOrderTest, ForgetBeginsAnew) {
  Record({0, 1});
  order_.FinishStep();
  order_.Forget();
  EXPECT_THAT(Next(), IsEmpty());
  Record({1, 0});
  order_.FinishStep();
  EXPECT_THAT(Next(), ElementsAre(1, 0));
}

// Passes without a step, as in an evaluation, make no record without end.
TEST_F(GatherOrderTest, TheRecordHasAnEnd) {
  for (int i = 0; i < 100000; ++i) order_.Record(i % 4);
  order_.FinishStep();
  int expected = 0;
  while (!Next().empty()) {
    order_.Record(Next()[0]);
    ++expected;
    ASSERT_LT(expected, 1000);
  }
  EXPECT_EQ(expected, 64 * static_cast<int>(kUnits));
}

}  // namespace
}  // namespace shard::gather_order_test
