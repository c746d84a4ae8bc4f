// SPDX-License-Identifier: Apache-2.0
//
// Engines that train units one call at a time, in every stage, with and without
// shared memory, for tests of calls that the engine refuses.

#ifndef SHARD_TESTS_CORE_ENGINE_UNIT_CALLS_H_
#define SHARD_TESTS_CORE_ENGINE_UNIT_CALLS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/six_blocks.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::testing {

struct Form {
  const char* name;
  int stage;
  const char* link;

  bool apart() const { return *link != '\0'; }
  bool gathers() const { return stage == 3 && apart(); }
  bool shards_grads() const { return stage >= 2; }
  // Returns whether gradients are reduced when they become ready.
  bool reduces() const { return shards_grads() || apart(); }
};

inline constexpr Form kForms[] = {
    {"stage0", 0, ""},
    {"stage1", 1, ""},
    {"stage2", 2, ""},
    {"stage3", 3, ""},
    {"apart_stage0", 0, "direct=0"},
    {"apart_stage1", 1, "direct=0"},
    {"apart_stage2", 2, "direct=0"},
    {"apart_stage3", 3, "direct=0"},
};

struct World {
  int world_size = 2;
  int prefetch = 1;
  bool deterministic = false;
  EngineOptions engine;
};

class UnitCallsTest : public ::testing::TestWithParam<Form> {
 protected:
  static constexpr double kTimeout = 10;

  static constexpr int32_t kUnits = 7;

  static Status Ready(Engine* engine, int32_t unit) {
    SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kBackward, 0));
    SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
    return engine->UnitRelease(unit);
  }

  static Status Step(Engine* engine) {
    StepReport report;
    return engine->Step(StepOptions(), &report);
  }

  static Status TrainStep(Engine* engine) {
    for (int32_t u = kUnits; u-- > 0;) SHARD_RETURN_IF_ERROR(Ready(engine, u));
    return Step(engine);
  }

  static constexpr StatusCode kWrongState = StatusCode::kFailedPrecondition;

  // Returns a plan of SixBlocks. Each depth has `prefetch` slots beside the one
  // in use.
  static StatusOr<std::shared_ptr<const Plan>> MakePlan(
      const Form& form, const World& world = {}) {
    UnitTraining training = SixBlocks();
    training.plan.stage = form.stage;
    training.plan.world_size = world.world_size;
    training.plan.prefetch = world.prefetch;
    training.plan.deterministic = world.deterministic;
    return PlanOf(training);
  }

  // Calls `body` on every rank with an engine that is training.
  void OnRanks(const std::function<void(Engine*)>& body,
               const World& world = {}) {
    const auto plan = MakePlan(GetParam(), world);
    ASSERT_OK(plan);
    ASSERT_TRUE(ShardsAsItsStage(**plan));
    RunThreadRanks(
        world.world_size,
        [&](const auto& comm) {
          auto made = CreateEngine(*plan, comm, world.engine);
          ASSERT_OK(made);
          ASSERT_OK((*made)->BroadcastParams(0));
          body(made->get());
        },
        kTimeout, GetParam().link);
  }
};

// Returns the name of a form for a suite of tests.
inline std::string NameOf(const ::testing::TestParamInfo<Form>& info) {
  return info.param.name;
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_ENGINE_UNIT_CALLS_H_
