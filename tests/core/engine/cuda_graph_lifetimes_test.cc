// SPDX-License-Identifier: Apache-2.0
//
// Engines that end, or whose process forks, while they capture, and two engines
// in one graph; on the fake of the driver.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/device/cuda/driver.h"
#include "core/device/cuda/driver_api.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/fake_cuda/graph_api.h"

namespace shard::cuda_graph_lifetimes_test {
namespace {

using cuda::CuCaptureMode;
using cuda::CuGraph;
using cuda::CuResult;
using cuda_graphs::Host;
using cuda_graphs::MakePlan;
using cuda_training::Clipped;
using cuda_training::Fill;
using cuda_training::HostsStream;
using cuda_training::MakeEngine;
using cuda_training::OpenLocal;
using testing::FakeCudaTest;

class GraphLifetimesTest : public FakeCudaTest {};

// Its memory stays allocated, since nothing can wait for the host's stream. The
// host ends its capture, and trains with another engine.
TEST_F(GraphLifetimesTest, AnEngineIsFreedInACapture) {
  const cuda::GraphApi graphs = cuda::GraphApi::Load();
  for (const int calls : {1, 2, 3}) {
    SCOPED_TRACE(StrCat(calls, " calls before"));
    {
      const HostsStream stream;
      auto engine = MakeEngine(MakePlan("adamw"), OpenLocal());
      ASSERT_OK(engine);
      ASSERT_OK((*engine)->SetStream(stream.get()));
      ASSERT_OK(Fill(engine->get()));
      ASSERT_EQ(
          graphs.StreamBeginCapture(stream.get(), CuCaptureMode::kThreadLocal),
          CuResult::kSuccess);
      ASSERT_OK((*engine)->CaptureBegin());
      if (calls > 1) ASSERT_OK((*engine)->Step(Clipped(), nullptr));
      if (calls > 2) ASSERT_OK((*engine)->CaptureEnd());
      const auto begin = std::chrono::steady_clock::now();
      engine->reset();
      const std::chrono::duration<double> took =
          std::chrono::steady_clock::now() - begin;
      EXPECT_LT(took.count(), 10);
      CuGraph graph = nullptr;
      EXPECT_EQ(graphs.StreamEndCapture(stream.get(), &graph),
                CuResult::kSuccess);
      EXPECT_EQ(graphs.GraphDestroy(graph), CuResult::kSuccess);
      Host other("adamw");
      other.CopyGrads(1, true);
      EXPECT_OK(other.engine()->Step(Clipped(), nullptr));
      EXPECT_EQ(other.engine()->step(), 1);
    }
    testing::fake_cuda::RunAll();
    EXPECT_EQ(testing::fake_cuda::ViolationText(), "");
    testing::ResetWithKernels();
  }
}

// A driver may hang or crash in a child. What calls of the engine do there is
// the C interface's, which lets none come here.
TEST_F(GraphLifetimesTest, AChildOfForkLeavesACaptureAlone) {
  Host host("adamw");
  Engine* const engine = host.engine();
  const auto free_engine = [&] {
    const uint64_t calls = testing::fake_cuda::CountInChild();
    host.FreeEngine();
    EXPECT_EQ(testing::fake_cuda::CountInChild(), calls);
  };
  ASSERT_OK(host.CaptureWith([&]() -> Status {
    SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
    testing::InChild(free_engine);
    SHARD_RETURN_IF_ERROR(engine->Step(Clipped(), nullptr));
    return engine->CaptureEnd();
  }));
  host.CopyGrads(1, true);
  ASSERT_OK(engine->BeforeReplay(Clipped()));
  testing::InChild(free_engine);
  host.Launch();
  ASSERT_OK(engine->AwaitStep());
  EXPECT_EQ(engine->step(), 1);
}

// Waits for the work of a stream.
void Await(cuda::CuStream stream) {
  const cuda::DriverApi& api = (*cuda::Driver::Load())->api();
  cuda::CuEvent event = nullptr;
  ASSERT_EQ(api.EventCreate(&event, cuda::kEventDisableTiming),
            CuResult::kSuccess);
  ASSERT_EQ(api.EventRecord(event, stream), CuResult::kSuccess);
  while (api.EventQuery(event) == CuResult::kNotReady) {
    std::this_thread::yield();
  }
  EXPECT_EQ(api.EventDestroy(event), CuResult::kSuccess);
}

// As those of two models that train together, with rates of their own.
TEST_F(GraphLifetimesTest, TwoEnginesAreInOneGraph) {
  std::vector<float> expected[2];
  for (const bool replays : {false, true}) {
    Host first("adamw");
    Host second("lamb");
    Engine* const engines[] = {first.engine(), second.engine()};
    const auto each = [&](const auto& call) -> Status {
      for (Engine* const engine : engines) {
        SHARD_RETURN_IF_ERROR(call(engine));
      }
      return Status();
    };
    if (replays) {
      ASSERT_OK(engines[1]->SetStream(first.stream().get()));
      ASSERT_OK(first.CaptureWith([&] {
        return each([](Engine* engine) -> Status {
          SHARD_RETURN_IF_ERROR(engine->CaptureBegin());
          SHARD_RETURN_IF_ERROR(engine->Step(Clipped(), nullptr));
          return engine->CaptureEnd();
        });
      }));
    }
    for (int step = 1; step <= 10; ++step) {
      ASSERT_OK(engines[0]->SetHyper(-1, "lr", 0.01 * step));
      ASSERT_OK(engines[1]->SetHyper(-1, "lr", 0.02 / step));
      ASSERT_OK(each([](Engine* engine) { return engine->AwaitStep(); }));
      first.CopyGrads(step, true);
      second.CopyGrads(step + 1, true);
      Await(second.stream().get());
      if (replays) {
        ASSERT_OK(each(
            [](Engine* engine) { return engine->BeforeReplay(Clipped()); }));
        first.Launch();
      } else {
        ASSERT_OK(each(
            [](Engine* engine) { return engine->Step(Clipped(), nullptr); }));
      }
    }
    ASSERT_OK(each([](Engine* engine) { return engine->Synchronize(0); }));
    EXPECT_EQ(engines[0]->step(), 10);
    EXPECT_EQ(engines[1]->step(), 10);
    const std::vector<float> params[] = {first.Params(), second.Params()};
    for (const int i : {0, 1}) {
      if (replays) {
        EXPECT_TRUE(params[i] == expected[i]) << "engine " << i;
      } else {
        expected[i] = params[i];
      }
    }
    // The second engine's stream is the first host's.
    ASSERT_OK(engines[1]->SetStream(second.stream().get()));
  }
}

}  // namespace
}  // namespace shard::cuda_graph_lifetimes_test
