// SPDX-License-Identifier: Apache-2.0
//
// What a graph of an engine's steps cannot do, on the fake of the driver, is an
// error after which training goes on.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/driver.h"
#include "core/device/cuda/driver_api.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_graph_errors_test {
namespace {

using cuda_graphs::Host;
using cuda_graphs::MakePlan;
using cuda_training::Clipped;
using cuda_training::Fill;
using cuda_training::HostsStream;
using cuda_training::OpenLocal;
using testing::FakeCudaTest;
using testing::fake_cuda::Count;
using testing::fake_cuda::Counters;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::SetCaptured;

class GraphErrorsTest : public FakeCudaTest {};

TEST_F(GraphErrorsTest, OtherCallsAreNoPartOfACapture) {
  Host host("adamw");
  Engine* const engine = host.engine();
  host.CopyGrads(1, true);
  SetCaptured(host.stream().get());
  ASSERT_OK(engine->CaptureBegin());
  const std::vector<std::pair<std::string, std::function<Status()>>> calls = {
      {"capture_begin", [&] { return engine->CaptureBegin(); }},
      {"begin_step", [&] { return engine->BeginStep(StepOptions()); }},
      {"before_replay", [&] { return engine->BeforeReplay(StepOptions()); }},
      {"unit_acquire",
       [&] { return engine->UnitAcquire(0, Pass::kForward, 0); }},
      {"set_stream", [&] { return engine->SetStream(nullptr); }},
      {"summon", [&] { return engine->Summon(0, -1, 0); }},
      {"save", [&] { return engine->Save("nowhere", SaveOptions()).status(); }},
      {"a change of the plan",
       [&] {
         const ParamId params[] = {0};
         return engine->SetTrainable(params, false, 0);
       }},
  };
  for (const auto& [name, call] : calls) {
    ExpectError(call(), StatusCode::kFailedPrecondition, {name, "capture_end"});
  }
  StepReport report;
  ExpectError(engine->Step(Clipped(), &report), StatusCode::kFailedPrecondition,
              {"with a report"});
  ASSERT_OK(engine->CaptureEnd());
  SetCaptured(nullptr);
  EXPECT_OK(engine->Step(Clipped(), &report));
  EXPECT_EQ(report.step, 1);
}

TEST_F(GraphErrorsTest, WithoutACaptureOfTheHosts) {
  Host host("adamw");
  Engine* const engine = host.engine();
  ExpectError(engine->CaptureBegin(), StatusCode::kFailedPrecondition,
              {"capture_begin", "is not captured", "cudaStreamBeginCapture"});
  ExpectError(engine->CaptureEnd(), StatusCode::kFailedPrecondition,
              {"without capture_begin"});
  ExpectError(engine->BeforeReplay(StepOptions()),
              StatusCode::kFailedPrecondition, {"no step was captured"});
  host.CopyGrads(1, true);
  EXPECT_OK(engine->Step(Clipped(), nullptr));
  EXPECT_EQ(engine->step(), 1);
}

TEST_F(GraphErrorsTest, TheHostEndsItsCaptureFirst) {
  Host host("adamw");
  Engine* const engine = host.engine();
  ASSERT_OK(host.Capture(Clipped()));
  SetCaptured(host.stream().get());
  ASSERT_OK(engine->CaptureBegin());
  SetCaptured(nullptr);
  ExpectError(engine->ZeroGrad(), StatusCode::kFailedPrecondition,
              {"zero_grad", "capture_end"});
  ExpectError(engine->Step(Clipped(), nullptr), StatusCode::kFailedPrecondition,
              {"step", "capture_end"});
  ExpectError(engine->CaptureEnd(), StatusCode::kFailedPrecondition,
              {"capture_end", "has ended"});
  ExpectError(engine->BeforeReplay(Clipped()), StatusCode::kFailedPrecondition,
              {"before capture_end", "capture the step again"});
  host.CopyGrads(1, true);
  EXPECT_OK(engine->Step(Clipped(), nullptr));
  EXPECT_EQ(engine->step(), 1);
}

// Each makes another step than the captured one.
TEST_F(GraphErrorsTest, AnotherKindOfStepIsNotReplayed) {
  const std::vector<std::pair<std::string, std::function<Status(Engine*)>>>
      changes = {
          {"a norm with a p of its own",
           [](Engine* engine) {
             StepOptions options = Clipped();
             options.grad_norm_type = 3;
             return engine->BeforeReplay(options);
           }},
          {"ns_steps",
           [](Engine* engine) {
             SHARD_RETURN_IF_ERROR(engine->SetHyper(1, "ns_steps", 3));
             return engine->BeforeReplay(Clipped());
           }},
          {"the plan has changed",
           [](Engine* engine) {
             const ParamId params[] = {0};
             SHARD_RETURN_IF_ERROR(engine->SetTrainable(params, false, 0));
             SHARD_RETURN_IF_ERROR(engine->SetTrainable(params, true, 0));
             return engine->BeforeReplay(Clipped());
           }},
          {"bind_param",
           [](Engine* engine) {
             SHARD_RETURN_IF_ERROR(engine->Bind(0, {}));
             return engine->BeforeReplay(Clipped());
           }},
      };
  for (const auto& [text, change] : changes) {
    SCOPED_TRACE(text);
    Host host("muon");
    ASSERT_OK(host.Capture(Clipped()));
    host.CopyGrads(1, true);
    ASSERT_OK(host.Replay(Clipped()));
    ExpectError(change(host.engine()), StatusCode::kFailedPrecondition,
                {text, "capture"});
    // Training goes on without the graph, and with a new one.
    host.CopyGrads(2, true);
    ASSERT_OK(host.engine()->Step(Clipped(), nullptr));
    ASSERT_OK(host.Capture(Clipped()));
    host.CopyGrads(3, true);
    ASSERT_OK(host.Replay(Clipped()));
    EXPECT_EQ(host.engine()->step(), 3);
  }
}

TEST_F(GraphErrorsTest, ACaptureDoesNotWaitForAReplay) {
  Host host("adamw");
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(1, true);
  ASSERT_OK(host.Replay(Clipped()));
  ExpectError(host.Capture(Clipped()), StatusCode::kFailedPrecondition,
              {"capture_begin", "synchronize"});
  ASSERT_OK(host.engine()->Synchronize(0));
  EXPECT_OK(host.Capture(Clipped()));
}

// A launch may fail, and the host steps without the graph.
TEST_F(GraphErrorsTest, AReplayThatIsNotLaunchedDoesNotCount) {
  std::vector<float> expected;
  for (const bool forgets : {false, true}) {
    Host host("adamw");
    if (forgets) ASSERT_OK(host.Capture(Clipped()));
    for (int step = 1; step <= 3; ++step) {
      host.CopyGrads(step, true);
      if (forgets) {
        ASSERT_OK(host.engine()->BeforeReplay(Clipped()));
        ASSERT_OK(host.engine()->BeforeReplay(Clipped()));
      }
      ASSERT_OK(host.engine()->Step(Clipped(), nullptr));
      EXPECT_EQ(host.engine()->step(), step);
    }
    if (forgets) {
      EXPECT_EQ(host.Params(), expected);
    } else {
      expected = host.Params();
    }
  }
}

TEST_F(GraphErrorsTest, AReplayThatIsNotLaunchedEndsWithItsPlan) {
  Host host("adamw");
  Engine* const engine = host.engine();
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(1, true);
  ASSERT_OK(engine->BeforeReplay(Clipped()));
  const ParamId params[] = {0};
  ASSERT_OK(engine->SetTrainable(params, false, 0));
  ASSERT_OK(engine->AwaitStep());
  EXPECT_EQ(engine->step(), 0);
  ExpectError(engine->LastReport(), StatusCode::kFailedPrecondition,
              {"before the first step"});
}

// The host captures something of its own while a replay is on its way.
TEST_F(GraphErrorsTest, CallsDuringACaptureAfterAReplayEndNothing) {
  Host host("adamw");
  Engine* const engine = host.engine();
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(1, true);
  ASSERT_OK(host.Replay(Clipped()));
  SetCaptured(host.stream().get());
  for (const Status& status :
       {engine->Step(Clipped(), nullptr), engine->BeginStep(StepOptions()),
        engine->BeforeReplay(Clipped()), engine->ZeroGrad()}) {
    ExpectError(status, StatusCode::kFailedPrecondition, {"captures"});
  }
  SetCaptured(nullptr);
  host.CopyGrads(2, true);
  ASSERT_OK(engine->Step(Clipped(), nullptr));
  EXPECT_EQ(engine->step(), 2);
}

// By a call of the engine's, or by another just before it, as of another thread
// that allocates memory.
TEST_F(GraphErrorsTest, ACaptureThatBecomesInvalidEndsNothing) {
  Host host("adamw");
  Engine* const engine = host.engine();
  int steps = 0;
  for (const std::string& call :
       {std::string("cuLaunchKernel"), std::string("cuMemcpyAsync")}) {
    for (const cuda::CuResult result :
         {cuda::CuResult::kStreamCaptureUnsupported,
          cuda::CuResult::kStreamCaptureInvalidated}) {
      SetCaptured(host.stream().get());
      ASSERT_OK(engine->CaptureBegin());
      FailCall(call, 2, result);
      const bool is_own = result == cuda::CuResult::kStreamCaptureUnsupported;
      ExpectError(engine->Step(Clipped(), nullptr),
                  StatusCode::kFailedPrecondition,
                  {call, is_own ? "_UNSUPPORTED" : "_INVALIDATED",
                   is_own ? "captures a CUDA graph" : "has made it invalid"});
      ExpectError(engine->ZeroGrad(), StatusCode::kFailedPrecondition,
                  {"zero_grad", "became invalid"});
      ExpectError(engine->CaptureEnd(), StatusCode::kFailedPrecondition,
                  {"capture_end", "became invalid"});
      SetCaptured(nullptr);
      ExpectError(engine->BeforeReplay(Clipped()),
                  StatusCode::kFailedPrecondition, {"capture the step again"});
      ASSERT_OK(host.Capture(Clipped()));
      host.CopyGrads(1, true);
      ASSERT_OK(host.Replay(Clipped()));
      ASSERT_OK(engine->AwaitStep());
      EXPECT_EQ(engine->step(), ++steps);
    }
  }
}

TEST_F(GraphErrorsTest, AStepIsNotEnqueuedInACaptureThatIsInvalid) {
  Host host("adamw");
  Engine* const engine = host.engine();
  SetCaptured(host.stream().get());
  ASSERT_OK(engine->CaptureBegin());
  std::thread other([] {
    cuda::CuPointer memory = 0;
    EXPECT_EQ((*cuda::Driver::Load())->api().MemAlloc(&memory, 1),
              cuda::CuResult::kStreamCaptureUnsupported);
  });
  other.join();
  const uint64_t launches = Count().Calls("cuLaunchKernel");
  ExpectError(engine->Step(Clipped(), nullptr), StatusCode::kFailedPrecondition,
              {"step", "became invalid"});
  EXPECT_EQ(Count().Calls("cuLaunchKernel"), launches);
  ExpectError(engine->CaptureEnd(), StatusCode::kFailedPrecondition,
              {"capture_end", "became invalid"});
  ExpectError(engine->CaptureBegin(), StatusCode::kFailedPrecondition,
              {"capture_begin", "became invalid"});
  SetCaptured(nullptr);
  host.CopyGrads(1, true);
  ASSERT_OK(engine->Step(Clipped(), nullptr));
  EXPECT_EQ(engine->step(), 1);
}

TEST_F(GraphErrorsTest, ACallThatTheCaptureForbidsIsToldAtItsEnd) {
  Host host("adamw");
  Engine* const engine = host.engine();
  SetCaptured(host.stream().get());
  ASSERT_OK(engine->CaptureBegin());
  cuda::CuPointer memory = 0;
  EXPECT_EQ((*cuda::Driver::Load())->api().MemAlloc(&memory, 1),
            cuda::CuResult::kStreamCaptureUnsupported);
  ExpectError(engine->CaptureEnd(), StatusCode::kFailedPrecondition,
              {"capture_end", "became invalid"});
  SetCaptured(nullptr);
  ExpectError(engine->BeforeReplay(Clipped()), StatusCode::kFailedPrecondition,
              {"capture the step again"});
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(1, true);
  ASSERT_OK(host.Replay(Clipped()));
  ASSERT_OK(engine->AwaitStep());
}

// Each call of the driver's fails once during a capture, and during the wait
// for a replay: the engine trains on, or says for good which call it was.
TEST_F(GraphErrorsTest, AnyCallMayFail) {
  for (const bool replays : {false, true}) {
    uint64_t calls = 1;
    for (uint64_t call = 0; call <= calls; ++call) {
      SCOPED_TRACE(StrCat(replays ? "replay, call " : "capture, call ", call));
      Host host("adamw");
      Engine* const engine = host.engine();
      const auto arm = [&] {
        if (call > 0) FailCall("", call, cuda::CuResult::kUnknown);
        return Count();
      };
      const auto disarm = [&](const Counters& before) {
        testing::fake_cuda::ClearFailures();
        if (call == 0) calls = CountSince(before).Calls();
      };
      const Status captured = host.CaptureWith([&]() -> Status {
        const Counters before = replays ? Count() : arm();
        Status status = engine->CaptureBegin();
        if (status.ok()) {
          status = engine->Step(Clipped(), nullptr);
          const Status closed = engine->CaptureEnd();
          if (status.ok()) status = closed;
        }
        if (!replays) disarm(before);
        return status;
      });
      int64_t steps = 0;
      if (captured.ok()) {
        host.CopyGrads(1, true);
        ASSERT_OK(host.Replay(Clipped()));
        const Counters before = replays ? arm() : Count();
        const Status replayed = engine->AwaitStep();
        if (replays) disarm(before);
        if (replayed.ok()) steps = 1;
      }
      host.CopyGrads(2, true);
      const Status status = engine->Step(Clipped(), nullptr);
      if (status.ok()) {
        EXPECT_EQ(engine->step(), steps + 1);
      } else {
        EXPECT_NE(status.message().find("CUDA_ERROR_UNKNOWN"),
                  std::string::npos)
            << status.ToString();
      }
    }
    EXPECT_GT(calls, replays ? 3u : 20u);
  }
}

TEST_F(GraphErrorsTest, OneStepIsCaptured) {
  Host host("adamw");
  ASSERT_OK(host.CaptureWith([&]() -> Status {
    SHARD_RETURN_IF_ERROR(host.engine()->CaptureBegin());
    SHARD_RETURN_IF_ERROR(host.engine()->Step(Clipped(), nullptr));
    ExpectError(host.engine()->Step(Clipped(), nullptr),
                StatusCode::kFailedPrecondition, {"a second step"});
    // Nor in another capture_begin, until the host begins another capture.
    SHARD_RETURN_IF_ERROR(host.engine()->CaptureEnd());
    SHARD_RETURN_IF_ERROR(host.engine()->CaptureBegin());
    ExpectError(host.engine()->Step(Clipped(), nullptr),
                StatusCode::kFailedPrecondition, {"a second step"});
    return host.engine()->CaptureEnd();
  }));
  host.CopyGrads(1, true);
  EXPECT_OK(host.Replay(Clipped()));
  EXPECT_OK(host.engine()->Synchronize(0));
  ASSERT_OK(host.Capture(Clipped()));
}

// Makes an engine that has captured a step. Without a loss scale a step needs
// no norm.
std::unique_ptr<Engine> MakeUnscaled(const HostsStream& stream,
                                     const StepOptions& captured) {
  EngineOptions options;
  options.opened_device = *cuda::OpenDevice("0");
  auto made = Engine::Create(MakePlan("adamw"), OpenLocal(), options);
  EXPECT_OK(made);
  auto engine = *std::move(made);
  EXPECT_OK(engine->SetStream(stream.get()));
  EXPECT_OK(Fill(engine.get()));
  SetCaptured(stream.get());
  EXPECT_OK(engine->CaptureBegin());
  EXPECT_OK(engine->Step(captured, nullptr));
  EXPECT_OK(engine->CaptureEnd());
  SetCaptured(nullptr);
  return engine;
}

TEST_F(GraphErrorsTest, AStepThatIsBegunIsNotReplayed) {
  const HostsStream stream;
  const auto engine = MakeUnscaled(stream, StepOptions());
  ASSERT_OK(engine->BeginStep(StepOptions()));
  ExpectError(engine->BeforeReplay(StepOptions()),
              StatusCode::kFailedPrecondition, {"before_replay", "begin_step"});
  ASSERT_OK(engine->Step(StepOptions(), nullptr));
  EXPECT_EQ(engine->step(), 1);
}

TEST_F(GraphErrorsTest, AStepWithANormIsNotReplayedWithoutOneNorTheReverse) {
  const std::string norm = "a norm of the gradients";
  const std::string none = "no norm of the gradients";
  for (const bool has_norm : {false, true}) {
    const StepOptions captured = has_norm ? Clipped() : StepOptions();
    const StepOptions other = has_norm ? StepOptions() : Clipped();
    const HostsStream stream;
    const auto engine = MakeUnscaled(stream, captured);
    ExpectError(engine->BeforeReplay(other), StatusCode::kFailedPrecondition,
                {StrCat("it has ", has_norm ? norm : none, ", and this step ",
                        has_norm ? none : norm),
                 "capture it again, or step without the graph"});
    EXPECT_OK(engine->BeforeReplay(captured));
    ASSERT_OK(engine->Step(other, nullptr));
    EXPECT_EQ(engine->step(), 1);
  }
}

// A graph has one row of constants where all parameters did as many steps.
TEST_F(GraphErrorsTest, ParametersOfDifferentStepsAreNotReplayedAsOfOne) {
  const testing::TempFolder folder;
  {
    Host host("adamw");
    Engine* const engine = host.engine();
    const ParamId params[] = {0};
    ASSERT_OK(engine->SetTrainable(params, false, 0));
    ASSERT_OK(engine->Step(Clipped(), nullptr));
    ASSERT_OK(engine->SetTrainable(params, true, 0));
    ASSERT_OK(engine->Save(folder.path(), SaveOptions()));
  }
  Host host("adamw");
  ASSERT_OK(host.Capture(Clipped()));
  LoadReport report;
  ASSERT_OK(host.engine()->Load(folder.path(), LoadOptions(), &report));
  ExpectError(host.engine()->BeforeReplay(Clipped()),
              StatusCode::kFailedPrecondition,
              {"its parameters did one step, and do steps of different "
               "numbers now"});
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(2, true);
  ASSERT_OK(host.Replay(Clipped()));
  EXPECT_EQ(host.engine()->step(), 2);
}

// In a graph nobody marks gradients.
TEST_F(GraphErrorsTest, AnEngineWhoseGradientsAreMarkedHasNoGraphs) {
  Host host("adamw");
  host.CopyGrads(1, true);
  ASSERT_OK(host.engine()->MarkUnitGradsReady(0));
  ASSERT_OK(host.engine()->Step(Clipped(), nullptr));
  ExpectError(host.Capture(Clipped()), StatusCode::kFailedPrecondition,
              {"capture_begin", "marked"});
}

TEST_F(GraphErrorsTest, ACommunicatorThatIsNotDirectHasNoGraphs) {
  CommOptions options;
  options.rank = 0;
  options.world_size = 1;
  const auto comm = OpenCommunicator("threads:1?name=graphs&direct=0", options);
  ASSERT_OK(comm);
  const auto engine =
      cuda_training::MakeEngine(cuda_training::MakePlan({}), *comm);
  ASSERT_OK(engine);
  ASSERT_OK(Fill(engine->get()));
  ExpectError((*engine)->CaptureBegin(), StatusCode::kUnimplemented,
              {"direct=0"});
}

TEST_F(GraphErrorsTest, SeveralRanksHaveNoGraphs) {
  RunThreadRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = cuda_training::MakeEngine(
        cuda_training::MakePlan({.world_size = 2}), comm);
    ASSERT_OK(engine);
    ASSERT_OK(Fill(engine->get()));
    ExpectError((*engine)->CaptureBegin(), StatusCode::kUnimplemented,
                {"2 ranks"});
  });
}

TEST_F(GraphErrorsTest, AProcessorHasNoGraphs) {
  const auto engine =
      Engine::Create(cuda_training::MakePlan({}), OpenLocal(), EngineOptions());
  ASSERT_OK(engine);
  ASSERT_OK(Fill(engine->get()));
  ExpectError((*engine)->CaptureBegin(), StatusCode::kUnimplemented,
              {"capture_begin", "no graphs"});
}

}  // namespace
}  // namespace shard::cuda_graph_errors_test
