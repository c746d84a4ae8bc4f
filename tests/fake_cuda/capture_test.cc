// SPDX-License-Identifier: Apache-2.0
//
// While the host captures the work of a stream, the fake driver forbids what a
// driver does.

#include <gtest/gtest.h>

#include <thread>

#include "tests/fake_cuda/driver_testing.h"
#include "tests/fake_cuda/graph_api.h"

namespace shard::capture_test {
namespace {

using namespace testing::fake_cuda;
using cuda::CuCaptureMode;
using cuda::CuCaptureStatus;

class CaptureTest : public DriverTest {
 protected:
  void TearDown() override {
    SetCaptured(nullptr);
    DriverTest::TearDown();
  }

  CuCaptureStatus StatusOf(CuStream stream) {
    CuCaptureStatus status = CuCaptureStatus::kInvalidated;
    EXPECT_CU(api_.StreamIsCapturing(stream, &status));
    return status;
  }
};

TEST_F(CaptureTest, ThreadsSayThatTheyKnowWhatTheyDo) {
  const CuStream captured = MakeStream();
  const CuStream other = MakeStream();
  const CuEvent event = Record(other);
  SetCaptured(captured);
  CuPointer memory = 0;
  EXPECT_EQ(api_.EventQuery(event), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(api_.MemAlloc(&memory, 1), CuResult::kStreamCaptureUnsupported);
  CuCaptureMode mode = CuCaptureMode::kRelaxed;
  EXPECT_CU(api_.ThreadExchangeCaptureMode(&mode));
  EXPECT_EQ(mode, CuCaptureMode::kGlobal);
  EXPECT_CU(Await(event));
  EXPECT_CU(api_.MemAlloc(&memory, 1));
  EXPECT_CU(api_.MemFree(memory));
  EXPECT_CU(api_.ThreadExchangeCaptureMode(&mode));
  EXPECT_EQ(mode, CuCaptureMode::kRelaxed);
  EXPECT_EQ(api_.EventQuery(event), CuResult::kStreamCaptureUnsupported);
}

TEST_F(CaptureTest, AStreamTellsWhetherItIsCaptured) {
  const CuStream captured = MakeStream();
  const CuStream other = MakeStream();
  SetCaptured(captured);
  EXPECT_EQ(StatusOf(captured), CuCaptureStatus::kActive);
  EXPECT_EQ(StatusOf(other), CuCaptureStatus::kNone);
  CuCaptureStatus status = CuCaptureStatus::kNone;
  EXPECT_EQ(api_.StreamIsCapturing(cuda::LegacyStream(), &status),
            CuResult::kStreamCaptureImplicit);
  SetCaptured(nullptr);
  EXPECT_EQ(StatusOf(captured), CuCaptureStatus::kNone);
}

TEST_F(CaptureTest, CapturedWorkDoesNotRun) {
  const CuStream captured = MakeStream();
  const CuPointer memory = MakeMemory();
  Set(memory, 1, captured);
  EXPECT_EQ(Read(memory, captured), 1);
  SetCaptured(captured);
  Set(memory, 2, captured);
  SetCaptured(nullptr);
  EXPECT_EQ(Read(memory, captured), 1);
}

TEST_F(CaptureTest, CapturedWorkWaitsForNoOther) {
  const CuStream captured = MakeStream();
  const CuEvent event = Record(MakeStream());
  SetCaptured(captured);
  EXPECT_EQ(api_.StreamWaitEvent(captured, event, 0),
            CuResult::kStreamCaptureIsolation);
}

TEST_F(CaptureTest, AnEventOfACaptureIsNotForOthers) {
  const CuStream captured = MakeStream();
  const CuStream other = MakeStream();
  const CuEvent event = MakeEvent();
  SetCaptured(captured);
  EXPECT_CU(api_.EventRecord(event, captured));
  EXPECT_CU(api_.StreamWaitEvent(captured, event, 0));
  CuCaptureMode mode = CuCaptureMode::kRelaxed;
  EXPECT_CU(api_.ThreadExchangeCaptureMode(&mode));
  EXPECT_EQ(api_.EventQuery(event), CuResult::kCapturedEvent);
  EXPECT_CU(api_.ThreadExchangeCaptureMode(&mode));
  EXPECT_EQ(ViolationText(), "");
  EXPECT_CU(api_.StreamWaitEvent(other, event, 0));
  ASSERT_EQ(Violations().size(), 1u);
  EXPECT_EQ(Violations()[0].kind, ViolationKind::kDrawnIn);
  ClearViolations();
}

// As a driver, the fake gives no graph after a call that a capture forbids.
TEST_F(CaptureTest, AForbiddenCallMakesTheCaptureInvalid) {
  const auto graphs = cuda::GraphApi::Load();
  const CuStream captured = MakeStream();
  for (const bool forbidden : {true, false}) {
    EXPECT_CU(graphs.StreamBeginCapture(captured, CuCaptureMode::kThreadLocal));
    CuPointer memory = 0;
    if (forbidden) {
      EXPECT_EQ(api_.MemAlloc(&memory, 1), CuResult::kStreamCaptureUnsupported);
    }
    cuda::CuGraph graph = nullptr;
    const CuResult ended = graphs.StreamEndCapture(captured, &graph);
    if (forbidden) {
      EXPECT_EQ(ended, CuResult::kStreamCaptureInvalidated);
      EXPECT_EQ(graph, nullptr);
    } else {
      EXPECT_CU(ended);
      EXPECT_CU(graphs.GraphDestroy(graph));
    }
    EXPECT_EQ(StatusOf(captured), CuCaptureStatus::kNone);
  }
}

// Threads capture streams of their own at once.
TEST_F(CaptureTest, StreamsAreCapturedAtOnce) {
  const cuda::GraphApi graphs = cuda::GraphApi::Load();
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuEvent event = Record(a);
  const CuPointer memory = MakeMemory();
  Synchronize(a);
  EXPECT_CU(graphs.StreamBeginCapture(a, cuda::CuCaptureMode::kThreadLocal));
  EXPECT_EQ(graphs.StreamBeginCapture(a, cuda::CuCaptureMode::kThreadLocal),
            CuResult::kInvalidValue);
  Set(memory, 1, a);
  const CuEvent captured = Record(a);
  cuda::CuGraph second = nullptr;
  std::thread other([&] {
    ASSERT_CU(api_.CtxPushCurrent(context_));
    EXPECT_CU(api_.EventQuery(event));
    EXPECT_CU(graphs.StreamBeginCapture(b, cuda::CuCaptureMode::kGlobal));
    Set(memory, 2, b);
    EXPECT_EQ(api_.StreamWaitEvent(b, captured, 0),
              CuResult::kStreamCaptureIsolation);
    cuda::CuGraph none = nullptr;
    EXPECT_EQ(graphs.StreamEndCapture(a, &none), CuResult::kInvalidValue);
    EXPECT_CU(graphs.StreamEndCapture(b, &second));
    CuContext popped = nullptr;
    EXPECT_CU(api_.CtxPopCurrent(&popped));
  });
  other.join();
  cuda::CuGraph first = nullptr;
  EXPECT_CU(graphs.StreamEndCapture(a, &first));
  EXPECT_CU(api_.EventQuery(event));
  const CuStream stream = MakeStream();
  int expected = 1;
  for (const cuda::CuGraph graph : {first, second}) {
    cuda::CuGraphExec exec = nullptr;
    EXPECT_CU(graphs.GraphInstantiate(&exec, graph, 0));
    EXPECT_CU(graphs.GraphDestroy(graph));
    EXPECT_CU(graphs.GraphLaunch(exec, stream));
    EXPECT_EQ(Read(memory, stream), expected++);
    EXPECT_CU(graphs.GraphExecDestroy(exec));
  }
}

// A thread is held back by its own captures and by those that are global, which
// then give no graph; others go on.
TEST_F(CaptureTest, AThreadIsHeldBackByGlobalCapturesOfOthers) {
  const cuda::GraphApi graphs = cuda::GraphApi::Load();
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuEvent event = Record(a);
  Synchronize(a);
  for (const CuCaptureMode mode :
       {CuCaptureMode::kThreadLocal, CuCaptureMode::kGlobal}) {
    const bool is_global = mode == CuCaptureMode::kGlobal;
    EXPECT_CU(graphs.StreamBeginCapture(a, CuCaptureMode::kRelaxed));
    EXPECT_CU(graphs.StreamBeginCapture(b, mode));
    std::thread other([&] {
      ASSERT_CU(api_.CtxPushCurrent(context_));
      EXPECT_EQ(
          api_.EventQuery(event),
          is_global ? CuResult::kStreamCaptureUnsupported : CuResult::kSuccess);
      CuContext popped = nullptr;
      EXPECT_CU(api_.CtxPopCurrent(&popped));
    });
    other.join();
    for (const CuStream stream : {a, b}) {
      cuda::CuGraph graph = nullptr;
      const bool is_invalid = stream == b && is_global;
      EXPECT_EQ(graphs.StreamEndCapture(stream, &graph),
                is_invalid ? CuResult::kStreamCaptureInvalidated
                           : CuResult::kSuccess);
      if (!is_invalid) {
        EXPECT_CU(graphs.GraphDestroy(graph));
      }
    }
  }
}

}  // namespace
}  // namespace shard::capture_test
