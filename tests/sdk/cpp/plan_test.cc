// SPDX-License-Identifier: Apache-2.0
//
// Models, plans and layouts.

#include <cstddef>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/sdk/cpp/sdk_testing.h"

namespace shard_sdk_testing::plan_test {
namespace {

using shard::Shape;

// A model with everything that a model can have.
struct Everything {
  Model model = Model::create("Everything");
  ModuleId block = model.add_module(shard::root_module, "block", "Block");
  ModuleId skipped = model.add_module(shard::root_module, "skipped");
  ModuleId tail = model.add_module(shard::root_module, "tail");
  ParamId weight = model.add_param(block, "weight", DType::f32, {4, 3});
  ParamId bias = model.add_param(block, "bias", DType::f32, {3});
  ParamId frozen = model.add_param(block, "frozen", DType::bf16, {5});
  ParamId scalar =
      model.add_param(shard::root_module, "scalar", DType::f32, {});
  ParamId ignored = model.add_param(skipped, "ignored", DType::f32, {7});
  ParamId alone = model.add_param(shard::root_module, "alone", DType::f32, {2});
  shard::ModelBufferId mean =
      model.add_buffer(block, "mean", DType::i64, {2, 2}, false);
  GroupId group = model.add_param_group("?lr=0.125", {bias, scalar});

  Everything() {
    model.tie(tail, "tied", weight);
    model.freeze(frozen);
    model.ignore_module(skipped);
    model.ignore_param(alone);
  }

