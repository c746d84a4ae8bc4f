// SPDX-License-Identifier: Apache-2.0
//
// Plans of several units: the unit and the buffer of each parameter.

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/flat/plans.h"

namespace shard::units_test {
namespace {

using testing::MakePlan;

PlanOptions Wrapping(std::string_view wrap, int world_size = 2) {
  return {.world_size = world_size, .wrap = *WrapPolicy::Parse(wrap)};
}

ParamId Add(Model* model, ModuleId module, const char* name, int64_t numel,
            DType dtype = DType::kF32) {
  return *model->AddParam(module, name, dtype, {numel});
}

// Returns the parameters of a buffer, by offset.
std::vector<ParamId> ParamsOf(const Plan& plan, int32_t buffer) {
  std::vector<ParamId> params;
  for (const Slot& slot :
       plan.buffers()[static_cast<size_t>(buffer)].layout.slots()) {
    params.push_back(slot.param);
  }
  return params;
}

TEST(Units, HaveBuffersOfTheirOwn) {
  auto model = std::make_shared<Model>();
  const ModuleId a = *model->AddModule(kRootModule, "a", "Block");
  const ModuleId inner = *model->AddModule(a, "inner", "Block");
  const ModuleId plain = *model->AddModule(a, "plain", "Linear");
  const ModuleId empty = *model->AddModule(kRootModule, "empty", "Block");
  const ModuleId tail = *model->AddModule(kRootModule, "tail", "Linear");
  const ParamId root_w = Add(model.get(), kRootModule, "w", 1);
  const ParamId a_w = Add(model.get(), a, "w", 2);
  const ParamId inner_w = Add(model.get(), inner, "w", 3);
  const ParamId inner_h = Add(model.get(), inner, "h", 4, DType::kBF16);
  const ParamId plain_w = Add(model.get(), plain, "w", 5);
  const ParamId tail_w = Add(model.get(), tail, "w", 6);
  const ParamId ignored = Add(model.get(), tail, "ignored", 7);
  EXPECT_OK(model->IgnoreParam(ignored));

  const auto plan = MakePlan(model, Wrapping("class?names=Block"));
  ASSERT_EQ(plan->units().size(), 4u);
  const auto expect_unit = [&](size_t index, ModuleId module, const char* fqn,
                               int32_t parent, int32_t depth,
                               const std::vector<int32_t>& buffers) {
    const UnitPlan& unit = plan->units()[index];
    EXPECT_EQ(unit.module, module);
    EXPECT_EQ(plan->model().ModuleFqn(unit.module), fqn);
    EXPECT_EQ(unit.parent, parent);
    EXPECT_EQ(unit.depth, depth);
    EXPECT_EQ(unit.buffers, buffers);
    for (const int32_t buffer : buffers) {
      EXPECT_EQ(plan->buffers()[static_cast<size_t>(buffer)].unit,
                static_cast<int32_t>(index));
    }
  };
  expect_unit(0, kRootModule, "", -1, 0, {0});
  expect_unit(1, a, "a", 0, 1, {1});
  expect_unit(2, inner, "a.inner", 1, 2, {2, 3});
  expect_unit(3, empty, "empty", 0, 1, {});
  // A parameter after a unit belongs to the unit around it again.
  EXPECT_EQ(ParamsOf(*plan, 0), (std::vector<ParamId>{root_w, tail_w}));
  EXPECT_EQ(ParamsOf(*plan, 1), (std::vector<ParamId>{a_w, plain_w}));
  EXPECT_EQ(ParamsOf(*plan, 2), (std::vector<ParamId>{inner_w}));
  EXPECT_EQ(ParamsOf(*plan, 3), (std::vector<ParamId>{inner_h}));
  EXPECT_EQ(plan->UnitOf(plain_w), 1);
  EXPECT_EQ(plan->UnitOf(inner_h), 2);
  EXPECT_EQ(plan->UnitOf(ignored), -1);
}

TEST(Units, TiedParametersAreWhereTheirFirstNameIs) {
  auto model = std::make_shared<Model>();
  const ModuleId embedding =
      *model->AddModule(kRootModule, "embedding", "Block");
  const ModuleId head = *model->AddModule(kRootModule, "head", "Block");
  const ParamId weight = Add(model.get(), embedding, "weight", 8);
  EXPECT_OK(model->Tie(head, "weight", weight));
  auto plan = MakePlan(model, Wrapping("always"));
  EXPECT_EQ(plan->UnitOf(weight), 1);
  EXPECT_TRUE(plan->units()[2].buffers.empty());
  // The order of adding names does not matter.
  EXPECT_OK(model->Tie(kRootModule, "first", weight));
  plan = MakePlan(model, Wrapping("always"));
  EXPECT_EQ(plan->UnitOf(weight), 0);
  EXPECT_EQ(plan->buffers().size(), 1u);
}

TEST(Units, BuffersCloseBeforeTheyAreTooLong) {
  auto model = std::make_shared<Model>();
  const auto add = [&](int64_t numel, DType dtype = DType::kBF16) {
    const std::string name = StrCat("p", model->params().size());
    return Add(model.get(), kRootModule, name.c_str(), numel, dtype);
  };
  // At most 100 bytes: 40 + 60 | 2 | 200 with the parameter without elements |
  // 100.
  for (const int64_t numel : {20, 30, 1, 100, 0, 50}) add(numel);
  PlanOptions options = {.buffer_bytes = 100};
  auto plan = MakePlan(model, options);
  ASSERT_EQ(plan->buffers().size(), 4u);
  EXPECT_EQ(ParamsOf(*plan, 0), (std::vector<ParamId>{0, 1}));
  EXPECT_EQ(ParamsOf(*plan, 1), (std::vector<ParamId>{2}));
  EXPECT_EQ(ParamsOf(*plan, 2), (std::vector<ParamId>{3, 4}));
  EXPECT_EQ(ParamsOf(*plan, 3), (std::vector<ParamId>{5}));

  // The bytes of gradients count, not those of parameters.
  options.f32_grads = true;
  plan = MakePlan(model, options);
  EXPECT_EQ(ParamsOf(*plan, 0), (std::vector<ParamId>{0}));
  // Frozen parameters have no gradients.
  for (ParamId param = 0; param < 6; ++param) {
    EXPECT_OK(model->SetTrainable(param, false));
  }
  plan = MakePlan(model, options);
  EXPECT_EQ(ParamsOf(*plan, 0), (std::vector<ParamId>{0, 1}));
}

TEST(Units, BuffersOfWholeParametersAreNotSplit) {
  auto model = std::make_shared<Model>();
  for (int i = 0; i < 6; ++i) {
    Add(model.get(), kRootModule, StrCat("p", i).c_str(), 100);
  }
  PlanOptions options = {.world_size = 2, .buffer_bytes = 1};
  EXPECT_EQ(MakePlan(model, options)->buffers().size(), 6u);
  options.manual_owners = {0, 1, 0, 1, 0, 1};
  for (const Partition partition :
       {Partition::kGreedy, Partition::kBucket, Partition::kManual}) {
    options.partition = partition;
    EXPECT_EQ(MakePlan(model, options)->buffers().size(), 1u);
  }
  // Frozen parameters are cut evenly in every partition.
  EXPECT_OK(model->SetTrainable(4, false));
  EXPECT_OK(model->SetTrainable(5, false));
  EXPECT_EQ(MakePlan(model, options)->buffers().size(), 3u);
}

// Owners are decided over the whole model.
TEST(Units, DoNotChangeOwners) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    auto model = std::make_shared<Model>();
    for (int i = 0; i < 30; ++i) {
      const ModuleId parent =
          static_cast<ModuleId>(random() % model->modules().size());
      const ModuleId module =
          *model->AddModule(parent, StrCat("m", i), "Module");
      Add(model.get(), module, "w", 1 + static_cast<int64_t>(random() % 50));
    }
    PlanOptions options = {.world_size = 4,
                           .partition = random() % 2 == 0 ? Partition::kGreedy
                                                          : Partition::kBucket,
                           .bucket_bytes = 300};
    const auto whole = MakePlan(model, options);
    options.wrap = *WrapPolicy::Parse("always");
    const auto units = MakePlan(model, options);
    const auto owner_of = [](const Plan& plan, ParamId param) {
      const ParamPlace& place = plan.places()[static_cast<size_t>(param)];
      return place.offset / plan.buffers()[static_cast<size_t>(place.buffer)]
                                .layout.shard_numel();
    };
    EXPECT_EQ(units->units().size(), 31u);
    for (ParamId param = 0; param < 30; ++param) {
      EXPECT_EQ(units->place(param).position, whole->place(param).position);
      EXPECT_EQ(owner_of(*units, param), owner_of(*whole, param));
    }
  }
}

