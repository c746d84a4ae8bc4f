// SPDX-License-Identifier: Apache-2.0
//
// Helpers that the tests of the C++ SDK share: ranks that are threads, a small
// model that trains, and errors.

#ifndef SHARD_TESTS_SDK_CPP_SDK_TESTING_H_
#define SHARD_TESTS_SDK_CPP_SDK_TESTING_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "shard/shard.hpp"

namespace shard_sdk_testing {

using shard::Code;
using shard::Comm;
using shard::DType;
using shard::Engine;
using shard::GroupId;
using shard::Model;
using shard::ModuleId;
using shard::ParamId;
using shard::Pass;
using shard::Plan;
using shard::Unit;
using shard::UnitId;

// Expects that `call` throws a shard::Error with this code, and with every text
// of `texts` in its message.
inline void expect_error(const std::function<void()>& call, Code code,
                         const std::vector<std::string>& texts = {}) {
  try {
    call();
  } catch (const shard::Error& error) {
    EXPECT_STREQ(shard::code_name(error.code()), shard::code_name(code))
        << error.what();
    for (const std::string& text : texts) {
      EXPECT_THAT(error.message(), ::testing::HasSubstr(text));
    }
    return;
  }
  ADD_FAILURE() << "no error, but expected " << shard::code_name(code);
}

// Runs `body` as the ranks of a group of threads. With `options` "&direct=0"
// they act as if they shared no memory.
inline void run_ranks(int world_size, const std::function<void(Comm&)>& body,
                      const std::string& options = "") {
  static std::atomic<int> groups{0};
  const std::string url = "threads:" + std::to_string(world_size) +
                          "?name=cpp-" + std::to_string(++groups) + options;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Comm comm = Comm::open(
            url, {.rank = rank, .world_size = world_size, .timeout = 30});
        body(comm);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Blocks with a weight and a bias, and more blocks with a larger weight: eight
// are enough for stages 2 and 3 to shard, which they do where that saves
// memory. All parameters want to be 1.
struct Net {
  Model model = Model::create("Net");
  ModuleId first = model.add_module(shard::root_module, "first", "Block");
  ModuleId second = model.add_module(shard::root_module, "second", "Block");
  ParamId weight = model.add_param(first, "weight", DType::f32, {40, 3});
  ParamId bias = model.add_param(first, "bias", DType::f32, {40});
  ParamId out_weight = model.add_param(second, "weight", DType::f32, {3, 40});
  ParamId out_bias = model.add_param(second, "bias", DType::f32, {3});

  explicit Net(int more_blocks = 8) {
    for (int i = 0; i < more_blocks; ++i) {
      const ModuleId block = model.add_module(
          shard::root_module, "block" + std::to_string(i), "Block");
      model.add_param(block, "weight", DType::f32, {1100});
    }
  }
};

// A plan of the net in which each block is a unit.
inline Plan plan_of(const Net& net, int stage, const Comm& comm) {
  return Plan::create(net.model, {.stage = stage,
                                  .world_size = comm.world_size(),
                                  .optimizer = "sgd?lr=0.5",
                                  .wrap = "class?names=Block"});
}

// Returns an engine of the net, whose parameters are 0, ready to step.
inline Engine engine_of(const Net& net, int stage, Comm& comm,
                        const shard::EngineOptions& options = {}) {
  Engine engine = Engine::create(plan_of(net, stage, comm), comm, options);
  engine.broadcast_params();
  return engine;
}

// Makes a step through all units: the gradient of each element is its distance
// from 1. Returns the sum of the squares of these.
inline double train_step(Engine& engine,
                         const shard::StepOptions& options = {}) {
  const Plan plan = engine.plan();
  double loss = 0;
  for (const UnitId id : plan.units()) {
    const Unit unit = engine.unit_acquire(id, Pass::forward);
    for (const shard::UnitParam& param : unit.params()) {
      for (const float x : unit.param<float>(param.param)) {
        loss += (x - 1) * (x - 1);
      }
    }
  }
  for (const UnitId id : plan.units()) {
    Unit unit = engine.unit_acquire(id, Pass::backward);
    for (const shard::UnitParam& param : unit.params()) {
      const auto values = unit.param<float>(param.param);
      std::transform(values.begin(), values.end(),
                     unit.grad<float>(param.param).begin(),
                     [](float x) { return x - 1; });
    }
    unit.mark_grads_ready();
    unit.release();
  }
  engine.step(options);
  return loss;
}

// Returns a parameter's elements, whatever the stage.
inline std::vector<float> values_of(Engine& engine, ParamId param) {
  const shard::FullParams full = engine.summon();
  const auto values = full.param<float>(param);
  return {values.begin(), values.end()};
}

}  // namespace shard_sdk_testing

#endif  // SHARD_TESTS_SDK_CPP_SDK_TESTING_H_
