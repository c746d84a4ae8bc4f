// SPDX-License-Identifier: Apache-2.0

#include "core/state/state_entries.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/optim/groups.h"
#include "core/state/manifest_bound.h"
#include "tests/core/base/expect_status.h"

namespace shard::state_entries_test {
namespace {

using Keys = std::vector<std::string>;

StatusOr<std::shared_ptr<const Plan>> PlanFor(
    std::shared_ptr<Model> model, const std::string& optimizer = "adamw",
    int world_size = 1) {
  PlanOptions options;
  options.world_size = world_size;
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, optimizer));
  return Plan::Create(std::move(model), options);
}

ModuleId AddModule(Model* model, ModuleId parent, const std::string& name) {
  const auto id = model->AddModule(parent, name, "Module");
  EXPECT_TRUE(id.ok()) << id.status().ToString();
  return *id;
}

ParamId AddParam(Model* model, ModuleId module, const std::string& name,
                 std::vector<int64_t> shape = {4}) {
  const auto id = model->AddParam(module, name, DType::kF32, std::move(shape));
  EXPECT_TRUE(id.ok()) << id.status().ToString();
  return *id;
}

// A model with embedding, body.(norm, inner.weight, frozen) and head.(weight =
// embedding, bias).
struct Tied {
  std::shared_ptr<Model> model = std::make_shared<Model>("Root");
  ParamId embedding = AddParam(model.get(), kRootModule, "embedding", {6, 3});
  ModuleId body = AddModule(model.get(), kRootModule, "body");
  ParamId norm = AddParam(model.get(), body, "norm");
  ModuleId inner = AddModule(model.get(), body, "inner");
  ParamId weight = AddParam(model.get(), inner, "weight", {5});
  ParamId frozen = AddParam(model.get(), body, "frozen", {2});
  ModuleId head = AddModule(model.get(), kRootModule, "head");

  Tied() {
    EXPECT_OK(model->Tie(head, "weight", embedding));
    AddParam(model.get(), head, "bias", {6});
    EXPECT_OK(model->SetTrainable(frozen, false));
  }

  std::vector<StateEntry> List(
      const StateOptions& options,
      const std::string& optimizer = "sgd?momentum=1") {
    const auto plan = PlanFor(model, optimizer);
    EXPECT_OK(plan);
    auto entries = ListStateEntries(**plan, options);
    EXPECT_OK(entries);
    return entries.ok() ? *std::move(entries) : std::vector<StateEntry>();
  }
  Keys KeysOf(const StateOptions& options) {
    Keys keys;
    for (const StateEntry& entry : List(options)) keys.push_back(entry.key);
    return keys;
  }
};

TEST(StateEntriesTest, EverythingInWalkOrderThenStates) {
  EXPECT_EQ(Tied().KeysOf({}),
            (Keys{"embedding", "body.norm", "body.frozen", "body.inner.weight",
                  "head.weight", "head.bias", "state.embedding.momentum_buffer",
                  "state.body.norm.momentum_buffer",
                  "state.body.inner.weight.momentum_buffer",
                  "state.head.bias.momentum_buffer"}));
}

TEST(StateEntriesTest, Content) {
  Tied tied;
  StateOptions options;
  options.content = StateContent::kModel;
  EXPECT_EQ(tied.KeysOf(options),
            (Keys{"embedding", "body.norm", "body.frozen", "body.inner.weight",
                  "head.weight", "head.bias"}));
  options.content = StateContent::kOptimizer;
  EXPECT_EQ(tied.KeysOf(options),
            (Keys{"state.embedding.momentum_buffer",
                  "state.body.norm.momentum_buffer",
                  "state.body.inner.weight.momentum_buffer",
                  "state.head.bias.momentum_buffer"}));
  options.content = static_cast<StateContent>(3);
  const auto plan = PlanFor(tied.model);
  ExpectInvalid(ListStateEntries(**plan, options), {"content 3"});
  options.content = static_cast<StateContent>(-1);
  ExpectInvalid(ListStateEntries(**plan, options), {"content -1"});
}

TEST(StateEntriesTest, WithoutFrozen) {
  StateOptions options;
  options.ignore_frozen = true;
  options.content = StateContent::kModel;
  EXPECT_EQ(Tied().KeysOf(options),
            (Keys{"embedding", "body.norm", "body.inner.weight", "head.weight",
                  "head.bias"}));
}

TEST(StateEntriesTest, Submodules) {
  Tied tied;
  StateOptions options;
  options.content = StateContent::kModel;
  options.submodules = {tied.body};
  EXPECT_EQ(tied.KeysOf(options),
            (Keys{"body.norm", "body.frozen", "body.inner.weight"}));
  options.submodules = {tied.inner};
  EXPECT_EQ(tied.KeysOf(options), (Keys{"body.inner.weight"}));
  // Entries are in walk order, and those that two submodules hold are listed
  // once.
  options.submodules = {tied.head, tied.inner, tied.body};
  EXPECT_EQ(tied.KeysOf(options),
            (Keys{"body.norm", "body.frozen", "body.inner.weight",
                  "head.weight", "head.bias"}));
  options.submodules = {kRootModule};
  EXPECT_EQ(tied.KeysOf(options).size(), 6u);
  const auto plan = PlanFor(tied.model);
  options.submodules = {tied.head, 99};
  ExpectInvalid(ListStateEntries(**plan, options), {"submodule 99"});
  options.submodules = {-1};
  ExpectInvalid(ListStateEntries(**plan, options), {"submodule -1"});
}

