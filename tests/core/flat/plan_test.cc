// SPDX-License-Identifier: Apache-2.0

#include "core/flat/plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "core/base/strings.h"
#include "core/partition/greedy.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/flat/plans.h"

namespace shard::plan_test {
namespace {

using testing::AdamOptions;
using testing::MakePlan;
using testing::ModelOf;
using testing::Shapes;

// Returns the rank in whose range a parameter begins.
int64_t OwnerOf(const Plan& plan, ParamId param) {
  const ParamPlace& place = plan.places()[static_cast<size_t>(param)];
  return place.offset /
         plan.buffers()[static_cast<size_t>(place.buffer)].layout.shard_numel();
}

TEST(Plan, OneUnitHasBuffersByDtypeAndTrainability) {
  auto model = std::make_shared<Model>();
  const auto add = [&](const char* name, DType dtype, bool trainable) {
    const ParamId param = *model->AddParam(kRootModule, name, dtype, {10});
    EXPECT_OK(model->SetTrainable(param, trainable));
    return param;
  };
  add("a", DType::kBF16, true);
  add("b", DType::kF32, false);
  add("c", DType::kBF16, true);
  add("d", DType::kF32, true);
  const ParamId ignored = add("e", DType::kF64, true);
  ASSERT_OK(model->IgnoreParam(ignored));

  const auto plan = MakePlan(model, AdamOptions(1, 2));
  ASSERT_EQ(plan->units().size(), 1u);
  EXPECT_EQ(plan->units()[0].module, kRootModule);
  EXPECT_EQ(plan->units()[0].buffers, (std::vector<int32_t>{0, 1, 2}));
  ASSERT_EQ(plan->buffers().size(), 3u);
  EXPECT_EQ(plan->buffers()[0].dtype, DType::kBF16);
  EXPECT_EQ(plan->buffers()[0].layout.slots().size(), 2u);
  EXPECT_EQ(plan->buffers()[1].dtype, DType::kF32);
  EXPECT_FALSE(plan->buffers()[1].trainable);
  EXPECT_TRUE(plan->buffers()[2].trainable);

  EXPECT_EQ(plan->places()[0].buffer, 0);
  EXPECT_EQ(plan->places()[2].buffer, 0);
  EXPECT_EQ(plan->places()[2].offset, 10);
  EXPECT_EQ(plan->places()[3].buffer, 2);
  EXPECT_EQ(plan->places()[4].buffer, -1);
}

TEST(Plan, EveryRangeBeginsAtTheAlignment) {
  for (const int64_t bytes : {1, 4, 6, 64, 4096}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      PlanOptions options = AdamOptions(1, 3);
      options.alignment_bytes = bytes;
      const auto plan = MakePlan(ModelOf({{100}, {7}}, dtype), options);
      const auto size = static_cast<int64_t>(DTypeSize(dtype));
      const int64_t shard = plan->buffers()[0].layout.shard_numel();
      EXPECT_EQ(shard * size % bytes, 0) << bytes;
      EXPECT_LT(shard * size, (107 + 2) / 3 * size + bytes * size);
    }
  }
}

TEST(Plan, TiesAreStoredOnce) {
  auto model = ModelOf({{4}, {6}});
  ASSERT_OK(model->Tie(kRootModule, "tied", 0));
  const auto plan = MakePlan(model, AdamOptions(1, 1));
  EXPECT_EQ(plan->buffers()[0].layout.numel(), 10);
  EXPECT_EQ(plan->buffers()[0].layout.slots().size(), 2u);
}

TEST(Plan, GreedyIsOneGroupOfAllParameters) {
  auto model = std::make_shared<Model>();
  EXPECT_OK(model->AddParam(kRootModule, "a", DType::kF32, {50}));
  EXPECT_OK(model->AddParam(kRootModule, "b", DType::kBF16, {60}));
  EXPECT_OK(model->AddParam(kRootModule, "c", DType::kF32, {20}));
  EXPECT_OK(model->AddParam(kRootModule, "frozen", DType::kF32, {40}));
  EXPECT_OK(model->SetTrainable(3, false));
  PlanOptions options = AdamOptions(1, 2);
  options.partition = Partition::kGreedy;
  const auto plan = MakePlan(model, options);
  EXPECT_EQ(OwnerOf(*plan, 1), 0);  // 60
  EXPECT_EQ(OwnerOf(*plan, 0), 1);  // 50, and the frozen one: 90
  EXPECT_EQ(OwnerOf(*plan, 2), 0);  // 80
  // A frozen parameter counts as load, but its place is an even cut.
  const FlatLayout& frozen = plan->buffers()[2].layout;
  EXPECT_FALSE(plan->buffers()[2].trainable);
  EXPECT_EQ(frozen.SlicesOf(0).size(), 1u);
  EXPECT_EQ(frozen.SlicesOf(1).size(), 1u);
}

TEST(Plan, GreedyOwnersAreThoseOfThePartitionerOverAllParameters) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    auto model = std::make_shared<Model>();
    std::vector<int64_t> numels;
    std::vector<ParamId> stored;
    for (int i = 0; i < 40; ++i) {
      // The size is not 0: an empty parameter at a range's end seems to begin
      // the next range.
      const auto numel = static_cast<int64_t>(1 + random() % 99);
      const auto dtype = static_cast<DType>(1 + random() % 4);
      const ParamId param =
          *model->AddParam(kRootModule, StrCat("p", i), dtype, {numel});
      EXPECT_OK(model->SetTrainable(param, random() % 3 != 0));
      if (random() % 5 == 0) {
        EXPECT_OK(model->IgnoreParam(param));
        continue;
      }
      stored.push_back(param);
      numels.push_back(numel);
    }
    PlanOptions options = AdamOptions(1, 1 + static_cast<int>(random() % 6));
    options.partition = Partition::kGreedy;
    const auto plan = MakePlan(model, options);
    GreedyPartitioner partitioner(options.world_size);
    Assignment expected;
    ASSERT_OK(partitioner.AddGroup(numels, &expected));
    for (size_t i = 0; i < stored.size(); ++i) {
      if (!model->params()[static_cast<size_t>(stored[i])].trainable) continue;
      EXPECT_EQ(OwnerOf(*plan, stored[i]), expected.owners[i]) << i;
    }
  }
}

