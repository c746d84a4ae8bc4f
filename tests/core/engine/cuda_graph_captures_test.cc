// SPDX-License-Identifier: Apache-2.0
//
// A capture that cannot be, or that fails, on the fake of the driver, is an
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
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_graph_captures_test {
namespace {

using cuda_graphs::Host;
using cuda_graphs::MakePlan;
using cuda_graphs::MakeUnscaled;
using cuda_graphs::OneFailure;
using cuda_training::Clipped;
using cuda_training::Fill;
using cuda_training::HostsStream;
using cuda_training::OpenLocal;
using testing::FakeCudaTest;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::SetCaptured;

class GraphCapturesTest : public FakeCudaTest {};

TEST_F(GraphCapturesTest, OtherCallsAreNoPartOfACapture) {
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
      {"synchronize", [&] { return engine->Synchronize(0); }},
      {"last_report", [&] { return engine->LastReport().status(); }},
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

TEST_F(GraphCapturesTest, WithoutACaptureOfTheHosts) {
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

TEST_F(GraphCapturesTest, TheHostEndsItsCaptureFirst) {
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
  const Status ended = engine->CaptureEnd();
  ExpectError(ended, StatusCode::kFailedPrecondition,
              {"has ended before", "capture_end before cudaStreamEndCapture"});
  // That is the remedy of a capture that has not begun.
  EXPECT_EQ(ended.message().find("set_stream"), std::string::npos)
      << ended.ToString();
  // The graph before has nothing of this capture.
  host.CopyGrads(1, true);
  EXPECT_OK(host.Replay(Clipped()));
  host.CopyGrads(2, true);
  EXPECT_OK(engine->Step(Clipped(), nullptr));
  EXPECT_EQ(engine->step(), 2);
}

// Then the step before it is captured no more, either.
TEST_F(GraphCapturesTest, TheHostEndsItsCaptureAfterTheStep) {
  Host host("adamw");
  Engine* const engine = host.engine();
  ASSERT_OK(host.Capture(Clipped()));
  SetCaptured(host.stream().get());
  ASSERT_OK(engine->CaptureBegin());
  ASSERT_OK(engine->Step(Clipped(), nullptr));
  SetCaptured(nullptr);
  ExpectError(engine->CaptureEnd(), StatusCode::kFailedPrecondition,
              {"capture_end", "has ended"});
  ExpectError(engine->BeforeReplay(Clipped()), StatusCode::kFailedPrecondition,
              {"capture the step again"});
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(1, true);
  ASSERT_OK(host.Replay(Clipped()));
  EXPECT_EQ(engine->step(), 1);
}

// And begins another, which nobody has given to the engine. Nothing goes into
// it, until capture_begin does.
TEST_F(GraphCapturesTest, TheHostEndsItsCaptureAndBeginsAnother) {
  for (const bool steps_before : {true, false}) {
    SCOPED_TRACE(steps_before);
    Host host("adamw");
    Host plain("adamw");
    Engine* const engine = host.engine();
    ASSERT_OK(host.CaptureInVain([&]() -> Status {
      SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
      return steps_before ? engine->Step(Clipped(), nullptr) : Status();
    }));
    ASSERT_OK(host.CaptureWith([&]() -> Status {
      const auto before = Count();
      ExpectError(engine->ZeroGrad(), StatusCode::kFailedPrecondition,
                  {"zero_grad", "another has begun", "call capture_end"});
      if (!steps_before) {
        ExpectError(engine->Step(Clipped(), nullptr),
                    StatusCode::kFailedPrecondition,
                    {"step", "another has begun", "call capture_end"});
      }
      ExpectError(engine->CaptureEnd(), StatusCode::kFailedPrecondition,
                  {"capture_end", "has ended before"});
      const auto made = CountSince(before);
      EXPECT_EQ(made.Calls("cuLaunchKernel"), 0u);
      EXPECT_EQ(made.Calls("cuMemcpyAsync"), 0u);
      ExpectError(engine->BeforeReplay(Clipped()),
                  StatusCode::kFailedPrecondition, {"before_replay"});
      SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
      SHARD_RETURN_IF_ERROR(engine->Step(Clipped(), nullptr));
      SHARD_RETURN_IF_ERROR(engine->ZeroGrad());
      return engine->CaptureEnd();
    }));
    for (int step = 1; step <= 3; ++step) {
      host.CopyGrads(step, true);
      ASSERT_OK(step < 3 ? host.Replay(Clipped())
                         : engine->Step(Clipped(), nullptr));
      plain.CopyGrads(step, true);
      ASSERT_OK(plain.engine()->Step(Clipped(), nullptr));
    }
    EXPECT_TRUE(host.Params() == plain.Params());
    EXPECT_EQ(engine->step(), 3);
  }
}

TEST_F(GraphCapturesTest, ACaptureDoesNotWaitForAReplay) {
  Host host("adamw");
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(1, true);
  ASSERT_OK(host.Replay(Clipped()));
  ExpectError(host.Capture(Clipped()), StatusCode::kFailedPrecondition,
              {"capture_begin", "synchronize"});
  ASSERT_OK(host.engine()->Synchronize(0));
  EXPECT_OK(host.Capture(Clipped()));
}

// By a call of the engine's, or by another just before it, as of another thread
// that allocates memory. The first launch of all copies gradients that are
// bound.
TEST_F(GraphCapturesTest, ACaptureThatBecomesInvalidEndsNothing) {
  struct Call {
    bool is_bound;
    std::string name;
    uint64_t number;
  };
  for (const Call& call :
       {Call{false, "cuLaunchKernel", 2}, Call{false, "cuMemcpyAsync", 2},
        Call{true, "cuLaunchKernel", 1}, Call{true, "cuLaunchKernel", 2}}) {
    SCOPED_TRACE(StrCat(call.name, " ", call.number));
    Host host("adamw");
    Engine* const engine = host.engine();
    if (call.is_bound) host.BindAll();
    int steps = 0;
    for (const cuda::CuResult result :
         {cuda::CuResult::kStreamCaptureUnsupported,
          cuda::CuResult::kStreamCaptureInvalidated}) {
      SetCaptured(host.stream().get());
      ASSERT_OK(engine->CaptureBegin());
      FailCall(call.name, call.number, result);
      const bool is_own = result == cuda::CuResult::kStreamCaptureUnsupported;
      ExpectError(engine->Step(Clipped(), nullptr),
                  StatusCode::kFailedPrecondition,
                  {call.name, is_own ? "_UNSUPPORTED" : "_INVALIDATED",
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

TEST_F(GraphCapturesTest, AStepIsNotEnqueuedInACaptureThatIsInvalid) {
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

TEST_F(GraphCapturesTest, ACallThatTheCaptureForbidsIsToldAtItsEnd) {
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

// Each call of the driver's fails once during a capture, copies of bound
// tensors included. An engine that has begun one has nothing to lose: the next
// step is as if there had been none.
TEST_F(GraphCapturesTest, AnyCallMayFail) {
  uint64_t calls = 1;
  for (uint64_t call = 0; call <= calls; ++call) {
    SCOPED_TRACE(StrCat("call ", call));
    Host host("adamw");
    Engine* const engine = host.engine();
    host.BindAll();
    // Then each wait of the capture's beginning is a query or a few.
    ASSERT_OK(engine->Synchronize(0));
    testing::fake_cuda::RunAll();
    bool has_begun = false;
    const Status captured = host.CaptureWith([&]() -> Status {
      const OneFailure failure(call);
      Status status = engine->CaptureBegin();
      has_begun = status.ok();
      if (has_begun) {
        status = engine->Step(Clipped(), nullptr);
        const Status zeroed = engine->ZeroGrad();
        if (status.ok()) status = zeroed;
        const Status closed = engine->CaptureEnd();
        if (status.ok()) status = closed;
      }
      if (call == 0) calls = failure.calls();
      return status;
    });
    int64_t steps = 0;
    if (captured.ok()) {
      host.CopyGrads(1, true);
      ASSERT_OK(host.Replay(Clipped()));
      ASSERT_OK(engine->AwaitStep());
      ++steps;
    }
    host.CopyGrads(2, true);
    const Status status = engine->Step(Clipped(), nullptr);
    if (status.ok()) {
      EXPECT_EQ(engine->step(), steps + 1);
    } else {
      EXPECT_FALSE(has_begun) << status.ToString();
      EXPECT_NE(status.message().find("CUDA_ERROR_UNKNOWN"), std::string::npos)
          << status.ToString();
    }
  }
  EXPECT_GT(calls, 20u);
}

TEST_F(GraphCapturesTest, OneStepIsCaptured) {
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
  ASSERT_OK(host.engine()->Synchronize(0));
  ASSERT_OK(host.Capture(Clipped()));
}

// In a graph nobody marks gradients.
TEST_F(GraphCapturesTest, AnEngineWhoseGradientsAreMarkedHasNoGraphs) {
  Host host("adamw");
  host.CopyGrads(1, true);
  ASSERT_OK(host.engine()->MarkUnitGradsReady(0));
  ASSERT_OK(host.engine()->Step(Clipped(), nullptr));
  ExpectError(host.Capture(Clipped()), StatusCode::kFailedPrecondition,
              {"capture_begin", "marked"});
}

TEST_F(GraphCapturesTest, ACaptureBeginsBetweenSteps) {
  struct State {
    std::string text;
    std::function<Status(Engine*)> enter;
    std::function<Status(Engine*)> leave;
  };
  const std::vector<State> states = {
      {"broadcast_params", [](Engine*) { return Status(); },
       [](Engine* engine) { return Fill(engine); }},
      {"after begin_step",
       [](Engine* engine) { return engine->BeginStep(StepOptions()); },
       [](Engine* engine) { return engine->Step(StepOptions(), nullptr); }},
      {"summon_end", [](Engine* engine) { return engine->Summon(0, -1, 0); },
       [](Engine* engine) { return engine->EndSummon(false, 0); }},
      {"needs all units to be IDLE",
       [](Engine* engine) { return engine->UnitAcquire(0, Pass::kForward, 0); },
       [](Engine* engine) { return engine->UnitRelease(0); }},
      {"gradients that are ready",
       [](Engine* engine) { return engine->MarkUnitGradsReady(0); },
       [](Engine* engine) { return engine->Step(StepOptions(), nullptr); }},
  };
  const HostsStream stream;
  const auto made = MakeUnscaled("adamw");
  Engine* const engine = made.get();
  ASSERT_OK(engine->SetStream(stream.get()));
  for (const State& state : states) {
    SCOPED_TRACE(state.text);
    ASSERT_OK(state.enter(engine));
    SetCaptured(stream.get());
    ExpectError(engine->CaptureBegin(), StatusCode::kFailedPrecondition,
                {"capture_begin", state.text});
    SetCaptured(nullptr);
    ASSERT_OK(state.leave(engine));
  }
}

TEST_F(GraphCapturesTest, AnEngineWithMissingGradsHasNoGraphs) {
  const HostsStream stream;
  EngineOptions options;
  options.opened_device = *cuda::OpenDevice("0");
  options.missing_grads = MissingGrads::kSkip;
  const auto engine = Engine::Create(MakePlan("adamw"), OpenLocal(), options);
  ASSERT_OK(engine);
  ASSERT_OK((*engine)->SetStream(stream.get()));
  ASSERT_OK(Fill(engine->get()));
  SetCaptured(stream.get());
  ExpectError((*engine)->CaptureBegin(), StatusCode::kFailedPrecondition,
              {"capture_begin", "missing_grads"});
  SetCaptured(nullptr);
}

TEST_F(GraphCapturesTest, ACommunicatorThatIsNotDirectHasNoGraphs) {
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

TEST_F(GraphCapturesTest, SeveralRanksHaveNoGraphs) {
  RunThreadRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = cuda_training::MakeEngine(
        cuda_training::MakePlan({.world_size = 2}), comm);
    ASSERT_OK(engine);
    ASSERT_OK(Fill(engine->get()));
    ExpectError((*engine)->CaptureBegin(), StatusCode::kUnimplemented,
                {"2 ranks"});
  });
}

TEST_F(GraphCapturesTest, AProcessorHasNoGraphs) {
  const auto engine =
      Engine::Create(cuda_training::MakePlan({}), OpenLocal(), EngineOptions());
  ASSERT_OK(engine);
  ASSERT_OK(Fill(engine->get()));
  ExpectError((*engine)->CaptureBegin(), StatusCode::kUnimplemented,
              {"capture_begin", "no graphs"});
}

}  // namespace
}  // namespace shard::cuda_graph_captures_test
