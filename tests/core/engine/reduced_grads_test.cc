// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/reduced_grads.h"

#include <gtest/gtest.h>

#include "core/engine/transfer/agreement.h"

namespace shard::reduced_grads_test {
namespace {

Proposal ReduceOf(int32_t unit, int64_t zeroed) {
  Proposal proposal;
  proposal.activity = Activity::kReduce;
  proposal.unit = unit;
  proposal.zeroed = zeroed;
  return proposal;
}

TEST(ReducedGradsTest, TheFirstGradientsMakeASumAndOthersAdd) {
  ReducedGrads reduced(2);
  EXPECT_FALSE(reduced.Counts(1));
  EXPECT_FALSE(reduced.SomeCount());
  EXPECT_FALSE(reduced.AddsToSum(ReduceOf(1, 0)));
  EXPECT_FALSE(reduced.IsOutdated(ReduceOf(1, 0)));
  reduced.SetReduced(ReduceOf(1, 0));
  EXPECT_TRUE(reduced.Counts(1));
  EXPECT_FALSE(reduced.Counts(0));
  EXPECT_TRUE(reduced.SomeCount());
  EXPECT_TRUE(reduced.AddsToSum(ReduceOf(1, 0)));
}

TEST(ReducedGradsTest, SumsFromBeforeZeroGradDoNotCount) {
  ReducedGrads reduced(1);
  reduced.SetReduced(ReduceOf(0, 0));
  reduced.Discard(true);
  EXPECT_FALSE(reduced.Counts(0));
  EXPECT_FALSE(reduced.SomeCount());
  EXPECT_FALSE(reduced.AddsToSum(ReduceOf(0, reduced.zeroed())));
  reduced.SetReduced(ReduceOf(0, reduced.zeroed()));
  EXPECT_TRUE(reduced.Counts(0));
  // Those of a rank that has not called zero_grad yet.
  EXPECT_TRUE(reduced.IsOutdated(ReduceOf(0, 0)));
  EXPECT_FALSE(reduced.IsOutdated(ReduceOf(0, 1)));
  EXPECT_FALSE(reduced.IsOutdated(ReduceOf(0, 2)));
}

TEST(ReducedGradsTest, InJoinTheLeaderCountsButForDiscardedGradients) {
  ReducedGrads joined(1);
  joined.Discard(false);
  EXPECT_EQ(joined.zeroed_in_join(), kNeverZeroed);
  joined.FollowInJoin(ReduceOf(0, 5));
  EXPECT_EQ(joined.zeroed(), 5);

  ReducedGrads discarded(1);
  discarded.Discard(true);
  discarded.Discard(false);
  EXPECT_EQ(discarded.zeroed_in_join(), 2);
  discarded.FollowInJoin(ReduceOf(0, 5));
  EXPECT_EQ(discarded.zeroed(), 2);
}

TEST(ReducedGradsTest, AStepBeginsAnew) {
  ReducedGrads reduced(1);
  reduced.Discard(true);
  reduced.SetReduced(ReduceOf(0, 1));
  reduced.Forget();
  EXPECT_EQ(reduced.zeroed(), 0);
  EXPECT_EQ(reduced.zeroed_in_join(), kNeverZeroed);
  EXPECT_FALSE(reduced.Counts(0));
  EXPECT_FALSE(reduced.IsOutdated(ReduceOf(0, 0)));
}

}  // namespace
}  // namespace shard::reduced_grads_test
