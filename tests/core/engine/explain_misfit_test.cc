// SPDX-License-Identifier: Apache-2.0
//
// Explanations of plans that do not fit: by how much on device and host, for
// ranks that share either, and what is said where offload or nothing fits.

#include "core/engine/step/explain_misfit.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/offload.h"
#include "core/base/strings.h"
#include "core/base/transport.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/optim/groups.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/misfits.h"

namespace shard::explain_misfit_test {
namespace {

using misfits::Explain;
using misfits::Form;
using misfits::kMiB;
using misfits::kOffload;
using misfits::kPlenty;
using misfits::kStaging;
using misfits::kWindows;
using misfits::OnGpus;
using misfits::PlanOf;
using misfits::Remedy;
using misfits::RoomsOf;

TEST(ExplainMisfitTest, APlanThatFitsNeedsNoExplanation) {
  const auto plan = PlanOf({});
  EXPECT_EQ(Explain(*plan, OnGpus(), RoomsOf(80 * kMiB, kStaging)), "");
  EXPECT_EQ(Explain(*plan, {.shares_tensors = true}, {.host = 80 * kMiB}), "");
}

TEST(ExplainMisfitTest, AllOfTheText) {
  EXPECT_EQ(
      Explain(*PlanOf({}), OnGpus(), RoomsOf(60 * kMiB)),
      "the plan needs 80.0 MiB (83886080 bytes) on cuda:0, which has 60.0 MiB "
      "free of 100.0 MiB: 20.0 MiB are missing; it fits with device "
      "\"cuda:0?offload=states\" (40.0 MiB of the device and 60.0 MiB of the "
      "host); see shardctl plan");
}

TEST(ExplainMisfitTest, OffloadNeedsRoomInBoth) {
  const uint64_t host = 40 * kMiB + kStaging + kWindows;
  const std::string offload =
      "it fits with device \"cuda:0?offload=states\" (40.0 MiB of the device "
      "and 60.0 MiB of the host)";
  EXPECT_EQ(Remedy({}, OnGpus(), RoomsOf(40 * kMiB, host)), offload);
  EXPECT_NE(Remedy({}, OnGpus(), RoomsOf(40 * kMiB - 1, host)), offload);
  EXPECT_NE(Remedy({}, OnGpus(), RoomsOf(40 * kMiB, host - 1)), offload);
}

TEST(ExplainMisfitTest, OneThreadOffloadsWhereFourHaveNoRoom) {
  const Rooms rooms = RoomsOf(40 * kMiB, 40 * kMiB + kStaging + kWindows / 4);
  RankPlacement placement = OnGpus();
  for (const Offload* const offload : {placement.offload, &kOffload}) {
    placement.offload = offload;
    EXPECT_EQ(Remedy({}, placement, rooms),
              "it fits with device \"cuda:0?offload=states&offload_threads=1\" "
              "(40.0 MiB of the device and 48.0 MiB of the host)");
  }
}

// All ranks on a host have their states there.
TEST(ExplainMisfitTest, TheHostHasRoomForAllItsRanks) {
  const Form form = {.world_size = 4, .stage = 3};
  const uint64_t rank = 10 * kMiB + kStaging + kWindows / 4;  // One thread.
  const std::string offload =
      "it fits with device \"cuda:0?offload=states\" (26.0 MiB of the device "
      "and 72.0 MiB of the host)";
  EXPECT_EQ(4 * rank, 72 * kMiB);
  EXPECT_EQ(Remedy(form, OnGpus(4), RoomsOf(30 * kMiB, 4 * rank)), offload);
  EXPECT_NE(Remedy(form, OnGpus(4), RoomsOf(30 * kMiB, 4 * rank - 1)), offload);
}

// Ranks on one device share its room.
TEST(ExplainMisfitTest, RanksOnADevice) {
  RankPlacement placement = OnGpus(2);
  placement.ranks_on_device = 2;
  EXPECT_EQ(Explain(*PlanOf({.world_size = 2}), placement, RoomsOf(90 * kMiB)),
            "the plan needs 60.0 MiB (62914560 bytes) for each of 2 ranks on "
            "cuda:0, which has 90.0 MiB free of 100.0 MiB: 30.0 MiB are "
            "missing; it fits with device \"cuda:0?offload=states\" (40.0 MiB "
            "of the device for each rank and 64.0 MiB of the host)"
            "; see shardctl plan");
}

// One rank alone would have room for the parameters and gradients.
TEST(ExplainMisfitTest, RanksThatShareADeviceNeedRoomForEach) {
  RankPlacement placement = OnGpus(2);
  placement.ranks_on_device = 2;
  const Form form = {.world_size = 2};
  EXPECT_NE(Remedy(form, placement, RoomsOf(80 * kMiB))
                .find("it fits with device \"cuda:0?offload=states\" ("),
            std::string::npos);
  EXPECT_EQ(Remedy(form, placement, RoomsOf(80 * kMiB - 2))
                .find("it fits with device \"cuda:0?offload=states\" ("),
            std::string::npos);
}

// The states come back to the device where the host is too small for them.
TEST(ExplainMisfitTest, OffloadThatTheHostHasNoRoomFor) {
  RankPlacement placement = OnGpus();
  placement.device = "cuda:0?offload=states&offload_threads=4";
  placement.offload = &kOffload;
  EXPECT_EQ(Explain(*PlanOf({}), placement, RoomsOf(80 * kMiB, 50 * kMiB)),
            "60.0 MiB of memory are needed on this host, and 50.0 MiB are "
            "available: 10.0 MiB are missing; it fits with device \"cuda:0\" "
            "(80.0 MiB of the device and 4.0 MiB of the host); see shardctl "
            "plan");
  // Both are too small, with and without offload.
  const std::string both =
      Explain(*PlanOf({}), placement, RoomsOf(30 * kMiB, 50 * kMiB));
  EXPECT_EQ(both.find("the plan needs 40.0 MiB (41943040 bytes) on cuda:0, "
                      "which has 30.0 MiB free of 100.0 MiB: 10.0 MiB are "
                      "missing; and 60.0 MiB of memory are needed on this "
                      "host, and 50.0 MiB are available: 10.0 MiB are "
                      "missing; it fits with "),
            0u)
      << both;
}

// The device that is named has the options that have nothing to do with memory.
TEST(ExplainMisfitTest, AnOffloadKeepsTheTransport) {
  RankPlacement placement = OnGpus();
  const auto remedy = [&](uint64_t device, uint64_t host) {
    return Remedy({}, placement, RoomsOf(device, host));
  };
  const auto expect = [&](const std::string& text, const std::string& spec) {
    EXPECT_EQ(text.find(StrCat("it fits with device \"", spec, "\" (")), 0u)
        << text;
  };
  placement.transport = Transport::kNccl;
  expect(remedy(60 * kMiB, kPlenty), "cuda:0?collectives=nccl&offload=states");
  placement.transport = Transport::kAuto;
  expect(remedy(60 * kMiB, kPlenty), "cuda:0?collectives=auto&offload=states");
  placement.device = "cuda:0?offload=states&offload_threads=4";
  placement.offload = &kOffload;
  expect(remedy(80 * kMiB, 50 * kMiB), "cuda:0?collectives=auto");
  placement.transport = Transport::kStaged;
  expect(remedy(80 * kMiB, 50 * kMiB), "cuda:0");
}

TEST(ExplainMisfitTest, NothingFits) {
  EXPECT_EQ(Remedy({}, OnGpus(), RoomsOf(16 * kMiB)),
            "no stage, narrower optimizer states, offload or up to 4096 ranks "
            "would make it fit; use a smaller model, or machines with more "
            "memory");
  EXPECT_EQ(Remedy({.host_tensor = int64_t{1} << 40}, OnGpus(),
                   RoomsOf(100 * kMiB, 1 << 30))
                .find("no stage"),
            0u);
}

// Ranks that share memory have the parameters once, and so do they with any
// option but more ranks, which are on other hosts.
TEST(ExplainMisfitTest, RanksOnAProcessor) {
  const RankPlacement placement = {.shares_tensors = true, .ranks_on_host = 4};
  const Form form = {.world_size = 4};
  EXPECT_EQ(Explain(*PlanOf(form), placement, {.host = 120 * kMiB}),
            "140.0 MiB of memory are needed on this host, and 120.0 MiB are "
            "available: 20.0 MiB are missing; it fits with stage 2 (112.0 MiB)"
            "; see shardctl plan");
  EXPECT_EQ(Remedy(form, placement, {.host = 90 * kMiB}).find("it fits with"),
            0u);
  EXPECT_EQ(
      Remedy({}, {.shares_tensors = true}, {.host = 1 * kMiB}),
      "no stage, narrower optimizer states or up to 4096 ranks would make it "
      "fit; use a smaller model, or machines with more memory");
}

// An explanation of a large model tries fewer options, and does not claim then
// that nothing fits.
TEST(ExplainMisfitTest, NotAllIsTriedForVeryManyParameters) {
  auto model = std::make_shared<Model>("Net");
  for (int p = 0; p < 500000; ++p) {
    ASSERT_OK(model->AddParam(kRootModule, StrCat("p", p), DType::kF32, {4}));
  }
  PlanOptions options;
  options.world_size = 4;
  options.groups = *PlanGroups(*model, "adamw");
  const auto plan = Plan::Create(std::move(model), std::move(options));
  ASSERT_OK(plan);
  const std::string text = Explain(**plan, OnGpus(4), RoomsOf(4096, kStaging));
  EXPECT_NE(text.find("missing; and "), std::string::npos) << text;
  EXPECT_NE(text.find("; try a higher stage, more ranks, offload=states or "
                      "narrower optimizer states; see"),
            std::string::npos)
      << text;
}

// The error of one rank is that of all, so an option must fit on each.
TEST(ExplainMisfitTest, OptionsFitOnAllRanks) {
  const Form form = {.world_size = 4};
  Rooms rooms = RoomsOf(43 * kMiB, 4 * kStaging);
  const std::string stage2 = "it fits with stage 2 (";
  const std::string stage3 = "it fits with stage 3 (";
  rooms.least = MemoryNeed{43 * kMiB, 4 * kStaging};
  EXPECT_EQ(Remedy(form, OnGpus(4), rooms).find(stage2), 0u);
  rooms.least = MemoryNeed{43 * kMiB - 1, 4 * kStaging};
  EXPECT_EQ(Remedy(form, OnGpus(4), rooms).find(stage3), 0u);
  // The states of another host's ranks have less room there.
  rooms = RoomsOf(45 * kMiB);
  rooms.least = MemoryNeed{45 * kMiB, 72 * kMiB};
  EXPECT_NE(Remedy(form, OnGpus(4), rooms).find("offload=states"),
            std::string::npos);
  rooms.least = MemoryNeed{45 * kMiB, 72 * kMiB - 1};
  EXPECT_EQ(Remedy(form, OnGpus(4), rooms).find(stage2), 0u);
}

// No option is tried once the time is over.
TEST(ExplainMisfitTest, NothingIsTriedAfterTheDeadline) {
  const std::string text =
      ExplainMisfit(*PlanOf({.world_size = 4}), OnGpus(4),
                    RoomsOf(43 * kMiB, 4 * kStaging), Deadline::After(0));
  EXPECT_NE(text.find(" are missing; try a higher stage, more ranks, "
                      "offload=states or narrower optimizer states; see "
                      "shardctl plan"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace shard::explain_misfit_test
