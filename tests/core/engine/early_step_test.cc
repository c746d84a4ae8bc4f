// SPDX-License-Identifier: Apache-2.0
//
// Steps that return before they are done: without a report, on a stream that
// the host has set.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <latch>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/gate.h"
#include "tests/core/engine/async_host.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/stream_ranks.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"

namespace shard::early_step_test {
namespace {

class EarlyStepTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void OnRanks(const StreamScript& script) {
    OnStreamRanks(script, GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Links, EarlyStepTest,
                         ::testing::Values("", "direct=0"),
                         [](const auto& info) {
                           return info.index == 0 ? "direct" : "apart";
                         });

TEST_P(EarlyStepTest, ReturnsBeforeItsGradientsAreThere) {
  OnRanks([](StreamRank& rank) {
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
  OnRanks([](StreamRank& rank) {
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
      EXPECT_EQ(report.comm.seconds > 0, reports && !engine.SharesTensors());
    }
    EXPECT_EQ(engine.step(), 2);
  });
}

// The transfers of the step wait for longer than a collective may take.
class EarlyTimeoutTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Stages, EarlyTimeoutTest, ::testing::Values(1, 2));

TEST_P(EarlyTimeoutTest, AStepMayTakeLongerThanTheEnginesTimeout) {
  HostRun run = RunOf(GetParam(), "direct=0");
  // Long enough for a machine that is busy with other things.
  const double timeout = ShortTimeout(0.5);
  run.training.engine.timeout = timeout;
  const auto plan = PlanOf(run.training);
  ASSERT_OK(plan);
  ASSERT_TRUE(ShardsAsItsStage(**plan));
  RunThreadRanks(
      2,
      [&](const auto& comm) {
        const StreamRank rank = MakeStreamRank(run.training, *plan, comm);
        Engine& engine = *rank.engine;
        UnitTrainer(run.training, &engine).Fill();
        AsyncHostMemory memory;
        AsyncHost host(&engine, &memory);
        host.UseStream(rank.SetStream());
        if (GetParam() == 2) host.Backward(1);
        Gate gate;
        engine.host_stream().Call("the host's work", gate.Passing());
        StepOptions patient;
        patient.timeout = 60;
        ASSERT_OK(engine.Step(patient, nullptr));
        const Deadline longer = Deadline::After(2 * timeout);
        while (!longer.Expired()) std::this_thread::yield();
        gate.Open();
        ASSERT_OK(engine.Synchronize(60));
        EXPECT_EQ(engine.step(), 1);
      },
      30, "direct=0");
}

TEST_P(EarlyStepTest, CountsSkippedStepsExactly) {
  OnRanks([](StreamRank& rank) {
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

// Makes a step, and opens the gate once both ranks have: an error of one rank
// would end the call of another.
void StepAndOpen(Engine* engine, std::latch* stepped, Gate* gate) {
  const Status status = engine->Step(StepOptions(), nullptr);
  stepped->count_down();
  EXPECT_TRUE(testing::ComesTrue([stepped] { return stepped->try_wait(); }));
  gate->Open();
  EXPECT_OK(status);
}

TEST_P(EarlyStepTest, ALaterErrorIsThatOfTheNextCall) {
  std::latch stepped(2);
  OnRanks([&stepped](StreamRank& rank) {
    Engine& engine = *rank.engine;
    const bool fails = engine.comm()->rank() == 0;
    Gate gate;
    rank.SetStream()->Call("the host's work", [&gate, fails] {
      const Status passed = gate.Passing()();
      return fails ? Internal("broken") : passed;
    });
    StepAndOpen(&engine, &stepped, &gate);
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
  OnRanks([&told](StreamRank& rank) {
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
  std::latch stepped(2);
  OnRanks([&stepped](StreamRank& rank) {
    Engine& engine = *rank.engine;
    Gate gate;
    rank.SetStream()->Call("the host's work", [&gate] {
      const Status passed = gate.Passing()();
      return passed.ok() ? Internal("broken") : passed;
    });
    StepAndOpen(&engine, &stepped, &gate);
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
    StreamRank rank;
    if (late) {
      rank = MakeStreamRank(training, *plan, comm);
    } else {
      EngineOptions options = training.engine;
      const auto device = OpenDevice("cpu");
      ASSERT_OK(device);
      options.opened_device = *device;
      auto engine = CreateEngine(*plan, comm, options);
      ASSERT_OK(engine);
      rank.engine = *std::move(engine);
    }
    Engine& engine = *rank.engine;
    UnitTrainer(training, &engine).Fill();
    const auto grad = engine.Grad(0);
    ASSERT_OK(grad);
    AsyncHostMemory memory;
    AsyncHost host(&engine, &memory);
    Gate gate;
    StepOptions measured;
    measured.max_grad_norm = 100;
    measured.grad_divisor = 1;
    StepReport report;
    if (late) {
      Stream* const stream = rank.SetStream();
      stream->Call("be late", gate.Passing());
      host.UseStream(stream);
      host.Fill(*grad, 3);
      ASSERT_OK(engine.Step(measured, nullptr));
      gate.Open();
      const auto taken = engine.LastReport();
      ASSERT_OK(taken);
      report = *taken;
    } else {
      ASSERT_OK(engine.Step(measured, &report));
    }
    EXPECT_NEAR(report.grad_norm,
                3 * std::sqrt(static_cast<double>(grad->numel)), 1e-9);
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
        const StreamRank rank = MakeStreamRank(run.training, *plan, comm);
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

// ---- The end of the engine -------------------------------------------------

TEST_P(EarlyStepTest, AnEngineThatIsFreedWaitsForItsStep) {
  OnRanks([](StreamRank& rank) {
    StepOptions clipped;
    clipped.max_grad_norm = 1;
    Gate gate;
    rank.SetStream()->Call("the host's work", gate.Passing());
    ASSERT_OK(rank.engine->Step(clipped, nullptr));
    ASSERT_TRUE(gate.AwaitArrival());
    std::atomic<bool> opened = false;
    std::thread opener([&] {
      opened = true;
      gate.Open();
    });
    rank.engine.reset();
    EXPECT_TRUE(opened);
    opener.join();
  });
}

// The host's work outlasts the engine of rank 0, whose meetings rank 1 would
// wait for.
TEST_P(EarlyStepTest, AnEngineThatCannotWaitEndsTheGroup) {
  Gate gate;
  const HostRun run = RunOf(1, GetParam());
  const auto plan = PlanOf(run.training);
  ASSERT_OK(plan);
  RunThreadRanks(
      2,
      [&](const auto& comm) {
        UnitTraining training = run.training;
        const bool leaves = comm->rank() == 0;
        if (leaves) training.engine.timeout = ShortTimeout(0.2);
        StreamRank rank = MakeStreamRank(training, *plan, comm);
        UnitTrainer(training, rank.engine.get()).Fill();
        StepOptions clipped;
        clipped.max_grad_norm = 1;
        clipped.timeout = 60;
        if (leaves) {
          rank.SetStream()->Call("the host's work", gate.Passing());
          ASSERT_OK(rank.engine->Step(clipped, nullptr));
          rank.engine.reset();
        } else {
          StepReport report;
          ExpectError(rank.engine->Step(clipped, &report),
                      StatusCode::kPoisoned, {"destroyed"});
          gate.Open();
        }
      },
      30, GetParam());
}

TEST_P(EarlyStepTest, TheTimeOfAStepLimitsTheWaitForTheOneBefore) {
  OnRanks([](StreamRank& rank) {
    Engine& engine = *rank.engine;
    Gate gate;
    rank.SetStream()->Call("the host's work", gate.Passing());
    ASSERT_OK(engine.Step(StepOptions(), nullptr));
    StepOptions hasty;
    hasty.timeout = 0.05;
    ExpectError(engine.Step(hasty, nullptr), StatusCode::kDeadlineExceeded, {});
    gate.Open();
    // The error is final.
    EXPECT_FALSE(engine.Step(StepOptions(), nullptr).ok());
  });
}

}  // namespace
}  // namespace shard::early_step_test
