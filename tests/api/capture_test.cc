// SPDX-License-Identifier: Apache-2.0
//
// The functions of captured steps where there is nothing to capture: wrong
// arguments, and engines on a processor. The graphs themselves are tested on
// engines (tests/core/engine) and by hosts in each language (tests/sdk).

#include <functional>
#include <string>

#include "tests/api/api_testing.h"

namespace shard_api_testing::capture_test {
namespace {

// Makes a step whose gradients average to 1: with a rate of 0.5 every weight
// falls by 0.5.
void ExpectTrains(shard_engine* engine, shard_comm* comm) {
  const float before = WeightOf(engine)[0];
  EXPECT_OK(shard_comm_barrier(comm, 0));
  FillGrad(engine, 1.0f);
  EXPECT_OK(shard_engine_step(engine, nullptr, nullptr));
  EXPECT_EQ(WeightOf(engine)[11], before - 0.5f);
  EXPECT_OK(shard_comm_barrier(comm, 0));
}

TEST(CaptureTest, NullIsNoEngine) {
  EXPECT_FAILS(shard_engine_capture_begin(nullptr), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  EXPECT_FAILS(shard_engine_capture_end(nullptr), SHARD_INVALID_ARGUMENT,
               "engine is NULL");
  const shard_step_options options = SHARD_STEP_OPTIONS_INIT;
  for (const shard_step_options* const given :
       {&options, static_cast<const shard_step_options*>(nullptr)}) {
    EXPECT_FAILS(shard_engine_before_replay(nullptr, given),
                 SHARD_INVALID_ARGUMENT, "engine is NULL");
  }
}

TEST(CaptureTest, AProcessorHasNoGraphsAndTrainsOn) {
  for (const int ranks : {1, 2}) {
    RunRanks(ranks, [&](int, shard_comm* comm) {
      const Engine early = MakeEngine(SmallPlan(ranks).get(), comm);
      EXPECT_FAILS(shard_engine_capture_begin(early.get()),
                   SHARD_FAILED_PRECONDITION, "capture_begin",
                   "broadcast_params");
      const Engine engine = TrainingEngine(comm);
      for (int i = 0; i < 2; ++i) {
        EXPECT_FAILS(shard_engine_capture_begin(engine.get()),
                     SHARD_UNIMPLEMENTED, "capture_begin",
                     ranks == 1 ? "no graphs" : "2 ranks");
        EXPECT_FAILS(shard_engine_capture_end(engine.get()),
                     SHARD_FAILED_PRECONDITION,
                     "capture_end without capture_begin");
        EXPECT_FAILS(shard_engine_before_replay(engine.get(), nullptr),
                     SHARD_FAILED_PRECONDITION, "before_replay",
                     "no step was captured");
        ExpectTrains(engine.get(), comm);
      }
      EXPECT_OK(shard_comm_shutdown(comm, 0));
    });
  }
}

// All ranks have the error of the lowest one, which names the rank and the
// value; the others lack a captured step.
TEST(CaptureTest, WrongOptionsOfOneRankAreAnErrorOfAll) {
  RunRanks(3, [](int rank, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    const auto replay_with =
        [&](const std::function<void(shard_step_options*)>& change) {
          shard_step_options options = SHARD_STEP_OPTIONS_INIT;
          if (rank == 0) change(&options);
          const Outcome outcome =
              Take(shard_engine_before_replay(engine.get(), &options));
          EXPECT_EQ(outcome.rank, 0);
          ExpectTrains(engine.get(), comm);
          return outcome;
        };
    ExpectError(replay_with([](auto* o) { o->struct_size = 3; }),
                SHARD_INVALID_ARGUMENT, {"rank 0", "struct_size", "3"});
    ExpectError(replay_with([](auto* o) { o->skip_nonfinite = 7; }),
                SHARD_INVALID_ARGUMENT, {"rank 0", "skip_nonfinite", "7"});
    ExpectError(replay_with([](auto* o) { o->clip_value = -2; }),
                SHARD_INVALID_ARGUMENT, {"rank 0", "clip_value=-2"});
    EXPECT_OK(shard_comm_shutdown(comm, 0));
  });
}

}  // namespace
}  // namespace shard_api_testing::capture_test
