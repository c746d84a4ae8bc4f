// SPDX-License-Identifier: Apache-2.0
//
// Streams that a host sets, and how it waits for what the engine does on its
// own: Engine::SetStream and Synchronize.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/gate.h"
#include "tests/core/device/test_device.h"
#include "tests/core/engine/async_host.h"
#include "tests/core/engine/stream_ranks.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::host_stream_test {
namespace {

// The work of a host. `next_stream` sets a new stream where the host has any.
using HostScript = std::function<void(
    AsyncHost* host, const std::function<void()>& next_stream)>;

// Expects the hosts of two ranks to read on streams what those of "cpu" read.
void ExpectOrderOnStreams(int stage, const char* link,
                          const HostScript& script) {
  HostRun run = RunOf(stage, link);
  run.training.engine.device = "cpu";
  const HostReads expected =
      ReadsOf(run, [&](AsyncHost* host) { script(host, [] {}); });
  ASSERT_FALSE(expected.empty() || expected[0].empty());

  const auto plan = PlanOf(run.training);
  ASSERT_OK(plan);
  std::vector<AsyncHostMemory> memory(2);
  RunThreadRanks(
      2,
      [&](const auto& comm) {
        const StreamRank rank = MakeStreamRank(run.training, *plan, comm);
        UnitTrainer(run.training, rank.engine.get()).Fill();
        AsyncHost host(rank.engine.get(),
                       &memory[static_cast<size_t>(comm->rank())]);
        script(&host, [&] { host.UseStream(rank.SetStream()); });
      },
      30, link);
  for (size_t r = 0; r < memory.size(); ++r) {
    EXPECT_TRUE(memory[r].reads == expected[r]) << "rank " << r;
  }
}

// ---- Order -----------------------------------------------------------------

class HostStreamTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Links, HostStreamTest,
                         ::testing::Values("", "direct=0"),
                         [](const auto& info) {
                           return info.index == 0 ? "direct" : "apart";
                         });

TEST_P(HostStreamTest, CallsTakePlaceInTheOrderOfTheStream) {
  ExpectOrderOnStreams(1, GetParam(),
                       [](AsyncHost* host, const auto& next_stream) {
                         next_stream();
                         for (int step = 1; step <= 2; ++step) {
                           host->ReadAll();
                           host->AddAllGrads(step);
                           host->Step();
                           host->SpoilAllGrads();
                           ASSERT_OK(host->engine().ZeroGrad());
                         }
                         host->ReadAll();
                       });
}

TEST_P(HostStreamTest, StepsThatReturnEarlyTakePlaceInTheOrderOfTheStream) {
  ExpectOrderOnStreams(1, GetParam(),
                       [](AsyncHost* host, const auto& next_stream) {
                         next_stream();
                         for (int step = 1; step <= 3; ++step) {
                           host->AddAllGrads(step);
                           host->StepWithoutReport();
                           host->ReadAll();
                           host->SpoilAllGrads();
                           ASSERT_OK(host->engine().ZeroGrad());
                         }
                         EXPECT_EQ(host->engine().step(), 3);
                       });
}

TEST_P(HostStreamTest, UnitsTakePlaceInTheOrderOfTheStream) {
  for (const int stage : {2, 3}) {
    ExpectOrderOnStreams(stage, GetParam(),
                         [](AsyncHost* host, const auto& next_stream) {
                           for (int step = 1; step <= 3; ++step) {
                             next_stream();
                             host->Forward();
                             host->Backward(step);
                             host->Step();
                             ASSERT_OK(host->engine().ZeroGrad());
                           }
                           host->Forward();
                         });
  }
}

TEST_P(HostStreamTest, ANewStreamComesAfterTheWorkOfTheOldOne) {
  ExpectOrderOnStreams(
      1, GetParam(), [](AsyncHost* host, const auto& next_stream) {
        for (int step = 1; step <= 2; ++step) {
          next_stream();
          host->SpoilAllGrads();
          next_stream();
          for (ParamId param = 0; param < host->num_params(); ++param) {
            const auto grad = host->engine().Grad(param);
            ASSERT_OK(grad);
            host->Fill(*grad, 0);
          }
          next_stream();
          host->AddAllGrads(step);
          host->Step();
          host->ReadAll();
        }
      });
}

TEST_P(HostStreamTest, TheUsualStreamComesBack) {
  ExpectOrderOnStreams(1, GetParam(),
                       [](AsyncHost* host, const auto& next_stream) {
                         host->AddAllGrads(1);
                         next_stream();
                         host->Step();
                         host->ReadAll();
                         ASSERT_OK(host->engine().SetStream(nullptr));
                         host->UseStream(nullptr);
                         host->AddAllGrads(2);
                         host->Step();
                         host->ReadAll();
                       });
}

// ---- Errors ----------------------------------------------------------------

