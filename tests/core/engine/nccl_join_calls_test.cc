// SPDX-License-Identifier: Apache-2.0
//
// The calls of NCCL of a rank that has joined are those of the other ranks, and
// change nothing in these.

#include <gtest/gtest.h>

#include <cstdint>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/nccl_calls.h"
#include "tests/core/engine/nccl_training.h"

namespace shard::nccl_join_calls_test {
namespace {

using nccl_calls::AddTimes;
using nccl_calls::Calls;
using nccl_calls::CallsIn;
using nccl_calls::CallsSince;
using nccl_calls::Clips;
using nccl_calls::ExpectedCalls;
using nccl_calls::Form;
using nccl_calls::kSmallBuffer;
using nccl_calls::NameOf;
using nccl_calls::OnRanks;
using nccl_calls::TextOf;
using nccl_training::RankTraining;

class NcclJoinCallsTest : public ::testing::TestWithParam<Form> {};

TEST_P(NcclJoinCallsTest, AreThoseOfTheOtherRanks) {
  constexpr int kSteps = 3;
  const Form& form = GetParam();
  OnRanks(form, [&](RankTraining* rank, const Plan& plan) {
    SCOPED_TRACE(StrCat("rank ", rank->rank()));
    CallsSince since(rank);
    // The last rank has input for one step.
    const int steps = rank->rank() + 1 == form.world_size ? 1 : kSteps;
    for (int step = 1; step <= steps; ++step) {
      ASSERT_OK(rank->Step(step));
      EXPECT_EQ(TextOf(CallsIn(since.Take())),
                TextOf(ExpectedCalls(plan, form, Clips(step))));
    }
    Calls joined;
    for (int step = steps + 1; step <= kSteps; ++step) {
      AddTimes(ExpectedCalls(plan, form, Clips(step)), 1, &joined);
    }
    int64_t steps_joined = 0;
    ASSERT_OK(rank->Join(&steps_joined));
    EXPECT_EQ(steps_joined, kSteps - steps);
    EXPECT_EQ(TextOf(CallsIn(since.Take())), TextOf(joined));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NcclJoinCallsTest,
    ::testing::Values(Form{.stage = 1}, Form{.stage = 2}, Form{.stage = 3},
                      Form{.stage = 1, .overlap = true},
                      Form{.stage = 2, .deterministic = true},
                      Form{.stage = 3, .deterministic = true},
                      Form{.stage = 3, .whole_grads = true},
                      Form{.stage = 3, .prefetch = 2, .units = 12},
                      Form{.stage = 3, .buffer_bytes = kSmallBuffer},
                      Form{.world_size = 4, .stage = 2, .shard_group_size = 2},
                      Form{.world_size = 4, .stage = 3, .shard_group_size = 2}),
    NameOf);

}  // namespace
}  // namespace shard::nccl_join_calls_test
