// SPDX-License-Identifier: Apache-2.0
//
// A step that a rank refuses leaves the graph of the step that was captured
// before usable on all ranks, and a change of the plan on none; on the fakes of
// the driver and of NCCL.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_graph_ranks.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_graph_refusals_test {
namespace {

using cuda_graphs::Host;
using cuda_graphs::kRanks;
using cuda_graphs::RunGraphRanks;
using cuda_training::Clipped;

// A call that at least one rank refuses.
struct Refusal {
  std::string name;
  StatusCode code;
  std::function<Status(Host*)> call;
};

// Calls `step` between capture_begin and capture_end.
Status InCapture(Host* host, const std::function<Status(Engine*)>& step) {
  return host->CaptureInVain([&]() -> Status {
    SHARD_RETURN_IF_ERROR(host->engine()->CaptureBegin());
    Status status = step(host->engine());
    EXPECT_OK(host->engine()->CaptureEnd());
    return status;
  });
}

// Returns Clipped(), and on the last rank of all what `change` makes of it.
StepOptions Changed(const Host* host,
                    const std::function<void(StepOptions*)>& change) {
  StepOptions options = Clipped();
  const Communicator& comm = *host->engine()->comm();
  if (comm.rank() == comm.world_size() - 1) change(&options);
  return options;
}

// Refusals of the arguments of one rank.
std::vector<Refusal> Refusals() {
  const auto wrong = [](const Host* host) {
    return Changed(host,
                   [](StepOptions* options) { options->clip_value = -1; });
  };
  return {
      {"a replay", StatusCode::kInvalidArgument,
       [=](Host* host) { return host->engine()->BeforeReplay(wrong(host)); }},
      {"a step", StatusCode::kInvalidArgument,
       [=](Host* host) { return host->engine()->Step(wrong(host), nullptr); }},
      {"begin_step", StatusCode::kInvalidArgument,
       [=](Host* host) {
         StepOptions options = wrong(host);
         options.max_grad_norm = 0;  // A step that is begun has no norm.
         return host->engine()->BeginStep(options);
       }},
      {"the capture of another", StatusCode::kInvalidArgument,
       [=](Host* host) {
         return InCapture(host, [&](Engine* engine) {
           return engine->Step(wrong(host), nullptr);
         });
       }},
      {"a capture with a report", StatusCode::kFailedPrecondition,
       [](Host* host) {
         return InCapture(host, [&](Engine* engine) {
           StepReport report;
           const bool is_last =
               engine->comm()->rank() == engine->comm()->world_size() - 1;
           return engine->Step(Clipped(), is_last ? &report : nullptr);
         });
       }},
      // On all ranks, which agree on what they have not captured.
      {"a replay of another form", StatusCode::kFailedPrecondition,
       [](Host* host) {
         StepOptions other = Clipped();
         other.grad_norm_type = 3;
         return host->engine()->BeforeReplay(other);
       }},
  };
}

// Refusals of options that differ.
std::vector<Refusal> Differences() {
  const auto other = [](const Host* host) {
    return Changed(host,
                   [](StepOptions* options) { options->max_grad_norm = 0.25; });
  };
  return {
      {"a replay", StatusCode::kDesync,
       [=](Host* host) { return host->engine()->BeforeReplay(other(host)); }},
      {"a step", StatusCode::kDesync,
       [=](Host* host) { return host->engine()->Step(other(host), nullptr); }},
      {"the capture of another", StatusCode::kDesync,
       [=](Host* host) {
         return InCapture(host, [&](Engine* engine) {
           return engine->Step(other(host), nullptr);
         });
       }},
  };
}

// Makes a step after each refusal, by the graph or without one, and returns the
// parameters.
std::vector<float> Train(Host* host, bool replays,
                         const std::vector<Refusal>& refusals) {
  Engine* const engine = host->engine();
  if (replays) EXPECT_OK(host->Capture(Clipped()));
  int step = 0;
  const auto train = [&] {
    host->CopyGrads(++step, true);
    if (replays) {
      EXPECT_OK(host->Replay(Clipped()));
    } else {
      EXPECT_OK(engine->Step(Clipped(), nullptr));
      EXPECT_OK(engine->ZeroGrad());
    }
    EXPECT_OK(engine->AwaitStep());
    EXPECT_EQ(engine->step(), step);
  };
  train();
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.name);
    if (replays) ExpectError(refusal.call(host), refusal.code, {});
    train();
  }
  return host->Params();
}