TEST(Units, EveryParameterIsInTheUnitOfTheInnermostWrappedModule) {
  std::mt19937 random(23);
  for (int round = 0; round < 100; ++round) {
    auto model = std::make_shared<Model>();
    for (int i = 0; i < 40; ++i) {
      const ModuleId parent =
          static_cast<ModuleId>(random() % model->modules().size());
      EXPECT_OK(model->AddModule(parent, StrCat("m", i),
                                 random() % 3 == 0 ? "Unit" : "Plain"));
    }
    if (round % 2 == 0) {
      EXPECT_OK(model->AddParamGroup(
          "", std::vector{Add(model.get(), kRootModule, "grouped", 7)}));
    }
    for (int i = 0; i < 60; ++i) {
      const auto module =
          static_cast<ModuleId>(random() % model->modules().size());
      const ParamId param = Add(model.get(), module, StrCat("p", i).c_str(),
                                static_cast<int64_t>(random() % 40),
                                static_cast<DType>(1 + random() % 3));
      EXPECT_OK(model->SetTrainable(param, random() % 3 != 0));
    }
    PlanOptions options = Wrapping("class?names=Unit", 3);
    options.buffer_bytes = 1 + static_cast<int64_t>(random() % 300);
    const auto plan = MakePlan(model, options);
    const auto& modules = model->modules();
    for (const Model::Reference& reference : model->references()) {
      ModuleId module = reference.module;
      while (module != kRootModule &&
             modules[static_cast<size_t>(module)].class_name != "Unit") {
        module = modules[static_cast<size_t>(module)].parent;
      }
      const int32_t unit = plan->UnitOf(reference.param);
      EXPECT_EQ(plan->units()[static_cast<size_t>(unit)].module, module);
    }
    for (const FlatBufferPlan& buffer : plan->buffers()) {
      int64_t bytes = 0;
      int with_elements = 0;
      for (const Slot& slot : buffer.layout.slots()) {
        const Model::Param& info =
            model->params()[static_cast<size_t>(slot.param)];
        EXPECT_EQ(info.dtype, buffer.dtype);
        EXPECT_EQ(info.trainable, buffer.trainable);
        if (buffer.trainable) {
          EXPECT_EQ(info.group, buffer.group);
        }
        bytes += slot.numel * static_cast<int64_t>(DTypeSize(buffer.dtype));
        if (slot.numel > 0) ++with_elements;
      }
      EXPECT_TRUE(bytes <= options.buffer_bytes || with_elements == 1);
    }
  }
}

