// SPDX-License-Identifier: Apache-2.0
//
// Calls in the wrong state, and ranks that call different things: what the
// error says, that it is the same code on all ranks, that nothing hangs, and
// what can go on after it.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"

namespace shard {
namespace {

constexpr double kTimeout = 10;

struct Form {
  const char* name;
  int stage;
  const char* link;

  bool apart() const { return *link != '\0'; }
  bool gathers() const { return stage == 3 && apart(); }
  bool shards_grads() const { return stage >= 2; }
  // When gradients become ready.
  bool reduces() const { return shards_grads() || apart(); }
};

constexpr Form kForms[] = {
    {"stage0", 0, ""},         {"stage1", 1, ""},
    {"stage2", 2, ""},         {"stage3", 3, ""},
    {"apart_stage0", 0, "direct=0"}, {"apart_stage1", 1, "direct=0"},
    {"apart_stage2", 2, "direct=0"}, {"apart_stage3", 3, "direct=0"},
};

// A root of one parameter and six blocks, 'b0' (1) to 'b5' (6), of two pages;
// one more slot than that in use per depth: `prefetch`.
StatusOr<std::shared_ptr<const Plan>> MakePlan(const Form& form,
                                               int world_size, int prefetch,
                                               bool deterministic = false) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  EXPECT_OK(training.model->AddParam(kRootModule, "base", DType::kF32, {10}));
  for (int b = 0; b < 6; ++b) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("b", b), "Block");
    EXPECT_OK(training.model->AddParam(block, "weight", DType::kF32, {1100}));
    EXPECT_OK(training.model->AddParam(block, "bias", DType::kF32, {3}));
  }
  training.wrap = "class?names=Block";
  training.plan.stage = form.stage;
  training.plan.world_size = world_size;
  training.plan.prefetch = prefetch;
  training.plan.deterministic = deterministic;
  return PlanOf(training);
}

class WrongCallsTest : public testing::TestWithParam<Form> {
 protected:
  // `body` on every rank with an engine that is training.
  void OnRanks(const std::function<void(Engine*)>& body, int world_size = 2,
               MissingGrads missing = MissingGrads::kError, int prefetch = 1,
               bool deterministic = false) {
    const auto plan = MakePlan(GetParam(), world_size, prefetch, deterministic);
    ASSERT_OK(plan);
    ASSERT_EQ((*plan)->shards_grads(), GetParam().shards_grads());
    ASSERT_EQ((*plan)->shards_params(), GetParam().stage == 3);
    RunThreadRanks(
        world_size,
        [&](const auto& comm) {
          EngineOptions options;
          options.missing_grads = missing;
          auto made = Engine::Create(*plan, comm, options);
          ASSERT_OK(made);
          ASSERT_OK((*made)->BroadcastParams(0));
          body(made->get());
        },
        kTimeout, GetParam().link);
  }
};

constexpr int32_t kUnits = 7;

Status Ready(Engine* engine, int32_t unit) {
  SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kBackward, 0));
  SHARD_RETURN_IF_ERROR(engine->UnitGradsReady(unit));
  return engine->UnitRelease(unit);
}

Status Step(Engine* engine) {
  StepReport report;
  return engine->Step(StepOptions(), &report);
}

Status TrainStep(Engine* engine) {
  for (int32_t u = kUnits; u-- > 0;) SHARD_RETURN_IF_ERROR(Ready(engine, u));
  return Step(engine);
}

// The same on all ranks changes nothing.
TEST_P(WrongCallsTest, EverywhereAndGoOn) {
  const Form& form = GetParam();
  OnRanks([&](Engine* engine) {
    ExpectInvalid(engine->UnitAcquire(7, Pass::kForward, 0),
                  {"unit 7 does not exist", "7, from 0"});
    ExpectInvalid(engine->UnitAcquire(-1, Pass::kForward, 0), {"unit -1"});
    for (const int pass : {0, 3, -1}) {
      ExpectInvalid(engine->UnitAcquire(2, static_cast<Pass>(pass), 0),
                    {StrCat("unknown pass ", pass), "1 (forward)"});
    }
    ExpectInvalid(engine->UnitRelease(7), {"unit 7"});
    ExpectInvalid(engine->UnitGradsReady(-2), {"unit -2"});
    ExpectInvalid(engine->ParamGradReady(99), {"parameter 99"});
    ExpectError(engine->UnitRelease(2), StatusCode::kFailedPrecondition,
                {"unit 'b1' (2)", "IDLE", "FORWARD"});

    ASSERT_OK(engine->UnitAcquire(2, Pass::kForward, 0));
    ExpectError(engine->UnitAcquire(2, Pass::kBackward, 0),
                StatusCode::kFailedPrecondition,
                {"unit 'b1' (2)", "FORWARD", "IDLE"});
    ExpectError(engine->UnitGradsReady(2), StatusCode::kFailedPrecondition,
                {"unit 'b1' (2)", "FORWARD", "BACKWARD_PRE"});
    ExpectError(engine->ParamGradReady(1), StatusCode::kFailedPrecondition,
                {"IDLE", "BACKWARD_PRE"}.size() == 0 || form.shards_grads()
                    ? std::initializer_list<std::string_view>{"unit 'b0' (1)",
                                                              "IDLE"}
                    : std::initializer_list<std::string_view>{});
    ExpectError(Step(engine), StatusCode::kFailedPrecondition,
                {"rank 0", "unit 'b1' (2)", "FORWARD", "step"});
    ASSERT_OK(engine->UnitRelease(2));
    EXPECT_OK(TrainStep(engine));
    EXPECT_OK(TrainStep(engine));
  });
}

}  // namespace
}  // namespace shard