TEST(GraphRefusalsTest, OneRankReplaysOn) {
  std::vector<float> expected;
  for (const bool replays : {false, true}) {
    const testing::FakeCuda fake;
    Host host("adamw");
    const std::vector<float> params = Train(&host, replays, Refusals());
    if (!replays) expected = params;
    EXPECT_TRUE(params == expected);
  }
}

TEST(GraphRefusalsTest, AllRanksReplayOn) {
  for (const auto& refusals : {Refusals(), Differences()}) {
    std::vector<float> expected[kRanks];
    for (const bool replays : {false, true}) {
      RunGraphRanks([&](Host* host, Communicator* comm) {
        const std::vector<float> params = Train(host, replays, refusals);
        if (!replays) expected[comm->rank()] = params;
        EXPECT_TRUE(params == expected[comm->rank()]);
      });
    }
    EXPECT_TRUE(expected[0] == expected[1]);
  }
}

// The host of one rank ends its capture after the step, which then is none of
// any rank's graph; or before it, and no rank's step is captured.
TEST(GraphRefusalsTest, ACaptureThatOneHostEndsTooEarlyIsTheErrorOfAll) {
  for (const bool steps_before : {true, false}) {
    RunGraphRanks([&](Host* host, Communicator* comm) {
      SCOPED_TRACE(steps_before);
      Engine* const engine = host->engine();
      ASSERT_OK(host->Capture(Clipped()));
      Status stepped;
      Status ended;
      const bool is_early = comm->rank() == 1;
      ASSERT_OK(host->CaptureInVain([&]() -> Status {
        SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
        if (is_early && !steps_before) return Status();
        stepped = engine->Step(Clipped(), nullptr);
        if (!is_early) ended = engine->CaptureEnd();
        return Status();
      }));
      if (is_early) {
        if (!steps_before) stepped = engine->Step(Clipped(), nullptr);
        ended = engine->CaptureEnd();
      }
      if (steps_before) {
        EXPECT_OK(stepped);
        EXPECT_EQ(ended.rank(), 1);
      } else {
        ExpectError(stepped, StatusCode::kFailedPrecondition,
                    {"rank 1", "step", "capture_end"});
      }
      if (steps_before || is_early) {
        ExpectError(ended, StatusCode::kFailedPrecondition,
                    {"capture_end", "has ended before"});
      } else {
        EXPECT_OK(ended);
      }
      host->CopyGrads(1, true);
      if (steps_before) {
        ExpectError(engine->BeforeReplay(Clipped()),
                    StatusCode::kFailedPrecondition,
                    {"capture the step again"});
        ASSERT_OK(engine->Step(Clipped(), nullptr));
      } else {
        ASSERT_OK(host->Replay(Clipped()));
      }
      ASSERT_OK(engine->AwaitStep());
      ASSERT_OK(host->Capture(Clipped()));
      host->CopyGrads(2, true);
      ASSERT_OK(host->Replay(Clipped()));
      ASSERT_OK(engine->AwaitStep());
      EXPECT_EQ(engine->step(), 2);
    });
  }
}

// Until all capture again.
TEST(GraphRefusalsTest, NoRankReplaysAfterAChangeOfThePlan) {
  RunGraphRanks([&](Host* host, Communicator*) {
    Engine* const engine = host->engine();
    ASSERT_OK(host->Capture(Clipped()));
    const ParamId params[] = {0};
    for (int step = 1; step <= 4; ++step) {
      host->CopyGrads(step, true);
      if (step == 3) {
        ExpectError(engine->BeforeReplay(Clipped()),
                    StatusCode::kFailedPrecondition,
                    {"plan", "capture the step again"});
        ASSERT_OK(engine->Step(Clipped(), nullptr));
        ASSERT_OK(engine->ZeroGrad());
      } else {
        ASSERT_OK(host->Replay(Clipped()));
      }
      ASSERT_OK(engine->AwaitStep());
      EXPECT_EQ(engine->step(), step);
      if (step == 2) {
        ASSERT_OK(engine->SetTrainable(params, false, 0));
        ASSERT_OK(engine->SetTrainable(params, true, 0));
      }
      if (step == 3) ASSERT_OK(host->Capture(Clipped()));
    }
  });
}

}  // namespace
}  // namespace shard::cuda_graph_refusals_test
