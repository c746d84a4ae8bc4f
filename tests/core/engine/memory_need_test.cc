// SPDX-License-Identifier: Apache-2.0
//
// The memory that a plan needs beside the one in force: collectives that the
// new plan takes over, and both plans while one replaces the other.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "core/base/transport.h"
#include "core/engine/step/explain_misfit.h"
#include "core/engine/transfer/collectives_memory.h"
#include "core/flat/plan.h"
#include "tests/core/engine/misfits.h"

namespace shard::memory_need_test {
namespace {

using misfits::Explain;
using misfits::kMiB;
using misfits::kStaging;
using misfits::OnGpus;
using misfits::PlanOf;
using misfits::RoomsOf;

// Collectives by NCCL take memory of the device for blocks of gradients, and
// none of the host. A plan takes over the collectives of the one before it that
// have as much memory as it needs.
TEST(MemoryNeedTest, CollectivesOfTheDevice) {
  const auto small = PlanOf({.world_size = 4, .frozen = 4});
  const auto large = PlanOf({.world_size = 4});
  RankPlacement by_nccl = OnGpus(4);
  by_nccl.transport = Transport::kNccl;
  const auto blocks = [&](const Plan& plan, const ReplacedPlan* before) {
    const MemoryNeed need = NeedOf(plan, by_nccl, before);
    const MemoryNeed staged = NeedOf(plan, OnGpus(4), before);
    EXPECT_EQ(need.host + (before == nullptr ? 4 * kStaging : 0), staged.host);
    return need.device - staged.device;
  };
  const uint64_t of_small =
      CollectivesMemoryOf(*small, Transport::kNccl).device_bytes;
  EXPECT_GT(of_small, 0u);
  EXPECT_EQ(blocks(*small, nullptr), of_small);
  const ReplacedPlan after_large = {large.get(), ReduceMemoryOf(*large)};
  EXPECT_EQ(blocks(*small, &after_large), 0u);
  const ReplacedPlan after_small = {small.get(), ReduceMemoryOf(*small)};
  EXPECT_EQ(blocks(*small, &after_small), 0u);
  // The second change: the collectives are still those of the first plan.
  const auto one_of = [](int frozen) {
    return PlanOf(
        {.world_size = 4, .wrap = "", .frozen = frozen, .deterministic = true});
  };
  const auto little = one_of(4);
  const auto more = one_of(2);
  const ReplacedPlan after_most = {little.get(), ReduceMemoryOf(*one_of(0))};
  EXPECT_EQ(blocks(*more, &after_most), 0u);
  const ReplacedPlan after_little = {little.get(), ReduceMemoryOf(*little)};
  EXPECT_GT(NeedOf(*more, by_nccl, &after_little).device,
            NeedOf(*more, by_nccl, &after_most).device);
  const auto in_order = PlanOf({.world_size = 4, .deterministic = true});
  const uint64_t of_order =
      CollectivesMemoryOf(*in_order, Transport::kNccl).device_bytes;
  EXPECT_EQ(blocks(*in_order, nullptr), of_order);
}

// The kernels of the new plan's steps meet in memory of their own.
TEST(MemoryNeedTest, StepsOfOneKernelMeetInMemory) {
  const auto plan = PlanOf({.world_size = 4});
  const ReplacedPlan same = {plan.get(), ReduceMemoryOf(*plan)};
  RankPlacement parts = OnGpus(4);
  parts.transport = Transport::kNccl;
  RankPlacement one = parts;
  one.one_kernel = true;
  for (const ReplacedPlan* const before :
       {static_cast<const ReplacedPlan*>(nullptr), &same}) {
    EXPECT_EQ(NeedOf(*plan, one, before).device,
              NeedOf(*plan, parts, before).device + kPageBytes);
    EXPECT_EQ(NeedOf(*plan, one, before).host,
              NeedOf(*plan, parts, before).host + 4 * kPageBytes);
  }
}

// While a plan changes, the old one and the new one are there. The room is that
// beside the old one.
TEST(MemoryNeedTest, AChangeOfThePlan) {
  const auto before = PlanOf({.frozen = 4, .host_tensor = 4096});
  const auto next = PlanOf({.host_tensor = 4096});
  const ReplacedPlan replaced = {before.get(), ReduceMemoryOf(*before)};
  // 20 MiB of parameters, 4 of gradients and 8 of states.
  EXPECT_EQ(NeedOf(*before, OnGpus(), nullptr).device, 32 * kMiB);
  EXPECT_EQ(NeedOf(*next, OnGpus(), &replaced).device, 80 * kMiB);
  EXPECT_EQ(NeedOf(*next, OnGpus(), &replaced).host, 0u);
  EXPECT_EQ(Explain(*next, OnGpus(), RoomsOf(80 * kMiB, 0), &replaced), "");
  const auto explain = [&](uint64_t room) {
    return Explain(*next, OnGpus(), RoomsOf(room), &replaced);
  };
  EXPECT_EQ(explain(60 * kMiB),
            "the plan needs 80.0 MiB (83886080 bytes) on cuda:0, which has "
            "60.0 MiB free of 100.0 MiB: 20.0 MiB are missing while the plan "
            "changes and the old one is there too; it fits with an engine of "
            "its own: save, free this engine, make one with the new plan and "
            "load (80.0 MiB of the device and 4.0 MiB of the host), or with "
            "device \"cuda:0?offload=states\" (64.0 MiB of the device and "
            "84.0 MiB of the host); see shardctl plan");
  // The host needs no more than the old engine holds there already.
  EXPECT_NE(Explain(*next, OnGpus(), RoomsOf(60 * kMiB, 0), &replaced)
                .find("an engine of its own"),
            std::string::npos);
  // 48 + 32 MiB are one short of the new plan's.
  const std::string tight = explain(48 * kMiB - 1);
  EXPECT_EQ(tight.find("an engine of its own"), std::string::npos) << tight;
  EXPECT_NE(tight.find("offload=states"), std::string::npos) << tight;
}

}  // namespace
}  // namespace shard::memory_need_test
