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
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::host_stream_test {
namespace {

using shard::testing::AsyncHostDevice;

// A rank whose host makes streams. The device is destroyed after the engine.
struct Rank {
  std::shared_ptr<AsyncHostDevice> device;
  std::unique_ptr<Engine> engine;

  // Makes a stream and sets it.
  Stream* SetStream() const {
    const auto stream = device->MakeHostStream();
    EXPECT_OK(stream);
    EXPECT_OK(engine->SetStream(*stream));
    return *stream;
  }
};

Rank MakeRank(const UnitTraining& training,
              const std::shared_ptr<const Plan>& plan,
              const std::shared_ptr<Communicator>& comm) {
  Rank rank;
  const auto device = OpenDevice("cpu-async?max_delay=0.001");
  EXPECT_OK(device);
  rank.device = std::make_shared<AsyncHostDevice>(*device);
  EngineOptions options = training.engine;
  options.opened_device = rank.device;
  auto engine = CreateEngine(plan, comm, options);
  EXPECT_OK(engine);
  rank.engine = *std::move(engine);
  return rank;
}

using RankScript = std::function<void(const Rank& rank)>;

// Runs `script` on two ranks, whose parameters have values.
void OnRanks(const RankScript& script, const char* link = "") {
  const UnitTraining training = RunOf(1, link).training;
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  RunThreadRanks(
      2,
      [&](const auto& comm) {
        const Rank rank = MakeRank(training, *plan, comm);
        UnitTrainer(training, rank.engine.get()).Fill();
        script(rank);
      },
      30, link);
}

// The work of a host. `next_stream` sets a new stream where the host has any.
using StreamScript = std::function<void(
    AsyncHost* host, const std::function<void()>& next_stream)>;

// Expects the hosts of two ranks to read on streams what those of "cpu" read.
void ExpectOrderOnStreams(int stage, const char* link,
                          const StreamScript& script) {
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
        const Rank rank = MakeRank(run.training, *plan, comm);
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
  OnRanks([](const Rank& rank) {
    Stream* const stream = rank.SetStream();
    AsyncHostDevice other(*OpenDevice("cpu-async"));
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
  const Rank rank = MakeRank(training, *plan, *comm);
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
  OnRanks([](const Rank& rank) {
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
  OnRanks([](const Rank& rank) {
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

// ---- Steps that return early -----------------------------------------------

class EarlyStepTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void OnRanks(const RankScript& script) {
    host_stream_test::OnRanks(script, GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Links, EarlyStepTest,
                         ::testing::Values("", "direct=0"),
                         [](const auto& info) {
                           return info.index == 0 ? "direct" : "apart";
                         });

TEST_P(EarlyStepTest, ReturnsBeforeItsGradientsAreThere) {
  OnRanks([](const Rank& rank) {
    Engine& engine = *rank.engine;
    ExpectError(engine.LastReport().status(), StatusCode::kFailedPrecondition,
                {"before the first step"});
    Gate gate;
    rank.SetStream()->Call("the host's work", gate.Passing());
    ASSERT_OK(engine.Step(StepOptions(), nullptr));
    EXPECT_FALSE(engine.host_stream().Record().IsDone());
    ExpectError(engine.Synchronize(0.001), StatusCode::kDeadlineExceeded, {});
    gate.Open();
    const auto report = engine.LastReport();
    ASSERT_OK(report);
    EXPECT_EQ(report->step, 1);
    EXPECT_GT(report->bytes_moved, 0u);
    EXPECT_EQ(engine.step(), 1);
  });
}

TEST_P(EarlyStepTest, WaitsForAReportAndWithoutAStreamOfTheHost) {
  OnRanks([](const Rank& rank) {
    Engine& engine = *rank.engine;
    for (const bool reports : {true, false}) {
      if (reports) {
        rank.SetStream();
      } else {
        ASSERT_OK(engine.SetStream(nullptr));
      }
      Gate gate;
      std::atomic<bool> opened = false;
      engine.host_stream().Call("the host's work", gate.Passing());
      std::thread opener([&] {
        EXPECT_TRUE(gate.AwaitArrival());
        opened = true;
        gate.Open();
      });
      StepReport report;
      EXPECT_OK(engine.Step(StepOptions(), reports ? &report : nullptr));
      EXPECT_TRUE(opened);
      opener.join();
      EXPECT_EQ(report.step, reports ? 1 : 0);
      // The report counts what the streams have moved for this step.
      EXPECT_EQ(report.comm.seconds > 0, reports && !engine.comm()->direct());
    }
    EXPECT_EQ(engine.step(), 2);
  });
}

// The transfers of the step, and the next reduction, wait for it for longer
// than a collective may take.
TEST(EarlyTimeoutTest, AStepMayTakeLongerThanTheEnginesTimeout) {
  HostRun run = RunOf(2, "direct=0");
  run.training.engine.timeout = 0.2;
  const auto plan = PlanOf(run.training);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  RunThreadRanks(
      2,
      [&](const auto& comm) {
        const Rank rank = MakeRank(run.training, *plan, comm);
        Engine& engine = *rank.engine;
        UnitTrainer(run.training, &engine).Fill();
        AsyncHostMemory memory;
        AsyncHost host(&engine, &memory);
        host.UseStream(rank.SetStream());
        host.Backward(1);
        Gate gate;
        engine.host_stream().Call("the host's work", gate.Passing());
        StepOptions patient;
        patient.timeout = 60;
        ASSERT_OK(engine.Step(patient, nullptr));
        const Deadline longer = Deadline::After(0.5);
        while (!longer.Expired()) std::this_thread::yield();
        gate.Open();
        ASSERT_OK(engine.Synchronize(60));
        EXPECT_EQ(engine.step(), 1);
      },
      30, "direct=0");
}

TEST_P(EarlyStepTest, CountsSkippedStepsExactly) {
  OnRanks([](const Rank& rank) {
    Engine& engine = *rank.engine;
    AsyncHostMemory memory;
    AsyncHost host(&engine, &memory);
    host.UseStream(rank.SetStream());
    StepOptions options;
    options.skip_nonfinite = true;
    const auto grad = engine.Grad(0);
    ASSERT_OK(grad);
    for (int step = 0; step < 6; ++step) {
      const bool skipped = step % 2 == 0;
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      host.Fill(*grad, skipped ? kInfinity : 1.0f);
      ASSERT_OK(engine.Step(options, nullptr));
      EXPECT_EQ(engine.step(), (step + 1) / 2);
      const auto report = engine.LastReport();
      ASSERT_OK(report);
      EXPECT_EQ(report->skipped, skipped);
      ASSERT_OK(engine.ZeroGrad());
    }
  });
}

TEST_P(EarlyStepTest, ALaterErrorIsThatOfTheNextCall) {
  OnRanks([](const Rank& rank) {
    Engine& engine = *rank.engine;
    const bool fails = engine.comm()->rank() == 0;
    Gate gate;
    rank.SetStream()->Call("the host's work", [&gate, fails] {
      const Status passed = gate.Passing()();
      return fails ? Internal("broken") : passed;
    });
    ASSERT_OK(engine.Step(StepOptions(), nullptr));
    gate.Open();
    const auto code = fails ? StatusCode::kInternal : StatusCode::kPoisoned;
    ExpectError(engine.Step(StepOptions(), nullptr), code, {"broken"});
    ExpectError(engine.LastReport().status(), StatusCode::kFailedPrecondition,
                {});
    ExpectError(engine.ZeroGrad(), code, {"broken"});
  });
}

// Rank 0 drops the meeting for which rank 1 waits, and calls nothing until rank
// 1 has its error.
TEST_P(EarlyStepTest, ALaterErrorReachesTheOtherRankByItself) {
  Gate told;
  OnRanks([&told](const Rank& rank) {
    Engine& engine = *rank.engine;
    StepOptions clipped;
    clipped.max_grad_norm = 1;
    if (engine.comm()->rank() == 0) {
      Gate gate;
      rank.SetStream()->Call("the host's work", [&gate] {
        SHARD_RETURN_IF_ERROR(gate.Pass());
        return Internal("broken");
      });
      ASSERT_OK(engine.Step(clipped, nullptr));
      gate.Open();
      EXPECT_OK(told.Pass());
      ExpectError(engine.LastReport().status(), StatusCode::kInternal,
                  {"broken"});
    } else {
      StepReport report;
      ExpectError(engine.Step(clipped, &report), StatusCode::kPoisoned,
                  {"broken"});
      told.Open();
    }
  });
}

TEST_P(EarlyStepTest, ALaterErrorIsThatOfACallThatSetsCounters) {
  OnRanks([](const Rank& rank) {
    Engine& engine = *rank.engine;
    Gate gate;
    rank.SetStream()->Call("the host's work", [&gate] {
      const Status passed = gate.Passing()();
      return passed.ok() ? Internal("broken") : passed;
    });
    ASSERT_OK(engine.Step(StepOptions(), nullptr));
    gate.Open();
    const Status set = engine.SetStep(10);
    EXPECT_FALSE(set.ok());
    EXPECT_NE(set.message().find("broken"), std::string::npos)
        << set.ToString();
  });
}

// All work of rank 0 is done in its calls. It may read the gradients of rank 1
// only once these are written.
TEST(EarlyMeetingTest, OneRankWithStreamsIsWaitedForByAll) {
  const UnitTraining training = RunOf(1, "").training;
  const auto plan = PlanOf(training);
  ASSERT_OK(plan);
  RunThreadRanks(2, [&](const auto& comm) {
    const bool late = comm->rank() == 1;
    Rank rank;
    if (late) {
      rank = MakeRank(training, *plan, comm);
    } else {
      EngineOptions options = training.engine;
      options.device = "cpu";
      auto engine = CreateEngine(*plan, comm, options);
      ASSERT_OK(engine);
      rank.engine = *std::move(engine);
    }
    Engine& engine = *rank.engine;
    UnitTrainer(training, &engine).Fill();
    const auto grad = engine.Grad(0);
    ASSERT_OK(grad);
    auto* const first = static_cast<float*>(grad->data);
    Gate gate;
    StepOptions measured;
    measured.max_grad_norm = 100;
    measured.grad_divisor = 1;
    StepReport report;
    if (late) {
      rank.SetStream()->Call("the host's work", [&gate, first] {
        SHARD_RETURN_IF_ERROR(gate.Pass());
        *first = 3;
        return Status();
      });
      ASSERT_OK(engine.Step(measured, nullptr));
      gate.Open();
      const auto taken = engine.LastReport();
      ASSERT_OK(taken);
      report = *taken;
    } else {
      ASSERT_OK(engine.Step(measured, &report));
    }
    EXPECT_EQ(report.grad_norm, 3);
  });
}

// The norm of the first step is gathered by the communicator, which the ranks
// then need for the error of all of them.
TEST(EarlyMeetingTest, AWrongCallOfAllRanksComesAfterTheMeetingsOfTheStep) {
  constexpr const char* kApart = "direct=0";
  const HostRun run = RunOf(3, kApart);
  const auto plan = PlanOf(run.training);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  std::mutex mutex;
  std::condition_variable changed;
  bool gathers = false;
  bool agrees = false;
  CommOptions options;
  options.timeout = 30;
  options.phase_hook = [&](std::string_view what) {
    const std::lock_guard<std::mutex> lock(mutex);
    gathers |= what == "step: global norm";
    agrees |= what == "agree on operation: errors";
    changed.notify_all();
  };
  RunThreadRanks(
      2,
      [&](const auto& comm) {
        const Rank rank = MakeRank(run.training, *plan, comm);
        Engine& engine = *rank.engine;
        UnitTrainer(run.training, &engine).Fill();
        AsyncHostMemory memory;
        AsyncHost host(&engine, &memory);
        host.UseStream(rank.SetStream());
        host.Forward();
        host.Backward(1);
        Gate gate;
        std::thread opener;
        if (comm->rank() == 0) {
          engine.host_stream().Call("the host's work", gate.Passing());
          opener = std::thread([&] {
            EXPECT_TRUE(gate.AwaitArrival());
            std::unique_lock<std::mutex> lock(mutex);
            EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30),
                                         [&] { return gathers; }));
            // That nobody agrees needs some time to show.
            EXPECT_FALSE(changed.wait_for(lock, std::chrono::milliseconds(50),
                                          [&] { return agrees; }));
            lock.unlock();
            gate.Open();
          });
        }
        StepOptions clipped;
        clipped.max_grad_norm = 1;
        EXPECT_OK(engine.Step(clipped, nullptr));
        ExpectInvalid(engine.UnitAcquire(99, Pass::kForward, 0), {"unit 99"});
        if (opener.joinable()) opener.join();
        EXPECT_OK(engine.Synchronize(0));
        EXPECT_EQ(engine.step(), 1);
      },
      options, kApart);
}

// ---- Waiting ---------------------------------------------------------------

TEST(SynchronizeTest, AWaitThatEndsTooEarlyIsNoError) {
  OnRanks([](const Rank& rank) {
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
  OnRanks([](const Rank& rank) {
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