TEST(Plan, BucketsFormFromTheEndAndGoInTurn) {
  PlanOptions options = AdamOptions(1, 2);
  options.partition = Partition::kBucket;
  options.bucket_bytes = 40;
  // From the end, in bytes: 8 + 40 closes a bucket, 4 + 36 closes one, 12 is
  // left.
  const auto plan = MakePlan(ModelOf({{3}, {9}, {1}, {10}, {2}}), options);
  EXPECT_EQ(OwnerOf(*plan, 4), 0);
  EXPECT_EQ(OwnerOf(*plan, 3), 0);
  EXPECT_EQ(OwnerOf(*plan, 2), 1);
  EXPECT_EQ(OwnerOf(*plan, 1), 1);
  EXPECT_EQ(OwnerOf(*plan, 0), 0);
}

TEST(Plan, ABucketHoldsOneDtype) {
  auto model = std::make_shared<Model>();
  EXPECT_OK(model->AddParam(kRootModule, "a", DType::kF32, {5}));
  EXPECT_OK(model->AddParam(kRootModule, "b", DType::kBF16, {5}));
  EXPECT_OK(model->AddParam(kRootModule, "c", DType::kF32, {5}));
  PlanOptions options = AdamOptions(1, 2);
  options.partition = Partition::kBucket;
  const auto plan = MakePlan(model, options);
  EXPECT_EQ(OwnerOf(*plan, 0), OwnerOf(*plan, 2));
  EXPECT_NE(OwnerOf(*plan, 0), OwnerOf(*plan, 1));
}

TEST(Plan, ShardedBucketsUseEveryRank) {
  PlanOptions options = AdamOptions(1, 2);
  options.partition = Partition::kBucket;
  const auto model = ModelOf({{8}, {8}, {8}});
  const auto whole = MakePlan(model, options);
  for (ParamId param = 0; param < 3; ++param) {
    EXPECT_EQ(OwnerOf(*whole, param), 0);
  }
  // One bucket is cut into three pieces for two ranks.
  options.shard_buckets = true;
  const auto cut = MakePlan(model, options);
  EXPECT_EQ(OwnerOf(*cut, 2), 0);
  EXPECT_EQ(OwnerOf(*cut, 1), 1);
  EXPECT_EQ(OwnerOf(*cut, 0), 0);
}

