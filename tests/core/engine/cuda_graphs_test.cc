// SPDX-License-Identifier: Apache-2.0
//
// Steps that the host captures as a graph and replays, on the fake of the
// driver: bits and counts are those of plain steps, and what a graph cannot do
// is an error after which training goes on.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/driver.h"
#include "core/device/cuda/driver_api.h"
#include "core/engine/engine.h"
#include "core/optim/groups.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/fake_cuda/graph_api.h"

namespace shard::cuda_graphs_test {
namespace {

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

// Returns a plan of matrices and a vector, which no optimizer but Muon refuses.
std::shared_ptr<const Plan> MakePlan(const std::string& optimizer) {
  auto model = std::make_shared<Model>("Net");
  std::vector<ParamId> matrices;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{8, 6}, {40, 33}, {8, 6}}) {
    const auto param = model->AddParam(
        kRootModule, StrCat("weight", matrices.size()), DType::kF32, shape);
    EXPECT_OK(param);
    matrices.push_back(*param);
  }
  EXPECT_OK(model->AddParam(kRootModule, "bias", DType::kF32, {100}));
  EXPECT_OK(model->AddParamGroup(optimizer, matrices));
  PlanOptions options;
  const auto groups = PlanGroups(*model, "adamw");
  EXPECT_OK(groups);
  options.groups = *groups;
  const auto plan = Plan::Create(std::move(model), options);
  EXPECT_OK(plan);
  return *plan;
}

// A training whose host has a stream, and gradients that it copies there.
class Host {
 public:
  ~Host() { EndGraph(); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  explicit Host(const std::string& optimizer)
      : engine_(*cuda_training::MakeEngine(MakePlan(optimizer), OpenLocal())) {
    EXPECT_OK(engine_->SetStream(stream_.get()));
    EXPECT_OK(Fill(engine_.get()));
  }

  Engine* engine() { return engine_.get(); }
  const HostsStream& stream() const { return stream_; }

  // Gives the stream copies of the gradients of a step; one is NaN where the
  // step is to be skipped.
  void CopyGrads(int step, bool finite) {
    const auto& params = engine_->plan().model().params();
    for (size_t p = 0; p < params.size(); ++p) {
      const auto param = static_cast<ParamId>(p);
      const auto grad = engine_->Grad(param);
      ASSERT_OK(grad);
      // Read when the copy runs.
      std::vector<float>& values = grads_.emplace_back();
      for (int64_t i = 0; i < grad->numel; ++i) {
        values.push_back(GradientValue(step, param, i));
      }
      if (!finite) values[0] = std::numeric_limits<float>::quiet_NaN();
      const cuda::DriverApi& api = (*cuda::Driver::Load())->api();
      ASSERT_EQ(
          api.MemcpyAsync(reinterpret_cast<cuda::CuPointer>(grad->data),
                          reinterpret_cast<cuda::CuPointer>(values.data()),
                          values.size() * sizeof(float), stream_.get()),
          cuda::CuResult::kSuccess);
    }
  }

  // Captures a step, and the zeros after it.
  Status Capture(const StepOptions& options) {
    return CaptureWith([&]() -> Status {
      SHARD_RETURN_IF_ERROR(engine_->CaptureBegin());
      Status status = engine_->Step(options, nullptr);
      if (status.ok()) status = engine_->ZeroGrad();
      const Status ended = engine_->CaptureEnd();
      return status.ok() ? ended : status;
    });
  }

  // Makes a graph of what `work` enqueues.
  Status CaptureWith(const std::function<Status()>& work) {
    EndGraph();
    EXPECT_EQ(
        graphs_.StreamBeginCapture(stream_.get(), cuda::CuCaptureMode::kGlobal),
        cuda::CuResult::kSuccess);
    Status status = work();
    cuda::CuGraph graph = nullptr;
    EXPECT_EQ(graphs_.StreamEndCapture(stream_.get(), &graph),
              cuda::CuResult::kSuccess);
    EXPECT_EQ(graphs_.GraphInstantiate(&graph_, graph, 0),
              cuda::CuResult::kSuccess);
    EXPECT_EQ(graphs_.GraphDestroy(graph), cuda::CuResult::kSuccess);
    return status;
  }

  void Launch() {
    EXPECT_EQ(graphs_.GraphLaunch(graph_, stream_.get()),
              cuda::CuResult::kSuccess);
  }

  Status Replay(const StepOptions& options) {
    SHARD_RETURN_IF_ERROR(engine_->BeforeReplay(options));
    // The step is not taken for one that has run, which a host may ask for now
    // to scale its loss.
    const int64_t before = engine_->step();
    EXPECT_GT(engine_->loss_scale(), 0);
    EXPECT_EQ(engine_->step(), before);
    Launch();
    return Status();
  }

  // Returns all parameters, one after the other.
  std::vector<float> Params() {
    EXPECT_OK(engine_->Summon(0, -1, 0));
    std::vector<float> all;
    for (size_t p = 0; p < engine_->plan().model().params().size(); ++p) {
      const auto param = engine_->Param(static_cast<ParamId>(p));
      EXPECT_OK(param);
      const auto* const values = static_cast<const float*>(param->data);
      all.insert(all.end(), values, values + param->numel);
    }
    EXPECT_OK(engine_->EndSummon(false, 0));
    return all;
  }

 private:
  void EndGraph() {
    if (graph_ != nullptr) graphs_.GraphExecDestroy(graph_);
    graph_ = nullptr;
  }

  const cuda::GraphApi graphs_ = cuda::GraphApi::Load();
  const HostsStream stream_;
  std::vector<std::vector<float>> grads_;
  std::unique_ptr<Engine> engine_;
  cuda::CuGraphExec graph_ = nullptr;
};

// ---- Bits -------------------------------------------------------------------

using Case = std::tuple<std::string, bool>;

class GraphBitsTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { testing::ResetWithKernels(); }
  void TearDown() override { testing::FakeCuda::Check(); }
};

