// SPDX-License-Identifier: Apache-2.0
//
// Views of an engine on a GPU: the host cannot use the GPU's memory, so spans
// of it are refused, and addresses given. Runs on the fake of the driver, which
// faults where the program uses the GPU's memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/sdk/cpp/sdk_testing.h"

namespace shard_sdk_testing::device_views_test {
namespace {

using shard::FullParams;
using shard::ModelBufferId;
using shard::StateDict;
using shard::UnitParamPtr;
using ::testing::Each;

// A model of two modules on one rank.
struct Host {
  Comm comm = Comm::open("local:");
  Model model = Model::create("Net");
  ModuleId block = model.add_module(shard::root_module, "block", "Block");
  ParamId weight =
      model.add_param(shard::root_module, "weight", DType::f32, {4, 2});
  ParamId bias = model.add_param(block, "bias", DType::f32, {100});
  ModelBufferId mean =
      model.add_buffer(shard::root_module, "mean", DType::f32, {3});
  Engine engine;

  explicit Host(const std::string& device)
      : engine(Engine::create(
            Plan::create(model,
                         {.world_size = 1, .optimizer = "sgd?momentum=0.9"}),
            comm, {.device = device})) {
    engine.set_param(weight, std::vector<float>(8, 2.0f));
  }
};

// Return what the C interface gives.
const void* param_of(const Engine& engine, ParamId param) {
  const void* data = nullptr;
  EXPECT_EQ(shard_engine_param(engine.get(), shard::detail::raw(param), &data,
                               nullptr),
            nullptr);
  return data;
}
void* grad_of(const Engine& engine, ParamId param) {
  void* data = nullptr;
  EXPECT_EQ(shard_engine_grad(engine.get(), shard::detail::raw(param), &data,
                              nullptr),
            nullptr);
  return data;
}

// Checks that all addresses are those of the C interface.
void expect_addresses(Engine& engine, ParamId param) {
  ASSERT_NE(param_of(engine, param), nullptr);
  ASSERT_NE(grad_of(engine, param), nullptr);
  EXPECT_EQ(engine.param_ptr<float>(param), param_of(engine, param));
  EXPECT_EQ(engine.grad_ptr<std::byte>(param), grad_of(engine, param));
  expect_error([&] { (void)engine.param_ptr<double>(param); },
               Code::invalid_argument, {"f32"});

  const UnitId id = engine.plan().unit_of(param);
  Unit unit = engine.unit_acquire(id, Pass::backward);
  EXPECT_EQ(unit.param_ptr<float>(param), param_of(engine, param));
  EXPECT_EQ(unit.grad_ptr<float>(param), grad_of(engine, param));
  const std::vector<UnitParamPtr> params = unit.param_ptrs();
  const auto found = std::ranges::find(params, param, &UnitParamPtr::param);
  ASSERT_NE(found, params.end());
  EXPECT_EQ(found->data, param_of(engine, param));
  EXPECT_EQ(found->grad, grad_of(engine, param));
  unit.release();
  Unit forward = engine.unit_acquire(id, Pass::forward);
  EXPECT_EQ(forward.param_ptrs().at(0).grad, nullptr);
}

TEST(DeviceViewsTest, SpansAreRefusedOnAGpu) {
  Host host("cuda:0");
  Engine& engine = host.engine;
  EXPECT_EQ(engine.device().kind, shard::DeviceKind::cuda);
  const std::string weight =
      "parameter 0 is in the memory of GPU 0, which the "
      "host cannot use; ";
  expect_error(
      [&] { (void)engine.writable_param<float>(host.weight); },
      Code::failed_precondition,
      {weight + "set its values by set_param()", "writable_param_ptr()"});
  EXPECT_EQ(engine.writable_param_ptr<float>(host.weight),
            param_of(engine, host.weight));
  engine.broadcast_params();

  expect_error([&] { (void)engine.param<float>(host.weight); },
               Code::failed_precondition,
               {weight + "take its address by param_ptr()", "copy"});
  // The bytes of a tensor are its memory too.
  expect_error([&] { (void)engine.param<std::byte>(host.weight); },
               Code::failed_precondition, {weight});
  expect_error(
      [&] { (void)engine.grad<float>(host.bias); }, Code::failed_precondition,
      {"the gradient of parameter 1 is in the memory of GPU 0", "grad_ptr()"});
  expect_addresses(engine, host.weight);
  expect_addresses(engine, host.bias);

  const Unit unit =
      engine.unit_acquire(engine.plan().unit_of(host.weight), Pass::backward);
  expect_error([&] { (void)unit.param<float>(host.weight); },
               Code::failed_precondition, {weight, "param_ptr()"});
  expect_error([&] { (void)unit.grad<float>(host.weight); },
               Code::failed_precondition, {"GPU 0", "grad_ptr()"});
  expect_error([&] { (void)unit.params(); }, Code::failed_precondition,
               {"unit 0 is in the memory of GPU 0", "param_ptrs()"});

  // Buffers of the model are in the host's memory on every device.
  std::ranges::fill(engine.buffer<float>(host.mean), 5.0f);
  EXPECT_THAT(engine.buffer<float>(host.mean), Each(5.0f));
}

TEST(DeviceViewsTest, ACpuGivesSpansAndTheirAddresses) {
  for (const char* device : {"cpu", "cpu-async"}) {
    Host host(device);
    Engine& engine = host.engine;
    EXPECT_EQ(engine.writable_param_ptr<float>(host.weight),
              engine.writable_param<float>(host.weight).data());
    engine.broadcast_params();
    EXPECT_EQ(engine.param_ptr<float>(host.weight),
              engine.param<float>(host.weight).data());
    EXPECT_EQ(engine.grad_ptr<float>(host.weight),
              engine.grad<float>(host.weight).data());
    EXPECT_THAT(engine.param<float>(host.weight), Each(2.0f));
    expect_addresses(engine, host.weight);
    const StateDict state = StateDict::get(engine);
    const std::int64_t tensor = state.find("weight");
    EXPECT_THAT(state.local<float>(tensor).elements, Each(2.0f));
    EXPECT_EQ(state.local_ptr<float>(tensor).data,
              state.local<float>(tensor).elements.data());
  }
}

TEST(DeviceViewsTest, FullParametersAreInTheHostsMemory) {
  Host host("cuda:0");
  Engine& engine = host.engine;
  engine.broadcast_params();
  {
    FullParams full = engine.summon(host.block);
    std::ranges::fill(full.writable_param<float>(host.bias), 7.0f);
    EXPECT_THAT(full.param<float>(host.bias), Each(7.0f));
    EXPECT_THAT(engine.param<float>(host.bias), Each(7.0f));
    // The module has no copy of this one.
    expect_error([&] { (void)full.param<float>(host.weight); },
                 Code::failed_precondition, {"parameter 0 is in the memory"});
    expect_error([&] { (void)engine.grad<float>(host.bias); },
                 Code::failed_precondition, {"memory of GPU 0"});
    full.end(true);
  }
  {
    const FullParams full = engine.summon();
    EXPECT_THAT(full.param<float>(host.weight), Each(2.0f));
    EXPECT_THAT(full.param<float>(host.bias), Each(7.0f));
  }
  expect_error([&] { (void)engine.param<float>(host.bias); },
               Code::failed_precondition, {"memory of GPU 0"});
}

// Returns the elements of a tensor, and whether they are refused.
std::pair<std::vector<float>, bool> local_of(const StateDict& state,
                                             const std::string& key) {
  try {
    const auto elements = state.local<float>(state.find(key)).elements;
    return {{elements.begin(), elements.end()}, false};
  } catch (const shard::Error& error) {
    EXPECT_EQ(error.code(), Code::failed_precondition);
    EXPECT_THAT(error.message(),
                ::testing::StartsWith("tensor '" + key +
                                      "' is in the memory of GPU 0, which the "
                                      "host cannot use; get the state dict "
                                      "with copy, or"));
    EXPECT_THAT(error.message(), ::testing::HasSubstr("local_ptr()"));
    return {{}, true};
  }
}

TEST(DeviceViewsTest, StateDictsSayWhichTensorsTheHostCanUse) {
  const std::string momentum = "state.weight.momentum_buffer";
  for (const bool offloads : {false, true}) {
    Host host(offloads ? "cuda:0?offload=states" : "cuda:0");
    Engine& engine = host.engine;
    engine.broadcast_params();
    engine.zero_grad();
    engine.step();
    std::ranges::fill(engine.buffer<float>(host.mean), 5.0f);

    const StateDict copy = StateDict::get(engine, {.copy = true});
    EXPECT_THAT(local_of(copy, "weight").first, Each(2.0f));
    EXPECT_EQ(local_of(copy, momentum).first.size(), 8u);

    const StateDict state = StateDict::get(engine);
    EXPECT_TRUE(local_of(state, "weight").second);
    EXPECT_EQ(local_of(state, momentum).second, !offloads);
    if (offloads) {
      EXPECT_EQ(local_of(state, momentum).first, std::vector<float>(8));
    }
    EXPECT_EQ(state.device(state.find("weight")).kind, shard::DeviceKind::cuda);
    EXPECT_EQ(state.device(state.find(momentum)).kind,
              offloads ? shard::DeviceKind::cpu : shard::DeviceKind::cuda);
    EXPECT_EQ(local_of(state, "mean").first, std::vector<float>(3, 5.0f));
    const auto at = state.local_ptr<float>(state.find("weight"));
    EXPECT_EQ(at.data, param_of(engine, host.weight));
    EXPECT_EQ(at.size, 8u);
    EXPECT_EQ(at.begin, 0);
  }
}

}  // namespace
}  // namespace shard_sdk_testing::device_views_test