TEST(Plan, ManualOwnersOwnWhatTheyAreGiven) {
  auto model = ModelOf({{8}, {8}, {8}, {8}});
  EXPECT_OK(model->SetTrainable(1, false));
  EXPECT_OK(model->IgnoreParam(2));
  PlanOptions options = AdamOptions(1, 3);
  options.partition = Partition::kManual;
  options.manual_owners = {2, -7, 99, 1};  // Neither -7 nor 99 is read.
  const auto plan = MakePlan(model, options);
  EXPECT_EQ(OwnerOf(*plan, 0), 2);
  EXPECT_EQ(OwnerOf(*plan, 3), 1);

  // The owners of one dtype say nothing about those of another, and a rank may
  // own nothing.
  EXPECT_OK(model->AddParam(kRootModule, "half", DType::kBF16, {3}));
  options.manual_owners.push_back(0);
  const auto mixed = MakePlan(model, options);
  EXPECT_EQ(OwnerOf(*mixed, 0), 2);
  EXPECT_EQ(OwnerOf(*mixed, 3), 1);
  EXPECT_EQ(OwnerOf(*mixed, 4), 0);
  EXPECT_TRUE(mixed->buffers()[0].layout.SlicesOf(0).empty());

  options.manual_owners[3] = 3;
  ExpectInvalid(Plan::Create(model, options), {"'p3'", "rank 3", "0 to 2"});
  // A trainable parameter must have an owner.
  options.manual_owners[3] = -1;
  ExpectInvalid(Plan::Create(model, options), {"'p3'", "rank -1"});
  options.manual_owners = {1};
  ExpectInvalid(Plan::Create(model, options), {"1 entries", "5 parameters"});
}

TEST(Plan, EveryStageAndPartitionIsSound) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    Shapes shapes(1 + random() % 30);
    for (auto& shape : shapes) {
      shape.resize(random() % 4);
      for (int64_t& size : shape) size = static_cast<int64_t>(random() % 9);
    }
    auto model = std::make_shared<Model>();
    for (size_t i = 0; i < shapes.size(); ++i) {
      const auto dtype = static_cast<DType>(1 + random() % 4);
      const auto param =
          model->AddParam(kRootModule, StrCat("p", i), dtype, shapes[i]);
      ASSERT_OK(param);
      EXPECT_OK(model->SetTrainable(*param, random() % 4 != 0));
    }
    PlanOptions options = AdamOptions(static_cast<int>(random() % 4),
                                      1 + static_cast<int>(random() % 50));
    options.partition = static_cast<Partition>(1 + random() % 4);
    options.bucket_bytes = 1 + static_cast<int64_t>(random() % 500);
    options.shard_buckets = random() % 2 != 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      options.manual_owners.push_back(static_cast<int32_t>(
          random() % static_cast<unsigned>(options.world_size)));
    }
    const auto plan = MakePlan(model, options);
    ASSERT_NE(plan, nullptr);
    size_t slots = 0;
    for (size_t b = 0; b < plan->buffers().size(); ++b) {
      const FlatBufferPlan& buffer = plan->buffers()[b];
      slots += buffer.layout.slots().size();
      for (const Slot& slot : buffer.layout.slots()) {
        const auto param = static_cast<size_t>(slot.param);
        const Model::Param& info = model->params()[param];
        EXPECT_EQ(info.dtype, buffer.dtype);
        EXPECT_EQ(info.trainable, buffer.trainable);
        EXPECT_EQ(info.numel, slot.numel);
        EXPECT_EQ(plan->places()[param].buffer, static_cast<int32_t>(b));
        EXPECT_EQ(plan->places()[param].offset, slot.offset);
      }
    }
    EXPECT_EQ(slots, shapes.size());
  }
}

TEST(Plan, MayHaveSixteenThousandRanks) {
  for (const Partition partition :
       {Partition::kEven, Partition::kGreedy, Partition::kBucket}) {
    PlanOptions options = AdamOptions(3, 16384);
    options.partition = partition;
    options.shard_buckets = true;
    const auto plan = MakePlan(ModelOf({{1000, 1000}, {7}, {}, {0}}), options);
    EXPECT_EQ(plan->buffers()[0].layout.world_size(), 16384);
    EXPECT_EQ(plan->buffers()[0].layout.numel(), 1000008);
  }
}

