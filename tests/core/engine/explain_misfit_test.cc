// SPDX-License-Identifier: Apache-2.0
//
// Compares the explanations of plans that do not fit with numbers worked out by
// hand. A figure of memory is checked from both sides: the option is named
// where there is room for it to the byte, and not where a byte is missing.

#include "core/engine/step/explain_misfit.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/element_type.h"
#include "core/base/strings.h"
#include "core/engine/transfer/collectives_memory.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/model/wrap.h"
#include "core/optim/groups.h"
#include "tests/core/base/expect_status.h"

namespace shard::explain_misfit_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPlenty = uint64_t{1} << 50;
constexpr Offload kOffload;

struct Form {
  int world_size = 1;
  int stage = 1;
  std::string optimizer = "adamw";
  std::string wrap = "class?names=Block";
  bool whole_grads = false;
  int shard_group_size = 0;
  int frozen = 0;  // The first so many blocks.
  int64_t host_tensor = 0;
  DType dtype = DType::kF32;
  bool f32_grads = false;
  bool deterministic = false;
};

// Returns a plan of 5 x 2^20 elements in 5 units; in f32, 20 MiB of parameters,
// as much of gradients, and 40 MiB of AdamW's states over all ranks.
std::shared_ptr<const Plan> PlanOf(const Form& form) {
  auto model = std::make_shared<Model>("Net");
  EXPECT_OK(model->AddParam(kRootModule, "embed", form.dtype, {1024, 1024}));
  for (int b = 0; b < 4; ++b) {
    const ModuleId block =
        *model->AddModule(kRootModule, std::string(1, char('a' + b)), "Block");
    const auto weight = model->AddParam(block, "w", form.dtype, {1024, 1024});
    EXPECT_OK(weight);
    if (b < form.frozen) EXPECT_OK(model->SetTrainable(*weight, false));
  }
  if (form.host_tensor > 0) {
    EXPECT_OK(model->AddHostTensor(kRootModule, "h", ElementType::kU8,
                                   {form.host_tensor}, false));
  }
  PlanOptions options;
  options.world_size = form.world_size;
  options.stage = form.stage;
  options.prefetch = 0;
  options.whole_grads = form.whole_grads;
  options.shard_group_size = form.shard_group_size;
  options.f32_grads = form.f32_grads;
  options.deterministic = form.deterministic;
  options.wrap = *WrapPolicy::Parse(form.wrap);
  options.groups = *PlanGroups(*model, form.optimizer);
  auto plan = Plan::Create(std::move(model), std::move(options));
  EXPECT_OK(plan);
  return *plan;
}

// Returns where ranks on GPUs are, each on its own.
RankPlacement OnGpus(int ranks = 1) {
  return {.shares_tensors = ranks == 1,
          .device = "cuda:0",
          .has_device_memory = true,
          .has_staging = true,
          .ranks_on_host = ranks};
}

Rooms RoomsOf(uint64_t device, uint64_t host = kPlenty) {
  return {.device = DeviceRoom{.free = device, .total = 100 * kMiB},
          .host = host};
}

// Returns an explanation for which there is time.
std::string Explain(const Plan& plan, const RankPlacement& placement,
                    const Rooms& rooms, const ReplacedPlan* before = nullptr) {
  return ExplainMisfit(plan, placement, rooms, Deadline::After(3600), before);
}

// The host's memory of one rank on a GPU: staging memory of collectives, and
// with offload that of windows: 4 threads have 2 windows each of 2^18 gradients
// and parameters.
constexpr uint64_t kStaging = 4 * kMiB;
constexpr uint64_t kWindows = 4 * 2 * 2 * kMiB;

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

