// SPDX-License-Identifier: Apache-2.0
//
// Steps that the host captures as a graph and replays, on the fake of the
// driver: bits and counts are those of plain steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "core/device/cuda/driver_api.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/whole_state.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_graphs_test {
namespace {

using cuda_graphs::Host;
using cuda_graphs::MakeUnscaled;
using cuda_training::Clipped;
using testing::FakeCudaTest;
using testing::fake_cuda::Count;
using testing::fake_cuda::Counters;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;

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
  WholeState states[2];  // Of plain steps, and of replays.
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
      ASSERT_OK(engine->SetHyper(-1, "weight_decay", 0.001 * (step % 5)));
      options.grad_divisor = 1 + step % 3;
      if (clips) {
        // These norms have one pass.
        constexpr double kTypes[] = {1, 2,
                                     std::numeric_limits<double>::infinity()};
        options.grad_norm_type = kTypes[step % 3];
        options.max_grad_norm = 0.1 + 0.01 * step;
      } else {
        options.clip_value = step % 2 == 0 ? 0.5 : 0;
      }
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
    EXPECT_EQ(engine->step(), kSteps - 2);
    const std::vector<float> params = host.Params();
    for (const float value : params) ASSERT_TRUE(std::isfinite(value));
    EXPECT_FALSE(params == std::vector<float>(params.size(), 1.0f));
    states[replays ? 1 : 0].Add(*engine);
    if (replays) {
      EXPECT_EQ(results, expected_results);
    } else {
      expected_results = results;
    }
  }
  EXPECT_EQ(states[1].Differences(states[0]), "");
}

INSTANTIATE_TEST_SUITE_P(
    All, GraphBitsTest,
    // Codes of 8 bits are rounded by random bits, which steps number.
    ::testing::Combine(::testing::Values("adamw", "adam?states=q8",
                                         "sgd?momentum=0.9", "lamb",
                                         "adafactor", "muon",
                                         "muon?matmul_precision=high",
                                         "muon?matmul_precision=medium"),
                       ::testing::Bool()),
    [](const auto& info) {
      std::string name = std::get<0>(info.param);
      std::replace_if(
          name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; },
          '_');
      return name + (std::get<1>(info.param) ? "_clipped" : "_plain");
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
  // What finds that it is a replay, norms of two buffers, what follows from
  // them, and the update of both.
  const Counters launched = Count();
  host.CopyGrads(2, true);
  ASSERT_OK(host.Replay(Clipped()));
  EXPECT_EQ(CountSince(launched).Launches(), 5u);
}

// A step of another form in between moves bytes of its own.
TEST_F(GraphTest, AReplayMovesTheBytesOfAStep) {
  for (const bool is_bound : {false, true}) {
    SCOPED_TRACE(is_bound);
    Host host(MakeUnscaled("adamw"));
    Engine* const engine = host.engine();
    if (is_bound) host.BindAll();
    const auto moved = [&](const Status& stepped) -> uint64_t {
      EXPECT_OK(stepped);
      const auto report = engine->LastReport();
      EXPECT_OK(report);
      return report->bytes_moved;
    };
    const auto step = [&](const StepOptions& options) {
      return engine->Step(options, nullptr);
    };
    host.CopyGrads(1, true);
    const uint64_t plain = moved(step(StepOptions()));
    const uint64_t clipped = moved(step(Clipped()));
    EXPECT_GT(clipped, plain);
    ASSERT_OK(host.Capture(StepOptions()));
    EXPECT_EQ(moved(step(Clipped())), clipped);
    EXPECT_EQ(moved(host.Replay(StepOptions())), plain);
    EXPECT_EQ(moved(host.Replay(StepOptions())), plain);
    // A capture that fails moves nothing.
    ExpectError(host.CaptureWith([&]() -> Status {
      SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
      // The update, after the copies of bound gradients.
      FailCall("cuLaunchKernel", is_bound ? 2 : 1, cuda::CuResult::kUnknown);
      const Status failed = engine->Step(StepOptions(), nullptr);
      ExpectError(engine->CaptureEnd(), StatusCode::kUnavailable,
                  {"capture_end", "cuLaunchKernel"});
      return failed;
    }),
                StatusCode::kUnavailable, {"CUDA_ERROR_UNKNOWN"});
    EXPECT_EQ(moved(step(StepOptions())), plain);
  }
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
  // The graph copies bound gradients.
  host.BindAll();
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

}  // namespace
}  // namespace shard::cuda_graphs_test