// Blocks of 8-bit states hold the same elements in every layout.
TEST(Plan, ParametersWithEightBitStatesBeginWithABlock) {
  auto model = ModelOf({{100}, {300}, {1}, {256}});
  for (const Partition partition : {Partition::kEven, Partition::kGreedy}) {
    for (const int world_size : {1, 2, 3}) {
      PlanOptions options = AdamOptions(1, world_size);
      options.partition = partition;
      for (StateTensor& state : options.groups[0].states) {
        state.dtype = DType::kQ8;
      }
      const auto plan = MakePlan(model, options);
      const FlatLayout& layout = plan->buffers()[0].layout;
      EXPECT_EQ(layout.numel(), 657);
      EXPECT_EQ(layout.shard_numel() % kQ8Block, 0);
      for (const Slot& slot : layout.slots()) {
        EXPECT_EQ(slot.offset % kQ8Block, 0);
      }
    }
  }
}

TEST(Plan, GroupsHaveBuffersOfTheirOwn) {
  auto model = ModelOf({{10}, {20}, {30}, {40}, {50}});
  ASSERT_OK(model->AddParamGroup("?lr=0.5", std::vector{3, 0}));
  ASSERT_OK(model->AddParamGroup("sgd", std::vector{4}));
  // The frozen parameters of all groups share a buffer.
  ASSERT_OK(model->SetTrainable(1, false));
  ASSERT_OK(model->SetTrainable(4, false));
  PlanOptions options = AdamOptions(1, 2);
  options.groups.push_back({"b", {{"momentum_buffer", DType::kF32}}});
  options.groups.push_back({"c", {}});
  const auto plan = MakePlan(model, options);
  ASSERT_EQ(plan->buffers().size(), 3u);
  EXPECT_EQ(plan->buffers()[0].group, 1);
  EXPECT_EQ(plan->buffers()[0].layout.numel(), 50);
  EXPECT_EQ(plan->buffers()[0].states.size(), 1u);
  EXPECT_FALSE(plan->buffers()[1].trainable);
  EXPECT_EQ(plan->buffers()[1].layout.numel(), 70);
  EXPECT_TRUE(plan->buffers()[1].states.empty());
  EXPECT_EQ(plan->buffers()[2].group, 0);
  EXPECT_EQ(plan->buffers()[2].states.size(), 2u);
  EXPECT_EQ(WalkOf(plan->places(), plan->NumStored()),
            (std::vector<ParamId>{0, 1, 2, 3, 4}));
}

// As in ZeroRedundancyOptimizer, loads carry over from group to group.
TEST(Plan, GreedyGivesOutGroupAfterGroup) {
  auto model = ModelOf({{8}, {7}, {6}, {5}});
  ASSERT_OK(model->AddParamGroup("b", std::vector{0, 1}));
  PlanOptions options = AdamOptions(1, 2);
  options.partition = Partition::kGreedy;
  options.groups.push_back(options.groups[0]);
  const auto plan = MakePlan(model, options);
  // Group 0 loads the ranks with 6 and 5. Group 1's 8 goes to the rank with 5,
  // its 7 to the one with 6.
  EXPECT_EQ(OwnerOf(*plan, 2), 0);
  EXPECT_EQ(OwnerOf(*plan, 3), 1);
  EXPECT_EQ(OwnerOf(*plan, 0), 1);
  EXPECT_EQ(OwnerOf(*plan, 1), 0);
}

// An optimizer that takes matrices only, with a state per row. Its work is the
// number of rows.
constexpr TensorTraits kRowTraits = {
    [](const int64_t*, int ndim) { return ndim == 2 ? nullptr : "a matrix"; },
    [](int, const int64_t* shape, int) { return shape[0]; },
    [](const int64_t* shape, int ndim) {
      EXPECT_EQ(ndim, 2);
      return shape[0];
    },
    [](const int64_t* shape, int) { return 10 * shape[1]; },
    [](const int64_t* shape, int, int64_t count) {
      return 100 * count * shape[1];
    },
};

