// SPDX-License-Identifier: Apache-2.0
//
// The memory that a plan reports, and the tensors that it shards.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/flat/plans.h"

namespace shard::plan_memory_test {
namespace {

using testing::AdamOptions;
using testing::MakePlan;
using testing::ModelOf;

// One unit would need slots as large as all the tensors that it shards.
TEST(PlanMemory, OneUnitCostsTheSameInEveryStage) {
  auto model = ModelOf({{1000}, {3000}});  // 4000 elements of f32.
  EXPECT_OK(model->AddParam(kRootModule, "half", DType::kBF16, {5000}));
  EXPECT_OK(model->AddParam(kRootModule, "frozen", DType::kF32, {2048}));
  EXPECT_OK(model->SetTrainable(3, false));
  // Over 4 ranks, aligned to 64 bytes, f32 has 1008 elements for each rank,
  // 4032 in all; bf16 has 1280, 5120 in all; frozen has 512, 2048 in all.
  // Pages of 16128, 10240 and 8192.
  const uint64_t params = 16384 + 12288 + 8192;
  const uint64_t grads = 16384 + 12288;
  // States are exp_avg in f32 and a state in bf16, of 1008 and of 1280 elements
  // each, and master weights of the latter.
  const uint64_t states = (4096 + 4096) + (8192 + 4096 + 8192);
  for (int stage = 0; stage <= 3; ++stage) {
    PlanOptions options = AdamOptions(stage, 4);
    options.groups[0].states[1].dtype = DType::kBF16;
    for (const bool shared : {true, false}) {
      const MemoryReport memory = MakePlan(model, options)->Memory(shared);
      EXPECT_EQ(memory.param_bytes, params);
      EXPECT_EQ(memory.grad_bytes, grads);
      EXPECT_EQ(memory.state_bytes, states);
      EXPECT_EQ(memory.transient_bytes, 0u);
      EXPECT_EQ(memory.HostTotal(4, true), params + 4 * (grads + states));
    }
  }
}

TEST(PlanMemory, PrecisionDecidesWhatIsKept) {
  auto model = ModelOf({{1 << 20}}, DType::kBF16);
  constexpr uint64_t kMiB = 1 << 20;
  PlanOptions options = AdamOptions(1, 4);
  // The numbers are those of the ZeRO paper: 4 bytes per parameter, and 12 that
  // are sharded.
  MemoryReport memory = MakePlan(model, options)->Memory(true);
  EXPECT_EQ(memory.param_bytes, 2 * kMiB);
  EXPECT_EQ(memory.grad_bytes, 2 * kMiB);
  EXPECT_EQ(memory.state_bytes, 12 * kMiB / 4);

  options.f32_grads = true;
  EXPECT_EQ(MakePlan(model, options)->Memory(true).grad_bytes, 4 * kMiB);
  for (const Masters none : {Masters::kNoneNearest, Masters::kNoneStochastic}) {
    options.masters = none;
    EXPECT_EQ(MakePlan(model, options)->Memory(true).state_bytes, 8 * kMiB / 4);
  }
  for (StateTensor& state : options.groups[0].states) {
    state.dtype = DType::kQ8;
  }
  // A scale takes 4 bytes per 256 elements, which makes 2.03 bytes per
  // parameter.
  EXPECT_EQ(MakePlan(model, options)->Memory(true).state_bytes,
            2 * (kMiB + kMiB / 64) / 4);
}

TEST(PlanMemory, FrozenModelsCostTheirParameters) {
  auto model = ModelOf({{}});
  EXPECT_OK(model->SetTrainable(0, false));
  const MemoryReport memory = MakePlan(model, AdamOptions(1, 1))->Memory(true);
  EXPECT_EQ(memory.param_bytes, 4096u);
  EXPECT_EQ(memory.grad_bytes, 0u);
  EXPECT_EQ(memory.state_bytes, 0u);
}

// The engine maps nothing for a buffer of 0 bytes.
TEST(PlanMemory, BuffersWithoutElementsCostNothing) {
  auto model = ModelOf({{0}, {3, 0}});
  EXPECT_OK(model->AddParam(kRootModule, "half", DType::kBF16, {0, 7}));
  EXPECT_OK(model->AddParam(kRootModule, "frozen", DType::kF32, {0}));
  EXPECT_OK(model->SetTrainable(3, false));
  for (const Partition partition : {Partition::kEven, Partition::kGreedy,
                                    Partition::kBucket, Partition::kManual}) {
    for (int stage = 0; stage <= 3; ++stage) {
      PlanOptions options = AdamOptions(stage, 3);
      options.partition = partition;
      options.manual_owners = {0, 1, 2, 0};
      const auto plan = MakePlan(model, options);
      EXPECT_EQ(plan->buffers().size(), 3u);
      const MemoryReport memory = plan->Memory(true);
      EXPECT_EQ(memory.param_bytes, 0u);
      EXPECT_EQ(memory.grad_bytes, 0u);
      EXPECT_EQ(memory.state_bytes, 0u);
      EXPECT_EQ(memory.HostTotal(3, true), 0u);
    }
  }
}

// Returns a root with 1,024 elements, blocks of 4,096, 4,096 and 3,072, and a
// layer of 2,048 in the first of them.
std::shared_ptr<Model> NestedModel() {
  auto model = std::make_shared<Model>();
  const auto add = [&](ModuleId module, int64_t numel) {
    EXPECT_OK(model->AddParam(module, "w", DType::kF32, {numel}));
  };
  add(kRootModule, 1024);
  const ModuleId a = *model->AddModule(kRootModule, "a", "Block");
  const ModuleId layer = *model->AddModule(a, "layer", "Layer");
  const ModuleId b = *model->AddModule(kRootModule, "b", "Block");
  add(a, 4096);
  add(layer, 2048);
  add(b, 4096);
  add(*model->AddModule(kRootModule, "c", "Block"), 3072);
  return model;
}

PlanOptions NestedOptions(int stage, int world_size) {
  PlanOptions options = AdamOptions(stage, world_size);
  options.wrap = *WrapPolicy::Parse("always");
  return options;
}

TEST(PlanMemory, SlotsArePerDepthAndAsLargeAsTheLargestUnit) {
  PlanOptions options = NestedOptions(3, 8);
  options.prefetch = 0;
  auto plan = MakePlan(NestedModel(), options);
  EXPECT_TRUE(plan->shards_params());
  EXPECT_TRUE(plan->shards_grads());
  const auto expect_slots = [](const std::vector<SlotPlan>& slots,
                               const std::vector<std::pair<int, int>>& want) {
    ASSERT_EQ(slots.size(), want.size());
    for (size_t depth = 0; depth < want.size(); ++depth) {
      EXPECT_EQ(slots[depth].count, want[depth].first) << depth;
      EXPECT_EQ(slots[depth].bytes, static_cast<uint64_t>(want[depth].second));
    }
  };
  for (const auto* slots : {&plan->param_slots(), &plan->grad_slots()}) {
    expect_slots(*slots, {{1, 4096}, {1, 16384}, {1, 8192}});
  }
  // A rank's eighth of each unit is one page at most.
  MemoryReport memory = plan->Memory(false);
  EXPECT_EQ(memory.param_bytes, 5 * 4096u);
  EXPECT_EQ(memory.grad_bytes, 5 * 4096u);
  EXPECT_EQ(memory.transient_bytes, 2 * 28672u);
  // Shared parameters exist once, whole, and need no slots.
  memory = plan->Memory(true);
  EXPECT_EQ(memory.param_bytes, 57344u);
  EXPECT_EQ(memory.grad_bytes, 5 * 4096u);
  EXPECT_EQ(memory.transient_bytes, 28672u);
  EXPECT_EQ(memory.HostTotal(8, true),
            57344 + 8 * (memory.grad_bytes + memory.state_bytes + 28672));

  // Slots of 45,056 and parts of 20,480 are more than 57,344, so nothing is
  // sharded.
  options.prefetch = 1;
  plan = MakePlan(NestedModel(), options);
  EXPECT_FALSE(plan->shards_params());
  EXPECT_FALSE(plan->shards_grads());
  expect_slots(plan->grad_slots(), {{0, 0}, {0, 0}, {0, 0}});
  EXPECT_EQ(plan->Memory(false).param_bytes, 57344u);
  EXPECT_EQ(plan->Memory(false).transient_bytes, 0u);
}

TEST(PlanMemory, PrefetchTakesNoMoreSlotsThanThereAreUnits) {
  auto model = std::make_shared<Model>();
  const auto add = [&](int blocks) {
    for (int i = 0; i < blocks; ++i) {
      const ModuleId block =
          *model->AddModule(kRootModule, StrCat("b", i), "Block");
      // Some parameters are frozen, and those have no gradients.
      const ParamId param = *model->AddParam(block, "w", DType::kF32, {4096});
      EXPECT_OK(model->SetTrainable(param, i % 4 != 0));
    }
  };
  add(12);
  PlanOptions options = NestedOptions(3, 4);
  options.prefetch = 2;
  auto plan = MakePlan(model, options);
  ASSERT_TRUE(plan->shards_params() && plan->shards_grads());
  EXPECT_EQ(plan->param_slots()[0].count, 0);  // The root has no parameters.
  EXPECT_EQ(plan->param_slots()[1].count, 3);
  EXPECT_EQ(plan->grad_slots()[1].count, 3);
  options.prefetch = 64;
  plan = MakePlan(model, options);
  EXPECT_FALSE(plan->shards_params() || plan->shards_grads());
}

TEST(PlanMemory, OnlyItsStageShards) {
  for (int stage = 0; stage <= 3; ++stage) {
    PlanOptions options = NestedOptions(stage, 8);
    options.prefetch = 0;
    auto plan = MakePlan(NestedModel(), options);
    EXPECT_EQ(plan->shards_grads(), stage >= 2);
    EXPECT_EQ(plan->shards_params(), stage == 3);
    options.whole_grads = true;
    plan = MakePlan(NestedModel(), options);
    EXPECT_FALSE(plan->shards_grads());
    EXPECT_EQ(plan->shards_params(), stage == 3);
    options = NestedOptions(stage, 1);
    plan = MakePlan(NestedModel(), options);
    EXPECT_FALSE(plan->shards_grads() || plan->shards_params());
  }
}

TEST(PlanMemory, DeterministicSumsAreF32) {
  auto model = ModelOf({{1 << 20}}, DType::kBF16);
  constexpr uint64_t kMiB = 1 << 20;
  PlanOptions options = AdamOptions(1, 4);
  EXPECT_EQ(MakePlan(model, options)->Memory(false).grad_bytes, 2 * kMiB);
  options.deterministic = true;
  auto plan = MakePlan(model, options);
  EXPECT_EQ(plan->buffers()[0].sum_dtype, DType::kF32);
  // Gradients are whole, and a rank has an f32 sum of a quarter. With shared
  // memory, sums take no memory.
  EXPECT_EQ(plan->Memory(false).grad_bytes, 2 * kMiB + kMiB);
  EXPECT_EQ(plan->Memory(true).grad_bytes, 2 * kMiB);
  // Sums of f32 gradients replace no gradients either.
  options.f32_grads = true;
  EXPECT_EQ(MakePlan(model, options)->Memory(false).grad_bytes, 4 * kMiB);
}

TEST(PlanMemory, ShardGroupsHoldParametersAgain) {
  auto model = std::make_shared<Model>();
  for (int i = 0; i < 64; ++i) {
    const ModuleId block =
        *model->AddModule(kRootModule, StrCat("b", i), "Block");
    EXPECT_OK(model->AddParam(block, "w", DType::kF32, {64 * 1024}));
  }
  constexpr uint64_t kWhole = 64 * 256 * 1024;
  for (const int group : {0, 2, 4, 8}) {
    PlanOptions options = NestedOptions(3, 8);
    options.shard_group_size = group;
    const auto plan = MakePlan(model, options);
    ASSERT_TRUE(plan->shards_params());
    const int size = group == 0 ? 8 : group;
    EXPECT_EQ(plan->HeldRanges(), 8 / size);
    const MemoryReport memory = plan->Memory(false);
    EXPECT_EQ(memory.param_bytes, kWhole / static_cast<uint64_t>(size));
    // All ranks share the gradients.
    EXPECT_EQ(memory.grad_bytes, kWhole / 8);
    EXPECT_EQ(memory.state_bytes, 2 * kWhole / 8);
  }
  // A single rank holds everything.
  PlanOptions options = NestedOptions(3, 8);
  options.shard_group_size = 1;
  EXPECT_FALSE(MakePlan(model, options)->shards_params());
}

uint64_t Total(const MemoryReport& memory) { return memory.HostTotal(1, true); }

TEST(PlanMemory, TheTotalOfAHostDoesNotWrapAround) {
  MemoryReport memory;
  memory.param_bytes = memory.grad_bytes = uint64_t{1} << 54;
  EXPECT_EQ(memory.HostTotal(3, true), uint64_t{1} << 56);
  EXPECT_EQ(memory.HostTotal(2, false), uint64_t{1} << 56);
  for (const bool shared : {false, true}) {
    EXPECT_EQ(memory.HostTotal(1 << 20, shared), UINT64_MAX);
  }
}

TEST(PlanMemory, NoStageCostsMoreThanTheOneBeforeIt) {
  std::mt19937 random(17);
  int sharded = 0;
  for (int round = 0; round < 400; ++round) {
    auto model = std::make_shared<Model>();
    std::vector<ModuleId> modules = {kRootModule};
    const int count = 1 + static_cast<int>(random() % 60);
    for (int i = 0; i < count; ++i) {
      if (random() % 2 == 0) {
        modules.push_back(*model->AddModule(modules[random() % modules.size()],
                                            StrCat("m", i),
                                            random() % 2 == 0 ? "A" : "B"));
      }
      const auto numel =
          static_cast<int64_t>(random() % (random() % 2 == 0 ? 100 : 40000));
      const ParamId param =
          *model->AddParam(modules[random() % modules.size()], StrCat("p", i),
                           static_cast<DType>(1 + random() % 3), {numel});
      EXPECT_OK(model->SetTrainable(param, random() % 4 != 0));
    }
    static constexpr const char* kWraps[] = {"", "always", "class?names=A",
                                             "size?min_numel=5000"};
    PlanOptions options = AdamOptions(0, 1 << (random() % 6));
    options.wrap = *WrapPolicy::Parse(kWraps[random() % 4]);
    options.partition = static_cast<Partition>(1 + random() % 3);
    options.param_dtype = static_cast<DType>(1 + random() % 3);
    options.f32_classes = {"B"};
    options.buffer_bytes = 1 + static_cast<int64_t>(random() % 200000);
    options.shard_group_size =
        random() % 2 == 0
            ? 0
            : 1 << (random() % static_cast<unsigned>(
                                   1 + __builtin_ctz(static_cast<unsigned>(
                                           options.world_size))));
    options.prefetch = static_cast<int>(random() % 4);
    options.whole_grads = random() % 5 == 0;
    options.deterministic = random() % 2 == 0;
    options.f32_grads = random() % 4 == 0;
    uint64_t before[2] = {UINT64_MAX, UINT64_MAX};
    for (options.stage = 0; options.stage <= 3; ++options.stage) {
      const auto plan = MakePlan(model, options);
      ASSERT_NE(plan, nullptr);
      if (plan->shards_grads() && plan->shards_params()) ++sharded;
      for (const bool shared : {false, true}) {
        const uint64_t total = Total(plan->Memory(shared));
        EXPECT_LE(total, before[shared]) << plan->ToText();
        before[shared] = total;
      }
      // Transient memory is that of all slots.
      const MemoryReport memory = plan->Memory(false);
      const auto slots = [](const std::vector<SlotPlan>& plans) {
        uint64_t bytes = 0;
        for (const SlotPlan& slot : plans) {
          bytes += static_cast<uint64_t>(slot.count) * slot.bytes;
        }
        return bytes;
      };
      EXPECT_EQ(memory.transient_bytes,
                slots(plan->param_slots()) + slots(plan->grad_slots()));
    }
  }
  EXPECT_GT(sharded, 20);
}

}  // namespace
}  // namespace shard::plan_memory_test