// What a step reports, and the scale of the next loss.
struct Result {
  int64_t step;
  bool skipped;
  double grad_norm;
  double loss_scale;
  double next_scale;

  bool operator==(const Result&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Result& result) {
  return out << "step " << result.step << (result.skipped ? ", skipped" : "")
             << ", norm " << result.grad_norm << ", loss scale "
             << result.loss_scale << " and " << result.next_scale;
}

TEST_P(GraphBitsTest, AHundredReplaysAreAHundredSteps) {
  const auto& [optimizer, clips] = GetParam();
  constexpr int kSteps = 100;
  const auto is_finite = [](int step) { return step != 30 && step != 61; };
  std::vector<float> expected;
  std::vector<Result> expected_results;
  for (const bool replays : {false, true}) {
    Host host(optimizer);
    Engine* const engine = host.engine();
    StepOptions options = clips ? Clipped() : StepOptions();
    options.skip_nonfinite = true;
    if (replays) ASSERT_OK(host.Capture(options));
    EXPECT_EQ(engine->step(), 0);
    std::vector<Result> results;
    for (int step = 1; step <= kSteps; ++step) {
      ASSERT_OK(engine->SetHyper(1, "lr", 0.01 / step));
      if (clips) options.max_grad_norm = 0.1 + 0.01 * step;
      host.CopyGrads(step, is_finite(step));
      if (replays) {
        ASSERT_OK(host.Replay(options));
      } else {
        ASSERT_OK(engine->Step(options, nullptr));
        ASSERT_OK(engine->ZeroGrad());
      }
      // A host that does not look at each step goes on.
      if (step % 3 != 0) continue;
      const auto report = engine->LastReport();
      ASSERT_OK(report);
      // NaN is not equal to itself.
      const double norm = report->skipped ? -1 : report->grad_norm;
      results.push_back({report->step, report->skipped, norm,
                         report->loss_scale, engine->loss_scale()});
    }
    const std::vector<float> params = host.Params();
    EXPECT_EQ(engine->step(), kSteps - 2);
    if (!replays) {
      expected = params;
      expected_results = results;
      continue;
    }
    EXPECT_EQ(results, expected_results);
    ASSERT_EQ(params.size(), expected.size());
    for (size_t i = 0; i < params.size(); ++i) {
      ASSERT_EQ(params[i], expected[i]) << "element " << i;
      ASSERT_TRUE(std::isfinite(params[i]));
    }
    EXPECT_NE(params, std::vector<float>(params.size(), 1.0f));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GraphBitsTest,
    ::testing::Combine(::testing::Values("adamw", "sgd?momentum=0.9", "lamb",
                                         "adafactor", "muon"),
                       ::testing::Bool()),
    [](const auto& info) {
      const std::string& optimizer = std::get<0>(info.param);
      return optimizer.substr(0, optimizer.find('?')) +
             (std::get<1>(info.param) ? "_clipped" : "_plain");
    });

// ---- A capture --------------------------------------------------------------

class GraphTest : public FakeCudaTest {};

TEST_F(GraphTest, WhatIsCapturedDoesNotRun) {
  Host host("adamw");
  host.CopyGrads(1, true);
  const std::vector<float> before = host.Params();
  const Counters counters = Count();
  ASSERT_OK(host.Capture(Clipped()));
  EXPECT_EQ(CountSince(counters).Launches(), 0u);
  EXPECT_EQ(host.engine()->step(), 0);
  EXPECT_EQ(host.Params(), before);
  // The gradients were not used, and are those of a plain step.
  ASSERT_OK(host.engine()->Step(Clipped(), nullptr));
  EXPECT_NE(host.Params(), before);
  EXPECT_EQ(host.engine()->step(), 1);
  // Norms of two buffers, what follows from them, and two updates.
  const Counters launched = Count();
  host.CopyGrads(2, true);
  ASSERT_OK(host.Replay(Clipped()));
  EXPECT_EQ(CountSince(launched).Launches(), 5u);
}

// Both forms may follow one another.
TEST_F(GraphTest, ReplaysAndPlainStepsTakeTurns) {
  std::vector<float> expected;
  for (const bool replays : {false, true}) {
    Host host("adamw");
    for (int step = 1; step <= 12; ++step) {
      if (replays && step % 4 == 1) ASSERT_OK(host.Capture(Clipped()));
      host.CopyGrads(step, true);
      if (replays && step % 4 < 2) {
        ASSERT_OK(host.Replay(Clipped()));
        // A capture cannot wait for a replay.
        ASSERT_OK(host.engine()->AwaitStep());
      } else {
        ASSERT_OK(host.engine()->Step(Clipped(), nullptr));
      }
    }
    if (replays) {
      EXPECT_EQ(host.Params(), expected);
    } else {
      expected = host.Params();
    }
    EXPECT_EQ(host.engine()->step(), 12);
  }
}

TEST_F(GraphTest, AReplayCostsTheHostNoOtherCallsOfTheDriver) {
  Host host("adamw");
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(1, true);
  ASSERT_OK(host.Replay(Clipped()));
  ASSERT_OK(host.engine()->AwaitStep());
  const Counters before = Count();
  ASSERT_OK(host.engine()->BeforeReplay(Clipped()));
  const Counters made = CountSince(before);
  EXPECT_EQ(made.Launches(), 0u);
  EXPECT_EQ(made.to_device.count, 0u);
  EXPECT_EQ(made.Calls("cuEventRecord"), 0u);
  EXPECT_EQ(made.waits_of_host, 0u);
  host.Launch();
}

// ---- What a graph cannot do -------------------------------------------------

TEST_F(GraphTest, OtherCallsAreNoPartOfACapture) {
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

TEST_F(GraphTest, WithoutACaptureOfTheHosts) {
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

TEST_F(GraphTest, TheHostEndsItsCaptureFirst) {
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
TEST_F(GraphTest, AnotherKindOfStepIsNotReplayed) {
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

TEST_F(GraphTest, ACaptureDoesNotWaitForAReplay) {
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
TEST_F(GraphTest, AReplayThatIsNotLaunchedDoesNotCount) {
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

// The host captures something of its own while a replay is on its way.
TEST_F(GraphTest, CallsDuringACaptureAfterAReplayEndNothing) {
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

// As by another thread that allocates memory.
TEST_F(GraphTest, ACaptureThatBecomesInvalidEndsNothing) {
  Host host("adamw");
  Engine* const engine = host.engine();
  for (const std::string& call :
       {std::string("cuLaunchKernel"), std::string("cuMemcpyAsync")}) {
    SetCaptured(host.stream().get());
    ASSERT_OK(engine->CaptureBegin());
    FailCall(call, 1, cuda::CuResult::kStreamCaptureUnsupported);
    ExpectError(engine->Step(Clipped(), nullptr),
                StatusCode::kFailedPrecondition, {call});
    ExpectError(engine->ZeroGrad(), StatusCode::kFailedPrecondition, {call});
    EXPECT_OK(engine->CaptureEnd());
    SetCaptured(nullptr);
    ExpectError(engine->BeforeReplay(Clipped()),
                StatusCode::kFailedPrecondition, {"capture the step again"});
    ASSERT_OK(host.Capture(Clipped()));
    host.CopyGrads(1, true);
    ASSERT_OK(host.Replay(Clipped()));
    ASSERT_OK(engine->AwaitStep());
  }
  EXPECT_EQ(engine->step(), 2);
}

// Each call of the driver's fails once during a capture, and during the wait
// for a replay: the engine trains on, or says for good which call it was.
TEST_F(GraphTest, AnyCallMayFail) {
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

TEST_F(GraphTest, OneStepIsCaptured) {
  Host host("adamw");
  ASSERT_OK(host.CaptureWith([&]() -> Status {
    SHARD_RETURN_IF_ERROR(host.engine()->CaptureBegin());
    SHARD_RETURN_IF_ERROR(host.engine()->Step(Clipped(), nullptr));
    ExpectError(host.engine()->Step(Clipped(), nullptr),
                StatusCode::kFailedPrecondition, {"a second step"});
    return host.engine()->CaptureEnd();
  }));
  host.CopyGrads(1, true);
  EXPECT_OK(host.Replay(Clipped()));
}

TEST_F(GraphTest, AStepThatIsBegunIsNotReplayed) {
  const HostsStream stream;
  EngineOptions options;
  options.opened_device = *cuda::OpenDevice("0");
  const auto engine = Engine::Create(MakePlan("adamw"), OpenLocal(), options);
  ASSERT_OK(engine);
  ASSERT_OK((*engine)->SetStream(stream.get()));
  ASSERT_OK(Fill(engine->get()));
  SetCaptured(stream.get());
  ASSERT_OK((*engine)->CaptureBegin());
  ASSERT_OK((*engine)->Step(StepOptions(), nullptr));
  ASSERT_OK((*engine)->CaptureEnd());
  SetCaptured(nullptr);
  ASSERT_OK((*engine)->BeginStep(StepOptions()));
  ExpectError((*engine)->BeforeReplay(StepOptions()),
              StatusCode::kFailedPrecondition, {"before_replay", "begin_step"});
  ASSERT_OK((*engine)->Step(StepOptions(), nullptr));
  EXPECT_EQ((*engine)->step(), 1);
}

// In a graph nobody marks gradients.
TEST_F(GraphTest, AnEngineWhoseGradientsAreMarkedHasNoGraphs) {
  Host host("adamw");
  host.CopyGrads(1, true);
  ASSERT_OK(host.engine()->MarkUnitGradsReady(0));
  ASSERT_OK(host.engine()->Step(Clipped(), nullptr));
  ExpectError(host.Capture(Clipped()), StatusCode::kFailedPrecondition,
              {"capture_begin", "marked"});
}

TEST_F(GraphTest, ACommunicatorThatIsNotDirectHasNoGraphs) {
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

TEST_F(GraphTest, SeveralRanksHaveNoGraphs) {
  RunThreadRanks(2, [&](const std::shared_ptr<Communicator>& comm) {
    const auto engine = cuda_training::MakeEngine(
        cuda_training::MakePlan({.world_size = 2}), comm);
    ASSERT_OK(engine);
    ASSERT_OK(Fill(engine->get()));
    ExpectError((*engine)->CaptureBegin(), StatusCode::kUnimplemented,
                {"2 ranks"});
  });
}

TEST_F(GraphTest, AProcessorHasNoGraphs) {
  const auto engine =
      Engine::Create(cuda_training::MakePlan({}), OpenLocal(), EngineOptions());
  ASSERT_OK(engine);
  ASSERT_OK(Fill(engine->get()));
  ExpectError((*engine)->CaptureBegin(), StatusCode::kUnimplemented,
              {"capture_begin", "no graphs"});
}

}  // namespace
}  // namespace shard::cuda_graphs_test
