// SPDX-License-Identifier: Apache-2.0
//
// Engines that get another stream of the host's while there is a graph of a
// captured step, on the fake of the driver: the graph is launched on the stream
// that the engine has then, and the next capture is of that stream.

#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "core/device/cuda/driver_api.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_graph_streams_test {
namespace {

using cuda_graphs::Host;
using cuda_training::Clipped;
using cuda_training::HostsStream;
using testing::FakeCudaTest;

constexpr int kSteps = 6;

// Returns the parameters after `steps` plain steps on one stream.
std::vector<float> Expected(int steps = kSteps) {
  Host host("adamw");
  for (int step = 1; step <= steps; ++step) {
    host.CopyGrads(step, true);
    EXPECT_OK(host.engine()->Step(Clipped(), nullptr));
    EXPECT_OK(host.engine()->ZeroGrad());
  }
  return host.Params();
}

class GraphStreamsTest : public FakeCudaTest {};

// The place in each step at which the host changes its stream: a copy,
// before_replay or a launch is then of another stream than the call before it.
enum class Place { kBeforeCopies, kBeforeReplay, kBeforeLaunch, kAfterLaunch };

// No call waits for the old stream: the work on the new one comes after the
// work on the old one.
TEST_F(GraphStreamsTest, AGraphIsLaunchedOnTheStreamOfThen) {
  const std::vector<float> expected = Expected();
  for (const Place place : {Place::kBeforeCopies, Place::kBeforeReplay,
                            Place::kBeforeLaunch, Place::kAfterLaunch}) {
    SCOPED_TRACE(static_cast<int>(place));
    const HostsStream others[2];
    Host host("adamw");
    Engine* const engine = host.engine();
    const cuda::CuStream streams[] = {others[0].get(), nullptr, others[1].get(),
                                      host.stream().get()};
    size_t changes = 0;
    const auto change = [&](Place here) {
      if (here != place) return;
      ASSERT_OK(host.SetStream(streams[changes++ % std::size(streams)]));
    };
    ASSERT_OK(host.Capture(Clipped()));
    for (int step = 1; step <= kSteps; ++step) {
      change(Place::kBeforeCopies);
      host.CopyGrads(step, true);
      change(Place::kBeforeReplay);
      ASSERT_OK(engine->BeforeReplay(Clipped()));
      change(Place::kBeforeLaunch);
      host.Launch();
      change(Place::kAfterLaunch);
    }
    EXPECT_TRUE(host.Params() == expected);
    EXPECT_EQ(engine->step(), kSteps);
    EXPECT_EQ(changes, static_cast<size_t>(kSteps));
    // The others end before the engine.
    ASSERT_OK(host.SetStream(host.stream().get()));
  }
}

// A stream may end once the engine has another, also where the graph was
// captured on it, or runs there.
TEST_F(GraphStreamsTest, ACaptureIsOfTheStreamOfThen) {
  const std::vector<float> expected = Expected();
  Host host("adamw");
  Engine* const engine = host.engine();
  int step = 0;
  const auto replay = [&] {
    host.CopyGrads(++step, true);
    ASSERT_OK(host.Replay(Clipped()));
  };
  ASSERT_OK(host.Capture(Clipped()));
  replay();
  std::unique_ptr<HostsStream> before;
  for (int change = 0; change < 2; ++change) {
    auto next = std::make_unique<HostsStream>();
    ASSERT_OK(host.SetStream(next->get()));
    before = std::move(next);
    replay();
    ASSERT_OK(engine->AwaitStep());
    ASSERT_OK(host.Capture(Clipped()));
    replay();
  }
  ASSERT_OK(host.SetStream(host.stream().get()));
  before.reset();
  replay();
  EXPECT_TRUE(host.Params() == expected);
  EXPECT_EQ(engine->step(), kSteps);
}

// The capture goes on, and so does the engine with the stream that it has.
TEST_F(GraphStreamsTest, NoStreamIsSetWhileOneIsCaptured) {
  const HostsStream other;
  Host host("adamw");
  Engine* const engine = host.engine();
  const auto expect_refused = [&](std::string_view text) {
    for (const cuda::CuStream stream : {other.get(), cuda::CuStream(nullptr)}) {
      ExpectError(host.SetStream(stream), StatusCode::kFailedPrecondition,
                  {"set_stream", text});
    }
  };
  ASSERT_OK(host.CaptureWith([&]() -> Status {
    expect_refused("captures the work of its stream");
    SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
    expect_refused("capture_end");
    SHARD_RETURN_IF_ERROR(engine->Step(Clipped(), nullptr));
    expect_refused("capture_end");
    SHARD_RETURN_IF_ERROR(engine->ZeroGrad());
    SHARD_RETURN_IF_ERROR(engine->CaptureEnd());
    expect_refused("captures the work of its stream");
    return Status();
  }));
  const auto replay = [&](int step) {
    host.CopyGrads(step, true);
    ASSERT_OK(host.Replay(Clipped()));
  };
  replay(1);
  testing::fake_cuda::SetCaptured(other.get());
  expect_refused("the host captures");
  testing::fake_cuda::SetCaptured(nullptr);
  EXPECT_EQ(host.current(), host.stream().get());
  replay(2);
  ASSERT_OK(host.SetStream(other.get()));
  replay(3);
  EXPECT_TRUE(host.Params() == Expected(3));
  EXPECT_EQ(engine->step(), 3);
  ASSERT_OK(host.SetStream(host.stream().get()));
}

}  // namespace
}  // namespace shard::cuda_graph_streams_test
