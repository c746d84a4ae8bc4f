// SPDX-License-Identifier: Apache-2.0
//
// A replay that cannot be, or that fails, on the fake of the driver, is an
// error after which training goes on.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/state/memory_store.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_graph_errors_test {
namespace {

using cuda_graphs::Host;
using cuda_graphs::MakeUnscaled;
using cuda_graphs::OneFailure;
using cuda_training::Clipped;
using testing::FakeCudaTest;
using testing::fake_cuda::SetCaptured;

class GraphErrorsTest : public FakeCudaTest {};

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

// The products of a graph have the precision of the plan, which no call
// changes: what is refused leaves the graph as it is.
TEST_F(GraphErrorsTest, ThePrecisionOfProductsDoesNotChange) {
  std::vector<float> params[2];
  for (const bool asks : {false, true}) {
    Host host("muon?matmul_precision=medium");
    ASSERT_OK(host.Capture(Clipped()));
    for (int step = 1; step <= 2; ++step) {
      host.CopyGrads(step, true);
      ASSERT_OK(host.Replay(Clipped()));
      if (!asks) continue;
      for (const GroupId group : {1, -1}) {
        ExpectError(host.engine()->SetHyper(group, "matmul_precision", 0),
                    StatusCode::kFailedPrecondition,
                    {"matmul_precision is medium and cannot change; create a "
                     "new plan"});
      }
    }
    params[asks] = host.Params();
  }
  EXPECT_TRUE(params[0] == params[1]);
  Host highest("muon");
  for (int step = 1; step <= 2; ++step) {
    highest.CopyGrads(step, true);
    ASSERT_OK(highest.engine()->Step(Clipped(), nullptr));
  }
  EXPECT_FALSE(highest.Params() == params[0]);
}

// A launch too many steps with old values, and the next call says so, once.
TEST_F(GraphErrorsTest, ALaunchWithoutBeforeReplayIsFound) {
  // The calls that make one, after the capture, and the steps that count.
  struct Stray {
    const char* name;
    std::function<Status(Host*)> make;
    int64_t steps;
  };
  const std::vector<Stray> strays = {
      {"after a step",
       [](Host* host) { return host->engine()->Step(Clipped(), nullptr); }, 1},
      {"twice", [](Host* host) { return host->Replay(Clipped()); }, 1},
      {"after its step was taken",
       [](Host* host) {
         SHARD_RETURN_IF_ERROR(host->Replay(Clipped()));
         return host->engine()->AwaitStep();
       },
       1},
      {"after a step in its place",
       [](Host* host) {
         SHARD_RETURN_IF_ERROR(host->engine()->BeforeReplay(Clipped()));
         return host->engine()->Step(Clipped(), nullptr);
       },
       1},
  };
  for (const Stray& stray : strays) {
    for (const bool replays : {false, true}) {
      SCOPED_TRACE(StrCat(stray.name, replays ? ", replayed" : ", stepped"));
      Host host("adamw");
      Engine* const engine = host.engine();
      ASSERT_OK(host.Capture(Clipped()));
      host.CopyGrads(1, true);
      ASSERT_OK(stray.make(&host));
      const auto before = host.Params();
      host.CopyGrads(2, true);
      host.Launch();
      EXPECT_FALSE(host.Params() == before);
      const auto next = [&] {
        return replays ? host.Replay(Clipped())
                       : engine->Step(Clipped(), nullptr);
      };
      ExpectError(next(), StatusCode::kFailedPrecondition,
                  {"launched without before_replay, or twice after one"});
      EXPECT_EQ(engine->step(), stray.steps);
      for (int64_t step = 1; step <= 2; ++step) {
        host.CopyGrads(static_cast<int>(2 + step), true);
        ASSERT_OK(next());
        ASSERT_OK(engine->AwaitStep());
        EXPECT_EQ(engine->step(), stray.steps + step);
      }
    }
  }
}

// Its parameters are not saved unseen, and a checkpoint makes it good.
TEST_F(GraphErrorsTest, ALaunchWithoutBeforeReplayIsNotSaved) {
  Host host("adamw");
  Engine* const engine = host.engine();
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(1, true);
  ASSERT_OK(host.Replay(Clipped()));
  const testing::TempFolder folder;
  ASSERT_OK(engine->Save(folder.path(), SaveOptions()));
  const std::vector<float> saved = host.Params();
  const std::vector<std::function<Status()>> calls = {
      [&] { return engine->Save(folder.path(), SaveOptions()).status(); },
      [&] {
        return engine->GatherState(StateOptions(), 0, 0,
                                   [](const auto&...) { return Status(); });
      },
      [&] {
        MemoryStore store;
        return engine->AddLocalState(StateOptions(), &store);
      },
  };
  for (const auto& call : calls) {
    host.Launch();
    ExpectError(call(), StatusCode::kFailedPrecondition,
                {"launched without before_replay, or twice after one"});
  }
  host.Launch();
  EXPECT_FALSE(host.Params() == saved);
  LoadReport report;
  ASSERT_OK(engine->Load(folder.path(), LoadOptions(), &report));
  EXPECT_EQ(host.Params(), saved);
  ASSERT_OK(engine->Step(Clipped(), nullptr));
}

// A change of the plan does not make it good.
TEST_F(GraphErrorsTest, ALaunchWithoutBeforeReplayIsToldAfterAReplan) {
  Host host("adamw");
  Engine* const engine = host.engine();
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(1, true);
  ASSERT_OK(host.Replay(Clipped()));
  host.Launch();
  const ParamId params[] = {0};
  ASSERT_OK(engine->SetTrainable(params, false, 0));
  ASSERT_OK(engine->SetTrainable(params, true, 0));
  host.CopyGrads(2, true);
  ExpectError(engine->Step(Clipped(), nullptr), StatusCode::kFailedPrecondition,
              {"launched without before_replay, or twice after one"});
  ASSERT_OK(engine->Step(Clipped(), nullptr));
}

// The host may give its stream much after a replay, as a validation, and wait
// for less.
TEST_F(GraphErrorsTest, AReplayWithMuchBehindItIsWaitedForAgain) {
  Host host("adamw");
  Engine* const engine = host.engine();
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(1, true);
  ASSERT_OK(host.Replay(Clipped()));
  ASSERT_OK(engine->Synchronize(0));
  host.CopyGrads(2, true);
  ASSERT_OK(engine->BeforeReplay(Clipped()));
  testing::fake_cuda::Pause();
  host.Launch();
  host.CopyGrads(3, true);
  StepOptions hasty = Clipped();
  hasty.timeout = 0.05;
  for (const Status& status :
       {engine->BeforeReplay(hasty), engine->Step(hasty, nullptr)}) {
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
        << status.ToString();
  }
  testing::fake_cuda::Resume();
  ASSERT_OK(host.Replay(Clipped()));
  ASSERT_OK(engine->AwaitStep());
  EXPECT_EQ(engine->step(), 3);
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

// The engine trains on, or says for good which call it was.
TEST_F(GraphErrorsTest, AnyCallOfAWaitForAReplayMayFail) {
  uint64_t calls = 1;
  for (uint64_t call = 0; call <= calls; ++call) {
    SCOPED_TRACE(StrCat("call ", call));
    Host host("adamw");
    Engine* const engine = host.engine();
    ASSERT_OK(host.Capture(Clipped()));
    host.CopyGrads(1, true);
    ASSERT_OK(host.Replay(Clipped()));
    Status replayed;
    {
      const OneFailure failure(call);
      replayed = engine->AwaitStep();
      if (call == 0) calls = failure.calls();
    }
    host.CopyGrads(2, true);
    const Status status = engine->Step(Clipped(), nullptr);
    if (status.ok()) {
      EXPECT_EQ(engine->step(), replayed.ok() ? 2 : 1);
    } else {
      EXPECT_NE(status.message().find("CUDA_ERROR_UNKNOWN"), std::string::npos)
          << status.ToString();
    }
  }
  EXPECT_GT(calls, 3u);
}

TEST_F(GraphErrorsTest, AStepThatIsBegunIsNotReplayed) {
  Host host(MakeUnscaled("adamw"));
  Engine* const engine = host.engine();
  ASSERT_OK(host.Capture(StepOptions()));
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
    Host host(MakeUnscaled("adamw"));
    Engine* const engine = host.engine();
    ASSERT_OK(host.Capture(captured));
    ExpectError(engine->BeforeReplay(other), StatusCode::kFailedPrecondition,
                {StrCat("it has ", has_norm ? norm : none, ", and this step ",
                        has_norm ? none : norm),
                 "capture it again, or step without the graph"});
    EXPECT_OK(engine->BeforeReplay(captured));
    ASSERT_OK(engine->Step(other, nullptr));
    EXPECT_EQ(engine->step(), 1);
  }
}

// Its graph has a second pass, which others have not.
TEST_F(GraphErrorsTest, AStepWithANormOfItsOwnIsNotReplayedAsAnother) {
  StepOptions cubic = Clipped();
  cubic.grad_norm_type = 3;
  Host host(MakeUnscaled("adamw"));
  ASSERT_OK(host.Capture(cubic));
  ExpectError(host.engine()->BeforeReplay(Clipped()),
              StatusCode::kFailedPrecondition,
              {"it has a norm with a p of its own, and this step a norm of the "
               "gradients"});
  EXPECT_OK(host.engine()->BeforeReplay(cubic));
}

// A graph has one row of constants where all parameters did as many steps.
TEST_F(GraphErrorsTest, ParametersOfDifferentStepsAreNotReplayedAsOfOne) {
  const testing::TempFolder folder;
  const testing::TempFolder equal;
  {
    Host host("adamw");
    Engine* const engine = host.engine();
    ASSERT_OK(engine->Save(equal.path(), SaveOptions()));
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
               "numbers, with 3 rows of constants now"});
  ASSERT_OK(host.Capture(Clipped()));
  host.CopyGrads(2, true);
  ASSERT_OK(host.Replay(Clipped()));
  EXPECT_EQ(host.engine()->step(), 2);
  // Nor the reverse.
  ASSERT_OK(host.engine()->Load(equal.path(), LoadOptions(), &report));
  ExpectError(host.engine()->BeforeReplay(Clipped()),
              StatusCode::kFailedPrecondition,
              {"its parameters did steps of different numbers, with 3 rows of "
               "constants, and do one step now"});
}

}  // namespace
}  // namespace shard::cuda_graph_errors_test
