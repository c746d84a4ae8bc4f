// SPDX-License-Identifier: Apache-2.0
//
// The units of a plan: options, numbers, memory, warnings.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/api/sharded_plans.h"

namespace shard_api_testing::plan_units_test {
namespace {

// A model of two blocks, each with a norm, and an ignored parameter. The first
// block's bias is frozen.
struct Blocks {
  Blocks() {
    for (const char* name : {"a", "b"}) {
      int32_t block = 0;
      int32_t norm = 0;
      EXPECT_OK(shard_model_add_module(model.get(), 0, name, "Block", &block));
      EXPECT_OK(
          shard_model_add_module(model.get(), block, "norm", "Norm", &norm));
      Add(block, "weight", 4096);
      Add(block, "bias", 10);
      Add(norm, "weight", 64);
      blocks.push_back(block);
      norms.push_back(norm);
    }
    EXPECT_OK(shard_model_freeze(model.get(), 1));
    ignored = Add(0, "ignored", 5);
    EXPECT_OK(shard_model_ignore_param(model.get(), ignored));
  }
  int32_t Add(int32_t module, const char* name, int64_t numel) {
    int32_t param = 0;
    EXPECT_OK(shard_model_add_param(model.get(), module, name, SHARD_F32,
                                    &numel, 1, &param));
    return param;
  }
  Model model = EmptyModel();
  std::vector<int32_t> blocks, norms;
  int32_t ignored;
};

TEST(PlanUnitsTest, Units) {
  const Blocks net;
  shard_plan_options options = PlanOptions(2);
  options.wrap = "class?names=Block|class?names=Norm";
  const Plan plan = MakePlan(net.model.get(), options);
  EXPECT_EQ(InfoOf(plan).num_units, 5);
  const std::vector<int32_t> modules = {0, net.blocks[0], net.norms[0],
                                        net.blocks[1], net.norms[1]};
  for (int32_t unit = 0; unit < 5; ++unit) {
    int32_t module = -7;
    ASSERT_OK(shard_plan_unit_module(plan.get(), unit, &module));
    EXPECT_EQ(module, modules[static_cast<size_t>(unit)]);
    int32_t again = -7;
    ASSERT_OK(shard_plan_unit_of_module(plan.get(), module, &again));
    EXPECT_EQ(again, unit);
  }
  const std::vector<int32_t> units = {1, 1, 2, 3, 3, 4};
  for (int32_t param = 0; param < 6; ++param) {
    int32_t unit = -7;
    ASSERT_OK(shard_plan_unit_of(plan.get(), param, &unit));
    EXPECT_EQ(unit, units[static_cast<size_t>(param)]);
  }

  // The error of an id that does not exist has the id.
  int32_t out = -7;
  EXPECT_FAILS(shard_plan_unit_of(plan.get(), net.ignored, &out),
               SHARD_FAILED_PRECONDITION, "'ignored' is ignored");
  EXPECT_EQ(out, 0);
  for (const int32_t bad : {-1, 7, INT32_MAX}) {
    EXPECT_FAILS(shard_plan_unit_of(plan.get(), bad, &out),
                 SHARD_INVALID_ARGUMENT, "parameter", std::to_string(bad));
    EXPECT_FAILS(shard_plan_unit_module(plan.get(), bad, &out),
                 SHARD_INVALID_ARGUMENT, "unit", std::to_string(bad));
    EXPECT_FAILS(shard_plan_unit_of_module(plan.get(), bad, &out),
                 SHARD_INVALID_ARGUMENT, "module", std::to_string(bad));
  }
  options.wrap = "class?names=Norm";
  const Plan norms = MakePlan(net.model.get(), options);
  out = -7;
  EXPECT_OK(shard_plan_unit_of_module(norms.get(), net.blocks[1], &out));
  EXPECT_EQ(out, -1);
  EXPECT_OK(shard_plan_unit_of_module(norms.get(), net.norms[1], &out));
  EXPECT_EQ(out, 2);

  for (const auto call : {shard_plan_unit_of, shard_plan_unit_of_module,
                          shard_plan_unit_module}) {
    out = -7;
    EXPECT_FAILS(call(nullptr, 0, &out), SHARD_INVALID_ARGUMENT,
                 "plan is NULL");
    EXPECT_EQ(out, 0);
    EXPECT_FAILS(call(plan.get(), 0, nullptr), SHARD_INVALID_ARGUMENT,
                 "is NULL");
  }
}

TEST(PlanUnitsTest, WrapPredicates) {
  const Blocks net;
  struct Asked {
    std::vector<int32_t> modules;
    std::vector<int64_t> numels;
    int32_t wanted;
  } asked = {{}, {}, net.blocks[0]};
  shard_plan_options options = PlanOptions(2);
  options.wrap = "class?names=Norm";
  options.wrap_predicate = [](int32_t module, int64_t numel, void* user_data) {
    auto* to = static_cast<Asked*>(user_data);
    to->modules.push_back(module);
    to->numels.push_back(numel);
    return module == to->wanted ? 2 : 0;  // Any value but 0 means yes.
  };
  options.wrap_user_data = &asked;
  const Plan plan = MakePlan(net.model.get(), options);
  EXPECT_EQ(asked.modules, net.blocks);
  EXPECT_EQ(asked.numels, (std::vector<int64_t>{4106, 4106}));
  EXPECT_EQ(InfoOf(plan).num_units, 4);
}

// A module that several policies select is one unit.
TEST(PlanUnitsTest, AModuleIsOneUnit) {
  const Blocks net;
  shard_plan_options options = PlanOptions(2);
  options.wrap = "always|class?names=Block|class?names=Block,Norm";
  options.f32_classes = "Norm";
  options.param_dtype = SHARD_BF16;
  options.wrap_predicate = [](int32_t, int64_t, void*) { return 1; };
  const Plan plan = MakePlan(net.model.get(), options);
  EXPECT_EQ(InfoOf(plan).num_units, 5);
  std::vector<int32_t> seen;
  for (int32_t unit = 0; unit < 5; ++unit) {
    int32_t module = -7;
    ASSERT_OK(shard_plan_unit_module(plan.get(), unit, &module));
    EXPECT_THAT(seen, ::testing::Not(::testing::Contains(module)));
    seen.push_back(module);
  }
}

// Expects an error after `change` has set one field of the options to a wrong
// value.
template <typename Change>
void ExpectBad(Change change, const std::vector<std::string>& texts) {
  const Model model = SmallModel();
  shard_plan_options options = PlanOptions(6);
  change(&options);
  shard_plan* plan = Garbage<shard_plan>();
  ExpectError(Take(shard_plan_create(model.get(), &options, &plan)),
              SHARD_INVALID_ARGUMENT, texts);
  EXPECT_EQ(plan, nullptr);
}

TEST(PlanUnitsTest, BadUnitOptionsAreNamed) {
  using Options = shard_plan_options;
  ExpectBad([](Options* o) { o->wrap = "never"; },
            {"'never'", "always, class, size"});
  ExpectBad([](Options* o) { o->f32_classes = "A,,B"; },
            {"f32_classes 'A,,B'", "empty"});
  ExpectBad([](Options* o) { o->param_dtype = SHARD_F64; },
            {"param_dtype 4", "2 (bf16)"});
  ExpectBad([](Options* o) { o->param_dtype = -1; }, {"param_dtype -1"});
  ExpectBad([](Options* o) { o->shard_group_size = 4; },
            {"shard_group_size 4", "world_size 6"});
  ExpectBad([](Options* o) { o->buffer_bytes = -1; }, {"buffer_bytes -1"});
  ExpectBad([](Options* o) { o->prefetch = -2; }, {"prefetch -2"});
  ExpectBad([](Options* o) { o->prefetch = 65; }, {"prefetch 65", "64"});
  ExpectBad([](Options* o) { o->whole_grads = 2; },
            {"whole_grads is 2", "0 or 1"});
  ExpectBad([](Options* o) { o->deterministic = -1; }, {"deterministic is -1"});
  ExpectBad([](Options* o) { o->keep_after_forward = 2; },
            {"keep_after_forward is 2", "0 or 1"});
}

TEST(PlanUnitsTest, UnitOptionsMeanWhatTheySay) {
  const Blocks net;
  const auto json_of = [&](auto change) {
    shard_plan_options options = PlanOptions(4);
    change(&options);
    const Plan plan = MakePlan(net.model.get(), options);
    size_t length = 0;
    EXPECT_OK(shard_plan_json(plan.get(), nullptr, 0, &length));
    std::string text(length + 1, '\0');
    EXPECT_OK(shard_plan_json(plan.get(), text.data(), text.size(), &length));
    text.resize(length);
    return nlohmann::json::parse(text).at("options");
  };
  using Options = shard_plan_options;
  const auto defaults = json_of([](Options*) {});
  EXPECT_EQ(defaults["prefetch"], 1);
  EXPECT_EQ(defaults["buffer_bytes"], 25 << 20);
  EXPECT_EQ(defaults["param_dtype"], "f32");
  EXPECT_EQ(json_of([](Options* o) { o->prefetch = -1; })["prefetch"], 0);
  EXPECT_EQ(json_of([](Options* o) { o->prefetch = 3; })["prefetch"], 3);
  const auto json = json_of([](Options* o) {
    o->param_dtype = SHARD_BF16;
    o->f32_classes = "Norm,Block";
    o->buffer_bytes = 77;
    o->shard_group_size = 2;
    o->whole_grads = 1;
    o->deterministic = 1;
    o->keep_after_forward = 1;
  });
  EXPECT_EQ(json["param_dtype"], "bf16");
  EXPECT_EQ(json["f32_classes"], nlohmann::json({"Norm", "Block"}));
  EXPECT_EQ(json["buffer_bytes"], 77);
  EXPECT_EQ(json["shard_group_size"], 2);
  EXPECT_EQ(json["whole_grads"], true);
  EXPECT_EQ(json["deterministic"], true);
  EXPECT_EQ(json["keep_after_forward"], true);
}

TEST(PlanUnitsTest, MemoryByPlacement) {
  const Model model = EmptyModel();
  for (int i = 0; i < 16; ++i) {
    int32_t block = 0;
    ASSERT_OK(shard_model_add_module(
        model.get(), 0, ("b" + std::to_string(i)).c_str(), "Block", &block));
    const int64_t numel = 1 << 14;
    int32_t param = 0;
    ASSERT_OK(shard_model_add_param(model.get(), block, "w", SHARD_F32, &numel,
                                    1, &param));
  }
  shard_plan_options options = PlanOptions(4);
  options.stage = 3;
  options.wrap = "always";
  const Plan plan = MakePlan(model.get(), options);
  shard_memory shared = SHARD_MEMORY_INIT;
  shard_memory unshared = SHARD_MEMORY_INIT;
  shard_placement apart = SHARD_PLACEMENT_INIT;
  apart.separate_memory = 1;
  ASSERT_OK(shard_plan_memory(plan.get(), nullptr, &shared));
  ASSERT_OK(shard_plan_memory(plan.get(), &apart, &unshared));
  constexpr uint64_t kUnit = 65536;
  EXPECT_EQ(shared.param_bytes, 16 * kUnit);
  EXPECT_EQ(unshared.param_bytes, 4 * kUnit);
  // Slots hold a unit in use and one in flight, of gradients, and without
  // shared memory of parameters too.
  EXPECT_EQ(shared.transient_bytes, 2 * kUnit);
  EXPECT_EQ(unshared.transient_bytes, 4 * kUnit);
  EXPECT_EQ(shared.grad_bytes, 4 * kUnit);
  // With shared memory the host has the parameters once; without, every rank
  // has a part.
  const auto of_one = [](const shard_memory& memory) {
    return memory.grad_bytes + memory.state_bytes + memory.transient_bytes;
  };
  EXPECT_EQ(shared.host_bytes, shared.param_bytes + 4 * of_one(shared));
  EXPECT_EQ(unshared.host_bytes, 4 * (unshared.param_bytes + of_one(unshared)));
  EXPECT_EQ(shared.device_bytes + shared.pinned_bytes, 0u);
  // Without shared memory each rank has two tiles of 1 MiB for tensors, for
  // each of two communicators.
  EXPECT_GT(unshared.control_bytes,
            shared.control_bytes + uint64_t{2 * 4 * 2} * (1 << 20));

  // Two hosts have two ranks each, which share slots of parameters alone.
  shard_placement hosts = SHARD_PLACEMENT_INIT;
  hosts.ranks_per_host = 2;
  hosts.device = "cpu";
  shard_memory half = SHARD_MEMORY_INIT;
  ASSERT_OK(shard_plan_memory(plan.get(), &hosts, &half));
  EXPECT_EQ(half.param_bytes, unshared.param_bytes);
  EXPECT_EQ(half.transient_bytes, unshared.transient_bytes);
  EXPECT_EQ(2 * (half.host_bytes + 2 * kUnit), unshared.host_bytes);
  // Not where the ranks of a host are in two shard groups.
  options.shard_group_size = 2;
  const Plan groups = MakePlan(model.get(), options);
  shard_memory grouped = SHARD_MEMORY_INIT;
  ASSERT_OK(shard_plan_memory(groups.get(), &hosts, &half));
  EXPECT_EQ(half.host_bytes + 2 * kUnit, 2 * (half.param_bytes + of_one(half)));
  hosts.ranks_per_host = 3;
  ASSERT_OK(shard_plan_memory(groups.get(), &hosts, &grouped));
  EXPECT_EQ(grouped.host_bytes, 3 * (grouped.param_bytes + of_one(grouped)));

  // GPUs do not reach the memory that ranks share. Collectives pass their
  // tensors through 4 MiB of each rank. The host's communicator shares memory.
  shard_placement gpus = SHARD_PLACEMENT_INIT;
  gpus.device = "cuda:0";
  shard_memory on_gpus = SHARD_MEMORY_INIT;
  ASSERT_OK(shard_plan_memory(plan.get(), &gpus, &on_gpus));
  EXPECT_EQ(on_gpus.device_bytes, unshared.param_bytes + of_one(unshared));
  EXPECT_EQ(on_gpus.pinned_bytes, uint64_t{4} * (4 << 20));
  EXPECT_EQ(on_gpus.host_bytes, on_gpus.pinned_bytes);
  EXPECT_GT(on_gpus.control_bytes, shared.control_bytes);

  // NCCL needs no memory of the host, and of each GPU a block of each other
  // rank and one of zeros.
  gpus.device = "cuda:0?collectives=nccl";
  shard_memory by_nccl = SHARD_MEMORY_INIT;
  ASSERT_OK(shard_plan_memory(plan.get(), &gpus, &by_nccl));
  EXPECT_EQ(by_nccl.pinned_bytes, 0u);
  EXPECT_EQ(by_nccl.host_bytes, 0u);
  EXPECT_EQ(by_nccl.device_bytes, on_gpus.device_bytes + kUnit);
  // Kernels of several ranks meet by a page of each GPU, and one of the host.
  gpus.device = "cuda:0?collectives=nccl&step=one_kernel";
  shard_memory in_one = SHARD_MEMORY_INIT;
  ASSERT_OK(shard_plan_memory(plan.get(), &gpus, &in_one));
  EXPECT_EQ(in_one.device_bytes, by_nccl.device_bytes + 4096);
  EXPECT_EQ(in_one.pinned_bytes, uint64_t{4} * 4096);
  EXPECT_EQ(in_one.host_bytes, in_one.pinned_bytes);
  gpus.device = "cuda:0?step=one_kernel";
  ASSERT_OK(shard_plan_memory(plan.get(), &gpus, &in_one));
  EXPECT_EQ(in_one.device_bytes, on_gpus.device_bytes);
  EXPECT_EQ(in_one.pinned_bytes, on_gpus.pinned_bytes);
  gpus.device = "cuda:0?collectives=auto";
  shard_memory by_either = SHARD_MEMORY_INIT;
  ASSERT_OK(shard_plan_memory(plan.get(), &gpus, &by_either));
  EXPECT_EQ(by_either.pinned_bytes, on_gpus.pinned_bytes);
  EXPECT_EQ(by_either.device_bytes, by_nccl.device_bytes);

  // Offloaded states are the host's, and so is the memory through which
  // gradients and parameters pass: a thread has two slots, of pages for each.
  gpus.device = "cuda:0?offload=states&offload_threads=1";
  shard_memory offloaded = SHARD_MEMORY_INIT;
  ASSERT_OK(shard_plan_memory(plan.get(), &gpus, &offloaded));
  EXPECT_EQ(offloaded.state_bytes, on_gpus.state_bytes);
  EXPECT_EQ(offloaded.device_bytes, on_gpus.device_bytes - on_gpus.state_bytes);
  const uint64_t slots =
      offloaded.pinned_bytes - on_gpus.pinned_bytes - 4 * on_gpus.state_bytes;
  EXPECT_GT(slots, 0u);
  EXPECT_EQ(slots % (uint64_t{4} * 2 * 2 * 4096), 0u);
  EXPECT_EQ(offloaded.host_bytes, offloaded.pinned_bytes);
  EXPECT_LT(on_gpus.control_bytes, unshared.control_bytes);
}

TEST(PlanUnitsTest, EachHostHasOneCopyOfParametersThatAreNotSharded) {
  const Plan plan = SmallPlan(4);
  for (const int32_t ranks : {1, 2, 3}) {
    for (const int32_t separate : {0, 1}) {
      shard_placement hosts = SHARD_PLACEMENT_INIT;
      hosts.ranks_per_host = ranks;
      hosts.separate_memory = separate;
      shard_memory memory = SHARD_MEMORY_INIT;
      ASSERT_OK(shard_plan_memory(plan.get(), &hosts, &memory));
      const uint64_t each = memory.grad_bytes + memory.state_bytes +
                            memory.workspace_bytes + memory.transient_bytes +
                            memory.model_buffer_bytes;
      const auto copies = static_cast<uint64_t>(separate == 1 ? ranks : 1);
      EXPECT_GT(memory.param_bytes, 0u);
      EXPECT_EQ(memory.host_bytes, copies * memory.param_bytes +
                                       static_cast<uint64_t>(ranks) * each)
          << ranks << " ranks, separate " << separate;
    }
  }
}

TEST(PlanUnitsTest, PlacementsThatCannotBeAreNamed) {
  const Plan plan = SmallPlan(2);
  shard_memory memory = SHARD_MEMORY_INIT;
  const auto fails = [&](const shard_placement& placement,
                         const std::vector<std::string>& texts) {
    memory.host_bytes = 7;
    ExpectError(Take(shard_plan_memory(plan.get(), &placement, &memory)),
                SHARD_INVALID_ARGUMENT, texts);
    EXPECT_EQ(memory.host_bytes, 0u);
  };
  for (const int32_t ranks : {-1, 3, INT32_MAX}) {
    shard_placement placement = SHARD_PLACEMENT_INIT;
    placement.ranks_per_host = ranks;
    fails(placement, {"ranks_per_host " + std::to_string(ranks), "1 to 2"});
  }
  shard_placement placement = SHARD_PLACEMENT_INIT;
  placement.separate_memory = 2;
  fails(placement, {"separate_memory is 2", "0 or 1"});
  placement.separate_memory = 0;
  placement.device = "abacus";
  fails(placement, {"'abacus' names no device", "cpu"});
  placement.device = "cuda:0?offload=all";
  fails(placement, {"offload='all'", "states"});
  placement.device = "cpu?offload=states";
  fails(placement, {"offload", "cpu"});
  for (const char* const number : {"-1", "0 ", "65536", "x", "GPU-12"}) {
    const std::string device = std::string("cuda:") + number;
    placement.device = device.c_str();
    fails(placement, {"'" + std::string(number) + "' names no CUDA device"});
  }
}

// A class name that no module has is an error, whatever its option.
TEST(PlanUnitsTest, ClassesThatNoModuleHasAreNamed) {
  const Blocks net;
  const auto fails = [&](const char* wrap, const char* f32_classes,
                         const std::vector<std::string>& texts) {
    shard_plan_options options = PlanOptions(2);
    options.wrap = wrap;
    options.f32_classes = f32_classes;
    shard_plan* plan = Garbage<shard_plan>();
    ExpectError(Take(shard_plan_create(net.model.get(), &options, &plan)),
                SHARD_INVALID_ARGUMENT, texts);
    EXPECT_EQ(plan, nullptr);
  };
  fails("class?names=Block,Nrom", nullptr, {"wrap policy 'class'", "'Nrom'"});
  fails("always|class?names=block", nullptr, {"no module", "'block'"});
  fails(nullptr, "Norm,Nrom", {"f32_classes", "'Nrom'"});
  // The model has more elements, each of its two blocks fewer.
  fails("class?names=Block|size?min_numel=8000", nullptr,
        {"'size'", "min_numel=8000", "smaller min_numel"});
  // The units of f32_classes, which a narrower param_dtype makes, let the size
  // reach the modules inside blocks.
  shard_plan_options narrow = PlanOptions(2);
  narrow.wrap = "size?min_numel=64&force_leaf=Block";
  narrow.f32_classes = "Norm";
  for (const int32_t dtype : {SHARD_BF16, SHARD_F16}) {
    narrow.param_dtype = dtype;
    EXPECT_EQ(InfoOf(MakePlan(net.model.get(), narrow)).num_units, 5);
  }
  fails(narrow.wrap, narrow.f32_classes, {"min_numel=64", "force_leaf"});
  // The predicate is not asked about a model whose classes are wrong.
  shard_plan_options asked = PlanOptions(2);
  asked.f32_classes = "Nrom";
  asked.wrap_predicate = [](int32_t, int64_t, void*) -> int32_t {
    ADD_FAILURE() << "a unit was chosen";
    return 0;
  };
  shard_plan* plan = Garbage<shard_plan>();
  EXPECT_FAILS(shard_plan_create(net.model.get(), &asked, &plan),
               SHARD_INVALID_ARGUMENT, "'Nrom'");
  // A model may be smaller than a size.
  shard_plan_options options = PlanOptions(2);
  options.wrap = "class?names=Block|size?min_numel=1000000";
  EXPECT_EQ(InfoOf(MakePlan(net.model.get(), options)).num_units, 3);
}

// A host that relies on sharding gets an error in place of the warning.
TEST(PlanUnitsTest, StagesThatCannotShardAreErrorsOnRequest) {
  shard_plan_options options = PlanOptions(2);
  options.stage = 3;
  options.require_sharding = 1;
  shard_plan* plan = Garbage<shard_plan>();
  EXPECT_FAILS(shard_plan_create(SmallModel().get(), &options, &plan),
               SHARD_INVALID_ARGUMENT, "require_sharding is 1",
               "gradients and parameters whole", "wrap smaller units");
  EXPECT_EQ(plan, nullptr);
  options.stage = 1;  // Stage 1 shards neither.
  EXPECT_EQ(InfoOf(MakePlan(SmallModel().get(), options)).shards_grads, 0);
  options.stage = 3;
  options.world_size = 1;
  EXPECT_EQ(InfoOf(MakePlan(SmallModel().get(), options)).shards_grads, 0);
  // These units are small enough.
  const Model model = EmptyModel();
  AddBlocks(model.get());
  options.world_size = 4;
  options.wrap = "class?names=Block";
  ExpectShardsAsItsStage(MakePlan(model.get(), options));
  const Plan sharded = MakePlan(model.get(), options);
  options.require_sharding = 0;
  EXPECT_EQ(InfoOf(MakePlan(model.get(), options)).fingerprint,
            InfoOf(sharded).fingerprint);
  options.require_sharding = 2;
  EXPECT_FAILS(shard_plan_create(model.get(), &options, &plan),
               SHARD_INVALID_ARGUMENT, "require_sharding is 2", "0 or 1");
  options.require_sharding = 0;
  options.reserved = 5;
  EXPECT_FAILS(shard_plan_create(model.get(), &options, &plan),
               SHARD_INVALID_ARGUMENT, "shard_plan_options.reserved is 5");
}

TEST(PlanUnitsTest, WarningsAreLines) {
  const Blocks net;
  shard_plan_options options = PlanOptions(2);
  options.wrap = "class?names=Block";
  const auto warnings_of = [&] {
    const Plan plan = MakePlan(net.model.get(), options);
    return TextOf(shard_plan_warnings, plan.get());
  };
  const std::string mixed = warnings_of();
  EXPECT_EQ(mixed.find("unit a has frozen and trainable parameters: "), 0u);
  EXPECT_EQ(mixed.find('\n'), mixed.size() - 1);
  EXPECT_OK(shard_model_ignore_param(net.model.get(), 1));
  EXPECT_EQ(warnings_of(), "");

  const char* text = "stale";
  EXPECT_FAILS(shard_plan_warnings(nullptr, &text), SHARD_INVALID_ARGUMENT,
               "plan is NULL");
  EXPECT_EQ(text, nullptr);
}

}  // namespace
}  // namespace shard_api_testing::plan_units_test