TEST(StateEntriesTest, StripPrefix) {
  Tied tied;
  StateOptions options;
  options.strip_prefix = true;
  options.submodules = {tied.body};
  options.ignore_frozen = true;
  EXPECT_EQ(tied.KeysOf(options),
            (Keys{"norm", "inner.weight", "state.norm.momentum_buffer",
                  "state.inner.weight.momentum_buffer"}));
  options.submodules = {kRootModule};
  options.content = StateContent::kModel;
  EXPECT_EQ(tied.KeysOf(options),
            (Keys{"embedding", "body.norm", "body.inner.weight", "head.weight",
                  "head.bias"}));
  const auto plan = PlanFor(tied.model);
  for (const std::vector<ModuleId>& modules :
       {std::vector<ModuleId>{}, {tied.body, tied.head}}) {
    options.submodules = modules;
    ExpectInvalid(ListStateEntries(**plan, options),
                  {"exactly one submodule", StrCat(modules.size())});
  }
}

TEST(StateEntriesTest, Aliases) {
  Tied tied;
  const auto all = tied.List({});
  for (const StateEntry& entry : all) {
    EXPECT_EQ(entry.alias_of, entry.key == "head.weight" ? 0 : -1) << entry.key;
  }
  // Where the first name is not asked for, another name is the first.
  StateOptions options;
  options.submodules = {tied.head};
  const auto head = tied.List(options);
  ASSERT_EQ(head.size(), 4u);
  EXPECT_EQ(head[0].key, "head.weight");
  EXPECT_EQ(head[0].alias_of, -1);
  EXPECT_EQ(head[0].param, tied.embedding);
  EXPECT_EQ(head[2].key, "state.head.weight.momentum_buffer");
}

TEST(StateEntriesTest, WrappersAreNotInKeys) {
  auto model = std::make_shared<Model>("Root");
  const ModuleId wrapper =
      AddModule(model.get(), kRootModule, "_fsdp_wrapped_module");
  const ModuleId layer = AddModule(model.get(), wrapper, "layer");
  const ModuleId inner = AddModule(model.get(), layer, "_orig_mod");
  AddParam(model.get(), inner, "weight");
  AddParam(model.get(), inner, "_orig_mod");
  const auto plan = PlanFor(model, "sgd");
  ASSERT_OK(plan);
  auto entries = ListStateEntries(**plan, {});
  ASSERT_OK(entries);
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].key, "layer.weight");
  EXPECT_EQ((*entries)[1].key, "layer._orig_mod");
  StateOptions options;
  options.submodules = {layer};
  options.strip_prefix = true;
  entries = ListStateEntries(**plan, options);
  ASSERT_OK(entries);
  EXPECT_EQ((*entries)[0].key, "weight");
}

// The plan refuses keys that collide. Keys that do not may collide once their
// prefix is stripped.
TEST(StateEntriesTest, KeysThatCollideWithoutTheirPrefix) {
  auto model = std::make_shared<Model>("Root");
  const ModuleId body = AddModule(model.get(), kRootModule, "body");
  AddParam(model.get(), body, "w");
  const ModuleId state = AddModule(model.get(), body, "state");
  AddParam(model.get(), AddModule(model.get(), state, "w"), "exp_avg");
  const auto plan = PlanFor(model);
  ASSERT_OK(plan);
  EXPECT_OK(ListStateEntries(**plan, {}));
  StateOptions options;
  options.submodules = {body};
  EXPECT_OK(ListStateEntries(**plan, options));
  options.strip_prefix = true;
  ExpectInvalid(ListStateEntries(**plan, options),
                {"'state.w.exp_avg'", "strip_prefix"});
  options.content = StateContent::kModel;
  EXPECT_OK(ListStateEntries(**plan, options));
}

// The numbers that state dicts have beside tensors may collide likewise.
TEST(StateEntriesTest, KeysOfNumbersWithoutTheirPrefix) {
  for (const auto& [prefix, name] :
       std::vector<std::pair<std::string, std::string>>{
           {"state", "step"}, {"param_groups", "lr"}}) {
    for (const bool trainable : {true, false}) {
      auto model = std::make_shared<Model>("Root");
      const ModuleId body = AddModule(model.get(), kRootModule, "body");
      const ParamId w = AddParam(model.get(), body, "w");
      ASSERT_OK(model->SetTrainable(w, trainable));
      const ModuleId outer = AddModule(model.get(), body, prefix);
      AddParam(model.get(), AddModule(model.get(), outer, "w"), name);
      const auto plan = PlanFor(model);
      ASSERT_OK(plan);
      StateOptions options;
      options.submodules = {body};
      EXPECT_OK(ListStateEntries(**plan, options));
      options.strip_prefix = true;
      if (trainable) {
        ExpectInvalid(
            ListStateEntries(**plan, options),
            {"'" + prefix + ".w." + name + "'", "'w'", "strip_prefix"});
      } else {
        EXPECT_OK(ListStateEntries(**plan, options));
      }
      // There are no numbers without states.
      options.content = StateContent::kModel;
      EXPECT_OK(ListStateEntries(**plan, options));
    }
  }
}