TEST(ShardGroups, RangesOfOnePlaceLieTogether) {
  auto model = std::make_shared<Model>();
  for (int i = 0; i < 32; ++i) {
    const ModuleId block = *model->AddModule(kRootModule, StrCat(i), "Block");
    Add(model.get(), block, "w", 1 << 20);
  }
  for (const int size : {0, 1, 2, 3, 4, 6, 12}) {
    PlanOptions options = Wrapping("always", 12);
    options.stage = 3;
    options.shard_group_size = size;
    const auto plan = MakePlan(model, options);
    const int group = size == 0 ? 12 : size;
    ASSERT_EQ(plan->shards_params(), group > 1);
    std::set<int> ranges;
    for (int rank = 0; rank < 12; ++rank) {
      const int range = plan->RangeOf(rank);
      ranges.insert(range);
      EXPECT_EQ(plan->RankOf(range), rank);
      // A rank holds its own range, and the ranks of a group together hold all.
      EXPECT_GE(range, plan->FirstHeldRange(rank));
      EXPECT_LT(range, plan->FirstHeldRange(rank) + plan->HeldRanges());
      if (group > 1 && rank % group > 0) {
        EXPECT_EQ(plan->FirstHeldRange(rank),
                  plan->FirstHeldRange(rank - 1) + plan->HeldRanges());
      }
      if (rank % group == 0) {
        EXPECT_EQ(plan->FirstHeldRange(rank), 0);
      }
    }
    EXPECT_EQ(ranges.size(), 12u);
    EXPECT_EQ(plan->HeldRanges(), group > 1 ? 12 / group : 12);
  }
}

TEST(ShardGroups, WholeParametersLieInTheirOwnersRange) {
  auto model = std::make_shared<Model>();
  for (int i = 0; i < 4; ++i) {
    Add(model.get(), kRootModule, StrCat("p", i).c_str(), 16);
  }
  const PlanOptions options = {.stage = 3,
                               .world_size = 4,
                               .partition = Partition::kManual,
                               .manual_owners = {0, 1, 2, 3},
                               .shard_group_size = 2};
  const auto plan = MakePlan(model, options);
  for (ParamId param = 0; param < 4; ++param) {
    const int rank = options.manual_owners[static_cast<size_t>(param)];
    EXPECT_EQ(plan->places()[static_cast<size_t>(param)].offset / 16,
              plan->RangeOf(rank));
  }
  EXPECT_EQ(plan->RangeOf(1), 2);
}