TEST(SetStreamTest, AStreamOfAnotherDeviceLeavesTheOldOne) {
  OnStreamRanks([](StreamRank& rank) {
    Stream* const stream = rank.SetStream();
    testing::AsyncHostDevice other(*OpenDevice("cpu-async"));
    const auto foreign = other.MakeHostStream();
    ASSERT_OK(foreign);
    ExpectInvalid(rank.engine->SetStream(*foreign),
                  {"set_stream", rank.device->name()});
    Gate gate;
    stream->Call("the host's work", gate.Passing());
    EXPECT_FALSE(rank.engine->host_stream().Record().IsDone());
    gate.Open();
    ASSERT_OK(stream->Synchronize(Deadline::After(60)));
  });
}

TEST(SetStreamTest, ItIsForTheTimeBetweenSteps) {
  UnitTraining training = RunOf(1, "").training;
  training.plan.world_size = 1;
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  const auto comm = OpenCommunicator("local:", CommOptions());
  ASSERT_OK(comm);
  const StreamRank rank = MakeStreamRank(training, *plan, *comm);
  Engine& engine = *rank.engine;
  rank.SetStream();  // FILLING.
  UnitTrainer(training, &engine).Fill();
  const auto expect_fails = [&](std::string_view state) {
    ExpectError(engine.SetStream(nullptr), StatusCode::kFailedPrecondition,
                {"set_stream", state});
  };
  ASSERT_OK(engine.BeginStep(StepOptions()));
  expect_fails("after begin_step");
  ASSERT_OK(engine.UnitAcquire(0, Pass::kForward, 0));
  expect_fails("FORWARD");
  ASSERT_OK(engine.UnitRelease(0));
  AsyncHostMemory memory;
  AsyncHost(&engine, &memory).Backward(1);
  StepReport report;
  ASSERT_OK(engine.Step(StepOptions(), &report));
  rank.SetStream();
  ASSERT_OK(engine.MarkUnitGradsReady(1));
  expect_fails("FORWARD_BACKWARD");
  ASSERT_OK(engine.ZeroGrad());
  ASSERT_OK(engine.Summon(kRootModule, -1, 0));
  expect_fails("SUMMON_FULL_PARAMS");
  ASSERT_OK(engine.EndSummon(false, 0));
  ASSERT_OK(engine.SetStream(nullptr));
}

TEST(SetStreamTest, ALaterErrorOfTheOldStreamIsThatOfTheNewOne) {
  OnStreamRanks([](StreamRank& rank) {
    Gate gate;
    rank.SetStream()->Call("the host's work", [&gate] {
      SHARD_RETURN_IF_ERROR(gate.Pass());
      return Internal("broken");
    });
    Stream* const stream = rank.SetStream();
    gate.Open();
    ExpectError(stream->Synchronize(Deadline::After(60)), StatusCode::kInternal,
                {"broken"});
    StepReport report;
    EXPECT_FALSE(rank.engine->Step(StepOptions(), &report).ok());
  });
}

TEST(SetStreamTest, AStreamThatHasFailedStays) {
  OnStreamRanks([](StreamRank& rank) {
    Stream* const failed = rank.SetStream();
    failed->Call("the host's work", [] { return Internal("broken"); });
    ExpectError(failed->Synchronize(Deadline::After(60)), StatusCode::kInternal,
                {"broken"});
    const auto next = rank.device->MakeHostStream();
    ASSERT_OK(next);
    ExpectError(rank.engine->SetStream(*next), StatusCode::kInternal,
                {"broken"});
    ExpectError(rank.engine->host_stream().status(), StatusCode::kInternal,
                {"broken"});
  });
}

// ---- Waiting ---------------------------------------------------------------

TEST(SynchronizeTest, AWaitThatEndsTooEarlyIsNoError) {
  OnStreamRanks([](StreamRank& rank) {
    Engine& engine = *rank.engine;
    Gate gate;
    rank.SetStream()->Call("the host's work", gate.Passing());
    ASSERT_OK(engine.ZeroGrad());
    ExpectError(engine.Synchronize(0.001), StatusCode::kDeadlineExceeded, {});
    gate.Open();
    ASSERT_OK(engine.Synchronize(0));
    AsyncHostMemory memory;
    AsyncHost host(&engine, &memory);
    host.Backward(1);
    host.Step();
    ASSERT_OK(engine.Synchronize(0));
  });
}

TEST(SynchronizeTest, AnErrorIsFinalAndReachesTheOtherRank) {
  OnStreamRanks([](StreamRank& rank) {
    Engine& engine = *rank.engine;
    if (engine.comm()->rank() == 0) {
      rank.SetStream()->Call("the host's work",
                             [] { return Internal("broken"); });
      // Returns before the work has run, or with its error.
      (void)engine.ZeroGrad().ok();
      for (int i = 0; i < 2; ++i) {
        ExpectError(engine.Synchronize(0), StatusCode::kInternal, {"broken"});
      }
      return;
    }
    StepReport report;
    ExpectError(engine.Step(StepOptions(), &report), StatusCode::kPoisoned,
                {"broken"});
  });
}

}  // namespace
}  // namespace shard::host_stream_test