TEST(StateEntriesTest, ScalesFollowTheirCodes) {
  auto model = std::make_shared<Model>("Root");
  AddParam(model.get(), kRootModule, "w", {3, kQ8Block});
  AddParam(model.get(), kRootModule, "b", {kQ8Block + 1});
  const auto plan = PlanFor(model, "adamw?states=q8");
  ASSERT_OK(plan);
  const auto entries = ListStateEntries(**plan, {});
  ASSERT_OK(entries);
  ASSERT_EQ(entries->size(), 10u);
  const StateEntry& codes = (*entries)[2];
  const StateEntry& scales = (*entries)[3];
  EXPECT_EQ(codes.key, "state.w.exp_avg");
  EXPECT_EQ(codes.type, ElementType::kQ8);
  EXPECT_EQ(codes.shape, (std::vector<int64_t>{3, kQ8Block}));
  EXPECT_FALSE(codes.scales);
  EXPECT_EQ(scales.key, "state.w.exp_avg.q8_scale");
  EXPECT_EQ(scales.type, ElementType::kF32);
  EXPECT_EQ(scales.shape, (std::vector<int64_t>{3}));
  EXPECT_TRUE(scales.scales);
  EXPECT_EQ((*entries)[9].key, "state.b.exp_avg_sq.q8_scale");
  EXPECT_EQ((*entries)[9].numel, 2);
}

// Each element of each entry belongs to one rank, at one place of its range.
// The owners are in the order of their elements.
TEST(StateEntriesTest, RanksOwnEveryElementOnce) {
  for (const char* optimizer : {"adamw", "adamw?states=q8", "adafactor"}) {
    for (int world_size = 1; world_size <= 9; ++world_size) {
      Tied tied;
      AddParam(tied.model.get(), kRootModule, "big", {31, 71});
      AddParam(tied.model.get(), kRootModule, "empty", {0, 3});
      AddParam(tied.model.get(), kRootModule, "scalar", {});
      const auto plan = PlanFor(tied.model, optimizer, world_size);
      ASSERT_OK(plan);
      const auto entries = ListStateEntries(**plan, {});
      ASSERT_OK(entries);
      for (const StateEntry& entry : *entries) {
        if (entry.alias_of >= 0) continue;
        int64_t next = 0;
        const std::vector<int> owners = OwnersOf(**plan, entry);
        for (const int rank : owners) {
          const OwnedElements owned = OwnedBy(**plan, entry, rank);
          EXPECT_EQ(owned.begin, next) << entry.key << " of " << world_size;
          EXPECT_GT(owned.numel, 0);
          EXPECT_GE(owned.offset, 0);
          next = owned.begin + owned.numel;
        }
        EXPECT_EQ(next, entry.numel) << entry.key << " of " << world_size;
        const std::set<int> some(owners.begin(), owners.end());
        EXPECT_EQ(some.size(), owners.size());
        for (int rank = 0; rank < world_size; ++rank) {
          if (some.count(rank) != 0) continue;
          EXPECT_EQ(OwnedBy(**plan, entry, rank).numel, 0) << entry.key;
        }
      }
    }
  }
}

// Every rank has a slice of every tensor: 1,000 tensors with two states each
// over 16,384 ranks are 49 million slices.
TEST(ManifestBoundTest, StatesThatNoManifestHoldsAreRefused) {
  auto model = std::make_shared<Model>("Root");
  for (int p = 0; p < 1000; ++p) {
    EXPECT_OK(model->AddParam(kRootModule, StrCat("p", p), DType::kF32,
                              {16384 * 1024}));
  }
  PlanOptions options;
  options.world_size = 16384;
  options.buffer_bytes = 1;  // Each parameter has a buffer of its own.
  auto groups = PlanGroups(*model, "adamw");
  ASSERT_OK(groups);
  options.groups = *std::move(groups);
  auto plan = Plan::Create(model, options);
  ASSERT_OK(plan);
  ExpectError(CheckManifestFits(**plan), StatusCode::kResourceExhausted,
              {"3000 tensors", "1006632960", "buffer_bytes", "greedy"});
  options.partition = Partition::kGreedy;
  plan = Plan::Create(model, options);
  ASSERT_OK(plan);
  EXPECT_OK(CheckManifestFits(**plan));
}

}  // namespace
}  // namespace shard::state_entries_test