TEST(ParamDType, F32FollowsItButForItsClasses) {
  auto model = std::make_shared<Model>();
  const ModuleId block = *model->AddModule(kRootModule, "block", "Block");
  const ModuleId norm = *model->AddModule(block, "norm", "Norm");
  const ModuleId scale = *model->AddModule(norm, "scale", "Linear");
  const ModuleId after = *model->AddModule(block, "after", "Linear");
  const ParamId wide = Add(model.get(), block, "wide", 8);
  const ParamId half = Add(model.get(), block, "half", 8, DType::kF16);
  const ParamId frozen = Add(model.get(), block, "frozen", 8);
  const ParamId norm_w = Add(model.get(), norm, "w", 8);
  const ParamId scale_w = Add(model.get(), scale, "w", 8);
  const ParamId after_w = Add(model.get(), after, "w", 8);
  const ParamId f64 = Add(model.get(), after, "f64", 8, DType::kF64);
  const ParamId ignored = Add(model.get(), after, "ignored", 8);
  EXPECT_OK(model->SetTrainable(frozen, false));
  EXPECT_OK(model->IgnoreParam(ignored));
  PlanOptions options = {.param_dtype = DType::kBF16, .f32_classes = {"Norm"}};
  const auto plan = MakePlan(model, options);
  const auto dtype_of = [&](ParamId param) {
    const int32_t buffer = plan->places()[static_cast<size_t>(param)].buffer;
    const DType dtype =
        plan->model().params()[static_cast<size_t>(param)].dtype;
    if (buffer >= 0) {
      EXPECT_EQ(plan->buffers()[static_cast<size_t>(buffer)].dtype, dtype);
    }
    return dtype;
  };
  for (const ParamId param : {wide, frozen, after_w}) {
    EXPECT_EQ(dtype_of(param), DType::kBF16);
    EXPECT_EQ(plan->UnitOf(param), 0);
  }
  for (const ParamId param : {norm_w, scale_w}) {
    EXPECT_EQ(dtype_of(param), DType::kF32);
    EXPECT_EQ(plan->UnitOf(param), 1);
  }
  EXPECT_EQ(dtype_of(half), DType::kF16);
  EXPECT_EQ(dtype_of(f64), DType::kF64);
  EXPECT_EQ(dtype_of(ignored), DType::kF32);
  EXPECT_EQ(plan->model().ModuleFqn(plan->unit(1).module), "block.norm");
  // Gradients have the narrowed dtype, and narrowed parameters have masters.
  const FlatBufferPlan& buffer = plan->buffers()[0];
  EXPECT_EQ(buffer.grad_dtype, DType::kBF16);
  EXPECT_TRUE(buffer.has_masters);
  // The host's model is unchanged.
  EXPECT_EQ(model->params()[static_cast<size_t>(wide)].dtype, DType::kF32);

  // This is the root's class, so all parameters stay f32.
  options.f32_classes = {""};
  EXPECT_EQ(MakePlan(model, options)->buffers()[0].dtype, DType::kF32);
  // Without another dtype the classes do not become units.
  options = PlanOptions();
  options.f32_classes = {"Norm"};
  EXPECT_EQ(MakePlan(model, options)->units().size(), 1u);
}

TEST(Units, ThePredicateIsNotKept) {
  auto model = std::make_shared<Model>();
  const ModuleId a = *model->AddModule(kRootModule, "a", "");
  Add(model.get(), a, "w", 8);
  auto alive = std::make_shared<int>(0);
  PlanOptions options;
  options.wrap.SetPredicate([alive](ModuleId, int64_t) { return true; });
  const auto plan = MakePlan(model, std::move(options));
  EXPECT_EQ(plan->units().size(), 2u);
  EXPECT_EQ(alive.use_count(), 1);
}

TEST(Units, BadOptionsAreNamed) {
  auto model = std::make_shared<Model>();
  Add(model.get(), kRootModule, "w", 8);
  const auto expect_bad = [&](auto change,
                              std::initializer_list<std::string_view> parts) {
    PlanOptions options = {.world_size = 6};
    change(&options);
    ExpectInvalid(Plan::Create(model, options), parts);
  };
  expect_bad([](PlanOptions* o) { o->shard_group_size = -1; }, {"size -1"});
  expect_bad([](PlanOptions* o) { o->shard_group_size = 4; },
             {"shard_group_size 4", "world_size 6"});
  expect_bad([](PlanOptions* o) { o->shard_group_size = 7; }, {"size 7"});
  expect_bad([](PlanOptions* o) { o->prefetch = -1; }, {"prefetch -1"});
  expect_bad([](PlanOptions* o) { o->prefetch = 65; }, {"prefetch 65", "64"});
  expect_bad([](PlanOptions* o) { o->buffer_bytes = 0; }, {"buffer_bytes 0"});
  expect_bad([](PlanOptions* o) { o->param_dtype = DType::kF64; },
             {"param_dtype 4", "bf16"});
  expect_bad([](PlanOptions* o) { o->param_dtype = DType::kQ8; }, {"5"});
  expect_bad(
      [](PlanOptions* o) {
        o->f32_classes = {"A", "\xFF"};
      },
      {"f32_classes", "UTF-8"});
}

}  // namespace
}  // namespace shard::units_test