TEST(Plan, OptimizersOfWholeParametersOwnThemInEveryPartition) {
  auto model = ModelOf({{100, 3}, {10, 500}, {90, 2}, {7}});
  ASSERT_OK(model->AddParamGroup("rows", std::vector{0, 1, 2}));
  PlanOptions options = AdamOptions(1, 2);
  options.groups.push_back({"rows", {{"row_state", DType::kF32}}, &kRowTraits});
  options.manual_owners = {0, 0, 1, 1};
  for (const Partition partition : {Partition::kEven, Partition::kGreedy,
                                    Partition::kBucket, Partition::kManual}) {
    options.partition = partition;
    const auto plan = MakePlan(model, options);
    const FlatBufferPlan& rows = plan->buffers()[0];
    EXPECT_EQ(rows.group, 1);
    for (const int rank : {0, 1}) {
      for (const SlotSlice& slice : rows.layout.SlicesOf(rank)) {
        EXPECT_EQ(slice.param_begin, 0);
        EXPECT_EQ(slice.numel, model->params()[slice.param].numel);
      }
    }
    // States have the order of the parameters, in a layout of their own.
    ASSERT_NE(rows.states[0].own_layout, nullptr);
    const FlatLayout& states = rows.StateLayout(0);
    EXPECT_EQ(states.numel(), 200);
    ASSERT_EQ(states.slots().size(), rows.layout.slots().size());
    for (size_t i = 0; i < states.slots().size(); ++i) {
      EXPECT_EQ(states.slots()[i].param, rows.layout.slots()[i].param);
      EXPECT_EQ(states.slots()[i].offset / states.shard_numel(),
                rows.layout.slots()[i].offset / rows.layout.shard_numel());
    }
    // The second parameter needs the larger workspace.
    EXPECT_EQ(plan->workspace_numel(), 5000);
    EXPECT_EQ(plan->Memory(true).workspace_bytes, RoundUpToPage(20000));
    // No two of a rank are equal.
    EXPECT_EQ(plan->gpu_workspace_numel(), 50000);
    EXPECT_EQ(plan->Memory(true, nullptr, Processor::kGpu).workspace_bytes,
              RoundUpToPage(200000));
    if (partition == Partition::kEven || partition == Partition::kGreedy) {
      // Owners are chosen by the work, 100 | 90 and 10, not by the elements.
      EXPECT_EQ(OwnerOf(*plan, 0), 0);
      EXPECT_EQ(OwnerOf(*plan, 2), 1);
      EXPECT_EQ(OwnerOf(*plan, 1), 1);
    }
  }
}

// Frozen parameters are not stepped, so they have no cost, whatever their
// shape.
TEST(Plan, FrozenParametersAreNoWorkForOptimizersOfWholeParameters) {
  for (const Partition partition : {Partition::kEven, Partition::kGreedy}) {
    auto model = ModelOf({{7, 2}, {7, 2}, {500, 2}, {9}, {}});
    for (const ParamId frozen : {2, 3, 4}) {
      EXPECT_OK(model->SetTrainable(frozen, false));
    }
    PlanOptions options = AdamOptions(1, 2);
    options.partition = partition;
    options.groups[0].tensor = &kRowTraits;
    const auto plan = MakePlan(model, options);
    EXPECT_EQ(OwnerOf(*plan, 0), 0);
    EXPECT_EQ(OwnerOf(*plan, 1), 1);
  }
}

TEST(Plan, ParametersThatCannotBeSteppedAreNamed) {
  auto model = ModelOf({{4, 3}, {768}});
  PlanOptions options = AdamOptions(1, 2);
  options.groups[0].tensor = &kRowTraits;
  ExpectInvalid(Plan::Create(model, options),
                {"'p1'", "[768]", "must be a matrix", "adamw"});
  EXPECT_OK(model->SetTrainable(1, false));
  EXPECT_OK(Plan::Create(model, options));

  auto half = ModelOf({{4, 3}}, DType::kF16);
  options = AdamOptions(1, 2);
  options.masters = Masters::kNoneStochastic;
  ExpectInvalid(Plan::Create(half, options), {"'p0'", "f16", "stochastic"});
}

}  // namespace
}  // namespace shard::plan_test
