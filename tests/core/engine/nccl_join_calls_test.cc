// SPDX-License-Identifier: Apache-2.0
//
// The calls of NCCL of a rank that has joined are those of the other ranks, and
// change nothing in these; those for a unit that is gathered ahead come before
// the passes come to it.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/nccl_calls.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_join_calls_test {
namespace {

using nccl_calls::AddTimes;
using nccl_calls::BytesOf;
using nccl_calls::Calls;
using nccl_calls::CallsIn;
using nccl_calls::CallsOf;
using nccl_calls::CheckedPlan;
using nccl_calls::Clips;
using nccl_calls::ExpectedCalls;
using nccl_calls::Form;
using nccl_calls::Gpus;
using nccl_calls::kParams;
using nccl_calls::kSmallBuffer;
using nccl_calls::NameOf;
using nccl_calls::OwnBytes;
using nccl_calls::TextOf;
using nccl_training::RankTraining;
using testing::FakeNccl;

// In each step units are gathered before the passes come to them, from the
// second one on, in which the order is known.
TEST(NcclCallsOrderTest, APrefetchedUnitIsGatheredAhead) {
  const Form form = {.stage = 3, .prefetch = 2, .units = 12, .params = kParams};
  const FakeNccl fake(Gpus(form));
  const auto plan = CheckedPlan(form);
  RunThreadRanks(
      form.world_size,
      [&](const std::shared_ptr<Communicator>& comm) {
        RankTraining rank(form, plan, comm, 30);
        ASSERT_OK(rank.Create());
        ASSERT_OK(rank.Fill());
        for (const int step : {1, 2, 3}) {
          ASSERT_OK(rank.Synchronize());
          const size_t before = CallsOf(comm->rank()).size();
          ASSERT_OK(rank.Step(step));
          ASSERT_OK(rank.Synchronize());
          const auto log = CallsOf(comm->rank());
          // By unit: the places of its last gather, and of its reduction.
          std::vector<size_t> gathered(plan->units().size());
          std::vector<size_t> reduced(plan->units().size());
          for (size_t i = before; i < log.size(); ++i) {
            for (const FlatBufferPlan& buffer : plan->buffers()) {
              if (BytesOf(log[i]) != OwnBytes(buffer, buffer.dtype)) continue;
              const bool gathers = log[i].symbol == "ncclAllGather";
              (gathers ? gathered : reduced)[static_cast<size_t>(buffer.unit)] =
                  i;
            }
          }
          // The backward pass gathers a unit when it comes to it, or when it
          // comes to the second unit before that.
          const auto ahead = static_cast<size_t>(form.prefetch);
          for (size_t unit = 1; unit + ahead + 1 < gathered.size(); ++unit) {
            const bool early = step > 1;
            EXPECT_EQ(gathered[unit] < reduced[unit + ahead], early)
                << "step " << step << ", unit " << unit;
            EXPECT_LT(gathered[unit], reduced[unit]);
          }
        }
        ASSERT_OK(comm->Barrier("trained", Deadline::After(30)));
      },
      30, "direct=0");
}

class NcclJoinCallsTest : public ::testing::TestWithParam<Form> {};

TEST_P(NcclJoinCallsTest, AreThoseOfTheOtherRanks) {
  constexpr int kSteps = 3;
  Form form = GetParam();
  form.params = kParams;
  const FakeNccl fake(Gpus(form));
  const auto plan = CheckedPlan(form);
  RunThreadRanks(
      form.world_size,
      [&](const std::shared_ptr<Communicator>& comm) {
        RankTraining rank(form, plan, comm, 30);
        ASSERT_OK(rank.Create());
        ASSERT_OK(rank.Fill());
        ASSERT_OK(rank.Synchronize());
        size_t before = CallsOf(comm->rank()).size();
        const auto expect_calls = [&](const Calls& expected, const char* what) {
          ASSERT_OK(rank.Synchronize());
          const auto log = CallsOf(comm->rank());
          EXPECT_EQ(TextOf(CallsIn(std::span(log).subspan(before))),
                    TextOf(expected))
              << "rank " << comm->rank() << ", " << what;
          before = log.size();
        };
        // The last rank has input for one step.
        const int steps = comm->rank() + 1 == form.world_size ? 1 : kSteps;
        for (int step = 1; step <= steps; ++step) {
          ASSERT_OK(rank.Step(step));
          expect_calls(ExpectedCalls(*plan, form, Clips(step)), "a step");
        }
        Calls joined;
        for (int step = steps + 1; step <= kSteps; ++step) {
          AddTimes(ExpectedCalls(*plan, form, Clips(step)), 1, &joined);
        }
        int64_t steps_joined = 0;
        ASSERT_OK(rank.Join(&steps_joined));
        EXPECT_EQ(steps_joined, kSteps - steps);
        expect_calls(joined, "join");
        ASSERT_OK(comm->Barrier("trained", Deadline::After(30)));
      },
      30, "direct=0");
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