  Plan plan() const {
    return Plan::create(model, {.stage = 2,
                                .world_size = 2,
                                .optimizer = "sgd?lr=0.5",
                                .wrap = "class?names=Block"});
  }
};

TEST(PlanTest, SaysWhereParametersAre) {
  const Everything all;
  const Plan plan = all.plan();
  EXPECT_EQ(plan.info().stage, 2);
  EXPECT_EQ(plan.params().size(), 6);
  const shard::ParamInfo weight = plan.param_info(all.weight);
  EXPECT_EQ(weight.shape, (Shape{4, 3}));
  EXPECT_EQ(weight.numel, 12);
  EXPECT_EQ(weight.dtype, DType::f32);
  EXPECT_TRUE(weight.trainable);
  EXPECT_EQ(weight.group, shard::default_group);
  EXPECT_EQ(weight.num_names, 2);
  EXPECT_EQ(plan.param_info(all.bias).group, all.group);
  EXPECT_EQ(plan.param_info(all.scalar).shape, Shape());
  EXPECT_FALSE(plan.param_info(all.frozen).trainable);
  EXPECT_EQ(plan.unit_of(all.weight), weight.unit);
  EXPECT_EQ(plan.unit_of_module(all.block), weight.unit);
  EXPECT_EQ(plan.unit_of_module(all.skipped), std::nullopt);
  EXPECT_EQ(plan.unit_module(weight.unit), all.block);

  const shard::BufferInfo buffer = plan.buffer_info(weight.buffer);
  EXPECT_EQ(buffer.unit, weight.unit);
  EXPECT_EQ(buffer.grad_dtype, DType::f32);
  EXPECT_EQ(plan.buffer_param(weight.buffer, 0), all.weight);
  const shard::BufferInfo cold =
      plan.buffer_info(plan.param_info(all.frozen).buffer);
  EXPECT_EQ(cold.group, GroupId{-1});
  EXPECT_EQ(cold.grad_dtype, DType{});
}

// Every id of the plan is some parameter's, unit's, name's or buffer's.
TEST(PlanTest, ItsIdsCoverWhatItHas) {
  const Everything all;
  const Plan plan = all.plan();
  std::set<std::string> names;
  for (const shard::NameId name : plan.names()) {
    const shard::NameInfo info = plan.name_info(name);
    names.emplace(plan.param_name(info.param, info.index));
  }
  EXPECT_THAT(names,
              ::testing::ElementsAre("block.bias", "block.frozen",
                                     "block.weight", "scalar", "tail.tied"));
  for (const shard::BufferId buffer : plan.buffers()) {
    std::int64_t owned = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const shard::Range range = plan.rank_range(buffer, rank);
      for (const shard::Slice& slice :
           plan.slices(buffer, range.begin, range.numel)) {
        EXPECT_EQ(plan.param_info(slice.param).buffer, buffer);
        owned += slice.numel;
      }
    }
    EXPECT_EQ(owned, plan.buffer_info(buffer).full_numel);
  }
  for (const shard::ModelBufferId buffer : plan.model_buffers()) {
    const shard::ModelBufferInfo info = plan.model_buffer_info(buffer);
    EXPECT_EQ(info.shape, (Shape{2, 2}));
    EXPECT_EQ(info.dtype, DType::i64);
    EXPECT_FALSE(info.persistent);
    EXPECT_EQ(info.module, all.block);
    EXPECT_EQ(plan.model_buffer_name(buffer), "block.mean");
  }
  int modules = 0;
  for (int i = 0; i < plan.info().num_modules; ++i) {
    const shard::ModuleInfo info = plan.module_info(i);
    EXPECT_EQ(info.ignored, info.module == all.skipped);
    if (info.module == all.block) {
      EXPECT_EQ(info.parent, shard::root_module);
      EXPECT_EQ(plan.module_name(info.module), "block");
      EXPECT_EQ(plan.module_class(info.module), "Block");
      EXPECT_EQ(info.num_names, 3);
    }
    ++modules;
  }
  EXPECT_EQ(modules, 4);
  EXPECT_EQ(plan.find_param("tail.tied"), all.weight);
}

TEST(PlanTest, IsTheSameFromItsBytes) {
  const Everything all;
  const Plan plan = all.plan();
  const std::vector<std::byte> bytes = plan.encode();
  const Plan decoded = Plan::decode(bytes);
  EXPECT_EQ(decoded.info().fingerprint, plan.info().fingerprint);
  EXPECT_EQ(decoded.text(), plan.text());
  EXPECT_EQ(decoded.json(), plan.json());
  EXPECT_EQ(plan.json().front(), '{');
  EXPECT_EQ(plan.json().back(), '}');
  expect_error([&] { (void)Plan::decode(std::span(bytes).first(9)); },
               Code::corrupt);
}

TEST(PlanTest, PredictsMemoryAndWarns) {
  const Everything all;
  const Plan plan = all.plan();
  EXPECT_GT(plan.memory().param_bytes, 0u);
  const shard::Memory apart =
      plan.memory({.ranks_per_host = 1, .device = "cpu"});
  EXPECT_GT(apart.host_bytes, 0u);
  expect_error([&] { (void)plan.memory({.device = "abacus"}); },
               Code::invalid_argument, {"abacus"});
  EXPECT_THAT(std::string(plan.warnings()), ::testing::HasSubstr("frozen"));
}

TEST(PlanTest, ViewsParametersInTheHostsOwnBuffer) {
  const Everything all;
  const Plan plan = all.plan();
  const shard::ParamInfo info = plan.param_info(all.weight);
  std::vector<float> flat(
      static_cast<std::size_t>(plan.buffer_info(info.buffer).full_numel));
  const std::span<float> view = plan.param_view(all.weight, std::span(flat));
  EXPECT_EQ(view.data(), flat.data() + info.begin);
  EXPECT_EQ(view.size(), 12u);
  const auto bytes =
      plan.param_view(all.weight, std::as_bytes(std::span(flat)));
  EXPECT_EQ(bytes.size(), 48u);

  std::vector<double> wide(flat.size());
  expect_error([&] { (void)plan.param_view(all.weight, std::span(wide)); },
               Code::invalid_argument, {"f32", "not f64"});
  expect_error(
      [&] { (void)plan.param_view(all.weight, std::span(flat).first(3)); },
      Code::invalid_argument);
  expect_error(
      [&] {
        (void)plan.param_view(
            all.weight,
            std::as_bytes(std::span(flat)).first(flat.size() * 4 - 1));
      },
      Code::invalid_argument, {"whole elements"});
}

TEST(PlanTest, ManualOwnersAndOtherOptionsReachTheLibrary) {
  const Net net(0);
  const shard::PlanOptions options = {
      .stage = 1,
      .world_size = 2,
      .partition = shard::Partition::manual,
      .owners = {1, 1, 0, 1},
      .optimizer = "adamw?lr=0.5",
      .f32_grads = true,
      .masters = shard::Masters::none_stochastic,
      .seed = 7,
      .param_dtype = DType::bf16,
      .prefetch = 2,
      .deterministic = true,
      .require_sharding = true,
  };
  const Plan plan = Plan::create(net.model, options);
  EXPECT_EQ(plan.param_info(net.weight).first_rank, 1);
  EXPECT_EQ(plan.param_info(net.out_weight).first_rank, 0);
  EXPECT_EQ(plan.param_info(net.weight).dtype, DType::bf16);
  EXPECT_EQ(plan.buffer_info(plan.param_info(net.weight).buffer).grad_dtype,
            DType::f32);

  shard::PlanOptions wrong = options;
  wrong.owners.pop_back();
  expect_error([&] { (void)Plan::create(net.model, wrong); },
               Code::invalid_argument, {"3"});
}

TEST(WrapTest, APredicateChoosesUnits) {
  const Net net(0);
  const Plan plan = Plan::create(
      net.model, {.world_size = 1,
                  .wrap_predicate = [&](ModuleId module, std::int64_t numel) {
                    EXPECT_GT(numel, 0);
                    return module == net.second;
                  }});
  EXPECT_EQ(plan.units().size(), 2);
  EXPECT_NE(plan.unit_of_module(net.second), std::nullopt);
}

TEST(WrapTest, WhatAPredicateThrowsThePlanThrows) {
  const Net net;
  int calls = 0;
  EXPECT_THROW(
      (void)Plan::create(
          net.model, {.world_size = 1,
                      .wrap_predicate = [&](ModuleId, std::int64_t) -> bool {
                        ++calls;
                        throw std::domain_error("no");
                      }}),
      std::domain_error);
  EXPECT_EQ(calls, 1);
}

TEST(WrapTest, APredicateMayNotChangeItsModel) {
  Net net;
  expect_error(
      [&] {
        (void)Plan::create(
            net.model, {.world_size = 1,
                        .wrap_predicate = [&](ModuleId module, std::int64_t) {
                          net.model.add_param(module, "late", DType::f32, {1});
                          return false;
                        }});
      },
      Code::failed_precondition, {"callback of the model"});
}

TEST(ModelTest, RefusesWhatTheLibraryRefuses) {
  Net net;
  expect_error(
      [&] { net.model.add_param(net.first, "weight", DType::f32, {1}); },
      Code::already_exists, {"weight"});
  expect_error([&] { net.model.add_param(net.first, "a", DType::f32, {-1}); },
               Code::invalid_argument, {"-1"});
  expect_error([&] { net.model.add_param(ModuleId{99}, "a", DType::f32, {1}); },
               Code::invalid_argument, {"99"});
  expect_error([&] { net.model.add_param(net.first, "a", DType{77}, {1}); },
               Code::invalid_argument, {"77"});
  expect_error([&] { net.model.add_module(net.first, "\xff\xfe"); },
               Code::invalid_argument);
  expect_error([&] { net.model.add_param_group("?lr=1", {}); },
               Code::invalid_argument);
  const Model moved = std::move(net.model);
  expect_error([&] { net.model.freeze(net.weight); }, Code::invalid_argument);
  expect_error([&] { (void)Plan::create(net.model, {.world_size = 1}); },
               Code::invalid_argument);
}

TEST(NamesTest, ThatAreNoUtf8AreRefused) {
  Net net;
  for (const auto& call : std::initializer_list<std::function<void()>>{
           [&] { (void)Model::create("a\xff"); },
           [&] { net.model.add_module(net.first, "a\xff"); },
           [&] { net.model.add_module(net.first, "a", "a\xff"); },
           [&] { net.model.add_param(net.first, "a\xff", DType::f32, {1}); },
           [&] { net.model.add_buffer(net.first, "a\xff", DType::f32, {1}); },
           [&] { net.model.tie(net.second, "a\xff", net.bias); },
           [&] { net.model.add_param_group("a\xff", {net.bias}); }}) {
    expect_error(call, Code::invalid_argument);
  }
}

TEST(NamesTest, WrappersAreTakenOutOfThem) {
  EXPECT_EQ(shard::clean_tensor_name("a._orig_mod.weight"), "a.weight");
  EXPECT_EQ(shard::clean_tensor_name("module.weight"), "module.weight");
  EXPECT_EQ(shard::clean_tensor_name("module.weight", true), "weight");
  const std::string deep(4000, 'x');
  EXPECT_EQ(shard::clean_tensor_name(deep), deep);
}

}  // namespace
}  // namespace shard_sdk_testing::plan_test