// Returns the part of an explanation that names options.
std::string Remedy(const Form& form, const RankPlacement& placement,
                   const Rooms& rooms) {
  const std::string text = Explain(*PlanOf(form), placement, rooms);
  const size_t begin = text.find("missing; ");
  const size_t end = text.find("; see shardctl plan");
  EXPECT_NE(begin, std::string::npos) << text;
  EXPECT_NE(end, std::string::npos) << text;
  return text.substr(begin + 9, end - begin - 9);
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

// The lowest stage that fits is named.
TEST(ExplainMisfitTest, AHigherStage) {
  const Form form = {.world_size = 4};
  // Without room for offload, whose windows alone take more.
  const uint64_t host = 4 * kStaging;
  EXPECT_EQ(Remedy(form, OnGpus(4), RoomsOf(43 * kMiB, host)),
            "it fits with stage 2 (43.0 MiB of the device and 16.0 MiB of the "
            "host)");
  EXPECT_EQ(Remedy(form, OnGpus(4), RoomsOf(43 * kMiB - 1, host)),
            "it fits with stage 3 (36.0 MiB of the device and 16.0 MiB of the "
            "host)");
  EXPECT_EQ(Remedy(form, OnGpus(4), RoomsOf(45 * kMiB)),
            "it fits with device \"cuda:0?offload=states\" (40.0 MiB of the "
            "device and 72.0 MiB of the host), or with stage 2 (43.0 MiB of "
            "the device and 16.0 MiB of the host)");
}

TEST(ExplainMisfitTest, AStageAndOffload) {
  EXPECT_EQ(Remedy({.world_size = 4}, OnGpus(4), RoomsOf(26 * kMiB)),
            "it fits with device \"cuda:0?offload=states\" and stage 3 (26.0 "
            "MiB of the device and 72.0 MiB of the host)");
}

// Options of a plan may keep whole what its stage would shard.
TEST(ExplainMisfitTest, WhatKeepsTensorsWhole) {
  EXPECT_EQ(Remedy({.world_size = 4,
                    .stage = 3,
                    .whole_grads = true,
                    .shard_group_size = 2},
                   OnGpus(4), RoomsOf(36 * kMiB, 4 * kStaging)),
            "it fits with whole_grads 0 and shard_group_size 0 (36.0 MiB of "
            "the device and 16.0 MiB of the host)");
  EXPECT_EQ(Remedy({.world_size = 4, .stage = 3, .wrap = ""}, OnGpus(4),
                   RoomsOf(36 * kMiB, 4 * kStaging)),
            "it fits with wrap \"always\" (36.0 MiB of the device and 16.0 "
            "MiB of the host)");
}

// Less precise states are named where no other option of these ranks fits, the
// wider of them first, and more ranks beside them.
TEST(ExplainMisfitTest, NarrowerStates) {
  EXPECT_EQ(Remedy({}, OnGpus(), RoomsOf(60 * kMiB, kStaging)),
            "it fits with \"states=bf16\" of the optimizer, less precise (60.0 "
            "MiB of the device and 4.0 MiB of the host), or with 2 ranks, as "
            "many on each host and device as now (60.0 MiB of the device and "
            "4.0 MiB of the host)");
  EXPECT_EQ(Remedy({}, OnGpus(), RoomsOf(60 * kMiB - 1, kStaging)),
            "it fits with \"states=q8\" of the optimizer, less precise (50.2 "
            "MiB of the device and 4.0 MiB of the host), or with 2 ranks, as "
            "many on each host and device as now, and stage 2 (58.0 MiB of the "
            "device and 4.0 MiB of the host)");
  // The states of these have one type.
  EXPECT_EQ(Remedy({.optimizer = "sgd?momentum=0.9"}, OnGpus(),
                   RoomsOf(50 * kMiB, kStaging))
                .find("it fits with 2 ranks"),
            0u);
  EXPECT_EQ(Remedy({.optimizer = "adamw?states=bf16"}, OnGpus(),
                   RoomsOf(55 * kMiB, kStaging))
                .find("it fits with \"states=q8\""),
            0u);
  // Offload, too, of narrower states.
  EXPECT_EQ(Remedy({}, OnGpus(), RoomsOf(40 * kMiB, 40 * kMiB))
                .find("it fits with device \"cuda:0?offload=states\" and "
                      "\"states=bf16\" of the optimizer, less precise (40.0 "
                      "MiB of the device and 40.0 MiB of the host)"),
            0u);
}

// Where an option of the plan takes memory, giving it up is a remedy: of 10 MiB
// of bf16 parameters, gradients in fp32 take 20 MiB, and masters as much.
TEST(ExplainMisfitTest, OptionsThatTakeMemory) {
  const auto remedy = [](const Form& form, uint64_t saved) {
    const MemoryNeed need =
        NeedOf(*PlanOf(form), OnGpus(form.world_size), nullptr);
    // Without room for offload.
    return Remedy(form, OnGpus(form.world_size),
                  RoomsOf(need.device - saved, need.host));
  };
  const Form grads = {.dtype = DType::kBF16, .f32_grads = true};
  const std::string less_grads = "it fits with f32_grads 0, less precise (";
  EXPECT_EQ(remedy(grads, 10 * kMiB).find(less_grads), 0u)
      << remedy(grads, 10 * kMiB);
  EXPECT_NE(remedy(grads, 10 * kMiB + 1).find(less_grads), 0u);
  // The states of SGD without momentum are masters alone.
  const Form masters = {.optimizer = "sgd", .dtype = DType::kBF16};
  const std::string without =
      "it fits with masters none_stochastic, less "
      "precise (";
  EXPECT_EQ(remedy(masters, 20 * kMiB).find(without), 0u)
      << remedy(masters, 20 * kMiB);
  EXPECT_NE(remedy(masters, 20 * kMiB + 1).find(without), 0u);
  const Form halves = {.optimizer = "sgd", .dtype = DType::kF16};
  EXPECT_EQ(remedy(halves, 20 * kMiB)
                .find("it fits with masters none_nearest, less precise ("),
            0u)
      << remedy(halves, 20 * kMiB);
  // Narrower states come first.
  const Form both = {.dtype = DType::kBF16};
  EXPECT_EQ(remedy(both, 20 * kMiB).find("it fits with \"states=bf16\""), 0u)
      << remedy(both, 20 * kMiB);
}

// Each of four ranks in stage 3 has a quarter of the sums: 5 MiB of fp32.
TEST(ExplainMisfitTest, SumsInTheOrderOfRanksTakeMemory) {
  const Form form = {.world_size = 4,
                     .stage = 3,
                     .dtype = DType::kBF16,
                     .deterministic = true};
  Form other = form;
  other.deterministic = false;
  const MemoryNeed need = NeedOf(*PlanOf(form), OnGpus(4), nullptr);
  const uint64_t least = NeedOf(*PlanOf(other), OnGpus(4), nullptr).device;
  ASSERT_LT(least, need.device);
  const std::string text = Remedy(form, OnGpus(4), RoomsOf(least, need.host));
  EXPECT_EQ(text.find("it fits with deterministic 0, which rounds sums of "
                      "gradients to bf16 ("),
            0u)
      << text;
  EXPECT_NE(Remedy(form, OnGpus(4), RoomsOf(least - 1, need.host))
                .find("it fits with deterministic 0"),
            0u);
}

TEST(ExplainMisfitTest, MoreRanks) {
  // Stage 3 of 16 ranks: parameters, gradients and states of 3.75 MiB, and 4
  // slots of 4 MiB each; of 8 ranks 7.5 MiB. Without states 1.25 of 5.
  const RankPlacement placement = OnGpus();
  const auto remedy = [&](uint64_t room) {
    return Remedy({}, placement, RoomsOf(room, kStaging));
  };
  EXPECT_EQ(remedy(26 * kMiB),
            "it fits with 8 ranks, as many on each host and device as now, and "
            "stage 3 (26.0 MiB of the device and 4.0 MiB of the host)");
  EXPECT_EQ(remedy(26 * kMiB - 1),
            "it fits with 16 ranks, as many on each host and device as now, "
            "and stage 3 (21.0 MiB of the device and 4.0 MiB of the host)");
}

// Matrices stay whole, so that many more ranks than matrices need more memory
// than one: a few are found all the same.
TEST(ExplainMisfitTest, MoreRanksOfWholeMatrices) {
  const Form form = {.optimizer = "muon", .wrap = "", .frozen = 1};
  const MemoryNeed need = NeedOf(*PlanOf(form), OnGpus(), nullptr);
  Form many = form;
  many.world_size = 4096;
  ASSERT_GT(NeedOf(*PlanOf(many), OnGpus(), nullptr).device, need.device);
  const std::string remedy =
      Remedy(form, OnGpus(), RoomsOf(need.device - 6 * kMiB, kStaging));
  EXPECT_NE(remedy.find("2 ranks, as many on each host and device as now"),
            std::string::npos)
      << remedy;
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

// Where ranks share memory, higher stages round sums of 16 bits that lower ones
// do not, and elsewhere each stage does so.
TEST(ExplainMisfitTest, AnOptionThatRoundsSums) {
  const std::string note = ", which rounds sums of gradients to bf16";
  const RankPlacement shared = {.shares_tensors = true, .ranks_on_host = 4};
  const auto on_host = [&](const Form& form) {
    const Rooms rooms = {.host =
                             NeedOf(*PlanOf(form), shared, nullptr).host - 1};
    return Remedy(form, shared, rooms);
  };
  Form form = {.world_size = 4, .dtype = DType::kBF16};
  EXPECT_EQ(on_host(form).find("it fits with stage 2" + note + " ("), 0u);
  form.f32_grads = true;
  EXPECT_EQ(on_host(form).find("it fits with stage 2 ("), 0u);
  form = {.world_size = 4, .dtype = DType::kBF16, .deterministic = true};
  EXPECT_EQ(on_host(form).find("it fits with stage 2 ("), 0u);
  const auto on_gpus = [&](const Form& form) {
    const RankPlacement placement = OnGpus(form.world_size);
    const MemoryNeed need = NeedOf(*PlanOf(form), placement, nullptr);
    return Remedy(form, placement, RoomsOf(need.device - 1, need.host));
  };
  EXPECT_EQ(
      on_gpus({.world_size = 4, .dtype = DType::kBF16}).find("it fits with s"),
      0u);
  EXPECT_EQ(on_gpus({.world_size = 4, .dtype = DType::kBF16}).find(note),
            std::string::npos);
  // One rank has no sums.
  EXPECT_NE(on_gpus({.optimizer = "sgd", .dtype = DType::kBF16})
                .find("or with 2 ranks, as many on each host and device as "
                      "now" +
                      note),
            std::string::npos);
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

// Collectives by NCCL take memory of the device for blocks of gradients, and
// none of the host. A plan takes over the collectives of the one before it that
// have as much memory as it needs.
TEST(ExplainMisfitTest, CollectivesOfTheDevice) {
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
TEST(ExplainMisfitTest, StepsOfOneKernelMeetInMemory) {
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
TEST(ExplainMisfitTest, AChangeOfThePlan) {
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
}  // namespace shard::explain_misfit_test
