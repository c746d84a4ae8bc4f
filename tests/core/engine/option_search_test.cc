// SPDX-License-Identifier: Apache-2.0
//
// Options that would make a plan fit: stages, units, narrower states, what a
// plan gives up, and more ranks, in the order in which they are named.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "core/base/dtype.h"
#include "core/engine/step/explain_misfit.h"
#include "core/flat/plan.h"
#include "tests/core/engine/misfits.h"

namespace shard::option_search_test {
namespace {

using misfits::Form;
using misfits::kMiB;
using misfits::kStaging;
using misfits::OnGpus;
using misfits::PlanOf;
using misfits::Remedy;
using misfits::RoomsOf;

// The lowest stage that fits is named.
TEST(OptionSearchTest, AHigherStage) {
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

TEST(OptionSearchTest, AStageAndOffload) {
  EXPECT_EQ(Remedy({.world_size = 4}, OnGpus(4), RoomsOf(26 * kMiB)),
            "it fits with device \"cuda:0?offload=states\" and stage 3 (26.0 "
            "MiB of the device and 72.0 MiB of the host)");
}

// Options of a plan may keep whole what its stage would shard.
TEST(OptionSearchTest, WhatKeepsTensorsWhole) {
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
TEST(OptionSearchTest, NarrowerStates) {
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
TEST(OptionSearchTest, OptionsThatTakeMemory) {
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

// Two options that take memory are given up together where neither is enough.
TEST(OptionSearchTest, OptionsThatTakeMemoryTogether) {
  const auto need = [](bool deterministic, bool f32_grads) {
    const Form form = {.world_size = 4,
                       .stage = 3,
                       .dtype = DType::kBF16,
                       .f32_grads = f32_grads,
                       .deterministic = deterministic};
    return NeedOf(*PlanOf(form), OnGpus(4), nullptr);
  };
  const uint64_t room = need(false, false).device;
  ASSERT_LT(room, need(true, false).device);
  ASSERT_LT(room, need(false, true).device);
  const std::string remedy = Remedy({.world_size = 4,
                                     .stage = 3,
                                     .dtype = DType::kBF16,
                                     .f32_grads = true,
                                     .deterministic = true},
                                    OnGpus(4), RoomsOf(room, 4 * kStaging));
  EXPECT_EQ(remedy.find("it fits with deterministic 0 and f32_grads 0, less "
                        "precise"),
            0u)
      << remedy;
}

// No number of ranks is enough as long as a unit's gradients are in fp32.
TEST(OptionSearchTest, MoreRanksThatGiveSomethingUp) {
  Form form = {.world_size = 2,
               .stage = 3,
               .dtype = DType::kBF16,
               .f32_grads = true,
               .deterministic = true};
  form.world_size = 4096;
  const uint64_t least = NeedOf(*PlanOf(form), OnGpus(2), nullptr).device;
  form.world_size = 2;
  const std::string remedy =
      Remedy(form, OnGpus(2), RoomsOf(least - 1, 2 * kStaging));
  EXPECT_EQ(remedy.find("it fits with "), 0u) << remedy;
  EXPECT_NE(remedy.find(" ranks, as many on each host and device as now"),
            std::string::npos)
      << remedy;
  EXPECT_TRUE(remedy.find("deterministic 0") != std::string::npos ||
              remedy.find("f32_grads 0, less precise") != std::string::npos)
      << remedy;
}

// Each of four ranks in stage 3 has a quarter of the sums: 5 MiB of fp32.
TEST(OptionSearchTest, SumsInTheOrderOfRanksTakeMemory) {
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

// Where ranks share memory, higher stages round sums of 16 bits that lower ones
// do not, and elsewhere each stage does so.
TEST(OptionSearchTest, AnOptionThatRoundsSums) {
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

TEST(OptionSearchTest, MoreRanks) {
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
TEST(OptionSearchTest, MoreRanksOfWholeMatrices) {
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

}  // namespace
}  // namespace shard::option_search_test
