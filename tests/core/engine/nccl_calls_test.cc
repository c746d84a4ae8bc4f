// SPDX-License-Identifier: Apache-2.0
//
// The calls of NCCL that a step with a forward pass makes for each buffer of
// the plan, and no others. Passes that accumulate reduce sharded gradients and
// no others. A buffer has several parameters, none of which has a call of its
// own, and what is sent of a unit at once is one launch. What has its place in
// the engine's buffers is reduced and gathered in place. The calls for a unit
// that is gathered ahead come before the passes come to it.

#include "tests/core/engine/nccl_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "kernels/cpu/norm.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/fake_nccl/fake_nccl.h"

namespace shard::nccl_calls_test {
namespace {

using nccl_calls::AddTimes;
using nccl_calls::BytesOf;
using nccl_calls::CallRecord;
using nccl_calls::Calls;
using nccl_calls::CallsIn;
using nccl_calls::CallsSince;
using nccl_calls::Clips;
using nccl_calls::ExpectedCalls;
using nccl_calls::ExpectedLaunches;
using nccl_calls::Form;
using nccl_calls::kSmallBuffer;
using nccl_calls::NameOf;
using nccl_calls::NumReductionsInPasses;
using nccl_calls::OnRanks;
using nccl_calls::OwnBytes;
using nccl_calls::Reductions;
using nccl_calls::TextOf;
using nccl_calls::WithoutGathers;
using nccl_training::RankTraining;

// Whether a call has its place in buffers of the engine: sharded gradients are
// reduced, and sharded parameters gathered, between a slot of the unit and the
// rank's shard.
bool HasPlace(const CallRecord& call, const Plan& plan, const Form& form) {
  if (call.symbol == "ncclReduceScatter") {
    return form.stage == 1 || form.whole_grads;
  }
  // A norm's sums are gathered behind the rank's own.
  if (call.symbol != "ncclAllGather" || BytesOf(call) == sizeof(NormSum)) {
    return false;
  }
  if (form.stage < 3) return true;
  const auto& buffers = plan.buffers();
  return form.shard_group_size > 0 &&
         std::any_of(buffers.begin(), buffers.end(), [&](const auto& it) {
           return call.size == form.world_size / form.shard_group_size &&
                  BytesOf(call) == OwnBytes(it, it.dtype);
         });
}

bool IsInPlace(const CallRecord& call) {
  const auto* const send = static_cast<const std::byte*>(call.send);
  const auto* const recv = static_cast<const std::byte*>(call.recv);
  const size_t offset = BytesOf(call) * static_cast<size_t>(call.index);
  return call.symbol == "ncclAllGather" ? send == recv + offset
                                        : recv == send + offset;
}

class NcclCallsTest : public ::testing::TestWithParam<Form> {};

TEST_P(NcclCallsTest, AreOneReductionAndOneGatherForEachBuffer) {
  const Form& form = GetParam();
  OnRanks(form, [&](RankTraining* rank, const Plan& plan) {
    const auto launches = [&] {
      return testing::fake_nccl::Count({.rank = rank->rank()}).launches;
    };
    CallsSince since(rank);
    for (const int step : {1, 2, 3}) {
      SCOPED_TRACE(StrCat("rank ", rank->rank(), ", step ", step));
      const uint64_t launched = launches();
      for (int pass = 1; pass <= form.passes; ++pass) {
        ASSERT_OK(rank->MakePass(step, pass));
        Calls reductions;
        AddTimes(Reductions(plan, form),
                 NumReductionsInPasses(plan, form, pass), &reductions);
        EXPECT_EQ(TextOf(WithoutGathers(CallsIn(since.Look()))),
                  TextOf(reductions))
            << "pass " << pass;
      }
      ASSERT_OK(rank->EndStep(step));
      const auto calls = since.Take();
      size_t in_place = 0;
      for (const CallRecord& call : calls) {
        if (!HasPlace(call, plan, form)) continue;
        ++in_place;
        EXPECT_TRUE(IsInPlace(call)) << call.symbol;
      }
      const bool has_place =
          form.stage < 3 || form.shard_group_size > 0 || form.whole_grads;
      EXPECT_EQ(in_place > 0, has_place);
      EXPECT_EQ(TextOf(CallsIn(calls)),
                TextOf(ExpectedCalls(plan, form, Clips(step))));
      EXPECT_EQ(launches() - launched,
                ExpectedLaunches(plan, form, Clips(step)));
    }
  });
}

// In each step units are gathered before the passes come to them, from the
// second one on, in which the order is known.
TEST(NcclCallsOrderTest, APrefetchedUnitIsGatheredAhead) {
  const Form form = {.stage = 3, .prefetch = 2, .units = 12};
  OnRanks(form, [&](RankTraining* rank, const Plan& plan) {
    CallsSince since(rank);
    for (const int step : {1, 2, 3}) {
      ASSERT_OK(rank->Step(step));
      const auto log = since.Take();
      // By unit: the places of its last gather, and of its reduction.
      std::vector<size_t> gathered(plan.units().size());
      std::vector<size_t> reduced(plan.units().size());
      for (size_t i = 0; i < log.size(); ++i) {
        for (const FlatBufferPlan& buffer : plan.buffers()) {
          if (BytesOf(log[i]) != OwnBytes(buffer, buffer.dtype)) continue;
          const bool gathers = log[i].symbol == "ncclAllGather";
          (gathers ? gathered : reduced)[static_cast<size_t>(buffer.unit)] = i;
        }
      }
      // The backward pass gathers a unit when it comes to it, or when it comes
      // to the second unit before that.
      const auto ahead = static_cast<size_t>(form.prefetch);
      for (size_t unit = 1; unit + ahead + 1 < gathered.size(); ++unit) {
        const bool early = step > 1;
        EXPECT_EQ(gathered[unit] < reduced[unit + ahead], early)
            << "step " << step << ", unit " << unit;
        EXPECT_LT(gathered[unit], reduced[unit]);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NcclCallsTest,
    ::testing::Values(Form{.stage = 1}, Form{.stage = 2}, Form{.stage = 3},
                      Form{.stage = 1, .overlap = true},
                      Form{.stage = 2, .overlap = true},
                      Form{.stage = 3, .overlap = true},
                      Form{.stage = 3, .keep_after_forward = true},
                      Form{.world_size = 4, .stage = 3, .shard_group_size = 2},
                      Form{.stage = 1, .deterministic = true},
                      Form{.stage = 2, .deterministic = true},
                      Form{.stage = 3, .deterministic = true},
                      Form{.world_size = 4,
                           .stage = 3,
                           .shard_group_size = 2,
                           .deterministic = true},
                      Form{.stage = 1, .has_bf16 = true},
                      Form{.stage = 2, .has_bf16 = true},
                      Form{.stage = 3, .has_bf16 = true},
                      Form{.stage = 2, .f32_grads = true, .has_bf16 = true}),
    NameOf);

// Shard groups whose ranks hold all parameters, and such with 16-bit gradients.
INSTANTIATE_TEST_SUITE_P(
    Groups, NcclCallsTest,
    ::testing::Values(Form{.world_size = 4, .stage = 1, .shard_group_size = 2},
                      Form{.world_size = 4, .stage = 2, .shard_group_size = 2},
                      Form{.world_size = 4,
                           .stage = 1,
                           .shard_group_size = 2,
                           .deterministic = true},
                      Form{.world_size = 4,
                           .stage = 2,
                           .shard_group_size = 2,
                           .deterministic = true},
                      Form{.world_size = 4,
                           .stage = 1,
                           .shard_group_size = 2,
                           .has_bf16 = true},
                      Form{.world_size = 6,
                           .stage = 3,
                           .shard_group_size = 2,
                           .has_bf16 = true},
                      Form{.world_size = 6,
                           .stage = 3,
                           .shard_group_size = 2,
                           .deterministic = true,
                           .has_bf16 = true}),
    NameOf);

// Blocks are sent where a rank lacks gradients, large ones in parts. Whole
// gradients are zeros then.
INSTANTIATE_TEST_SUITE_P(
    Lacks, NcclCallsTest,
    ::testing::Values(
        Form{.stage = 1, .lacks = 1}, Form{.stage = 2, .lacks = 1},
        Form{.stage = 3, .lacks = 1},
        Form{.stage = 2, .has_bf16 = true, .lacks = 1},
        Form{.stage = 3, .deterministic = true, .lacks = 1},
        Form{.stage = 2, .units = 6, .lacks = 1, .large_numel = 1'600'000},
        Form{.world_size = 4, .stage = 2, .shard_group_size = 2, .lacks = 1},
        Form{.world_size = 6,
             .stage = 3,
             .shard_group_size = 2,
             .has_bf16 = true,
             .lacks = 1}),
    NameOf);

// Slots for units that are gathered ahead; these are so many that three slots
// are less than all of them.
INSTANTIATE_TEST_SUITE_P(
    Prefetch, NcclCallsTest,
    ::testing::Values(
        Form{.stage = 2, .prefetch = 2, .units = 12},
        Form{.stage = 3, .prefetch = 1, .units = 12},
        Form{.stage = 3, .prefetch = 2, .units = 12},
        Form{.stage = 3, .deterministic = true, .prefetch = 2, .units = 12},
        Form{.world_size = 4,
             .stage = 3,
             .shard_group_size = 2,
             .prefetch = 2,
             .units = 12}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    WholeGrads, NcclCallsTest,
    ::testing::Values(
        Form{.stage = 2, .whole_grads = true},
        Form{.stage = 3, .whole_grads = true},
        Form{.stage = 2, .deterministic = true, .whole_grads = true},
        Form{.world_size = 4,
             .stage = 3,
             .shard_group_size = 2,
             .whole_grads = true}),
    NameOf);

// Steps of several passes, of which all but the last one accumulate.
INSTANTIATE_TEST_SUITE_P(
    Accumulates, NcclCallsTest,
    ::testing::Values(
        Form{.stage = 1, .passes = 3}, Form{.stage = 2, .passes = 3},
        Form{.stage = 3, .passes = 3},
        Form{.stage = 1, .deterministic = true, .passes = 3},
        Form{.stage = 2, .whole_grads = true, .passes = 3},
        Form{.stage = 3, .whole_grads = true, .passes = 3},
        Form{.stage = 3, .prefetch = 2, .units = 12, .passes = 2},
        Form{.world_size = 4, .stage = 3, .shard_group_size = 2, .passes = 2}),
    NameOf);

// Units of several buffers, and owners that are chosen by small and by large
// buckets, which are no buffers.
INSTANTIATE_TEST_SUITE_P(
    Buckets, NcclCallsTest,
    ::testing::Values(
        Form{.stage = 1, .buffer_bytes = kSmallBuffer},
        Form{.stage = 2, .buffer_bytes = kSmallBuffer},
        Form{.stage = 3, .buffer_bytes = kSmallBuffer},
        Form{.stage = 2, .deterministic = true, .buffer_bytes = kSmallBuffer},
        Form{.world_size = 4,
             .stage = 2,
             .shard_group_size = 2,
             .buffer_bytes = kSmallBuffer},
        Form{.stage = 1, .partition = Partition::kBucket, .bucket_bytes = 5000},
        Form{.stage = 1,
             .partition = Partition::kBucket,
             .bucket_bytes = 60000}),
    NameOf);

}  // namespace
}  // namespace shard::nccl_calls_test
