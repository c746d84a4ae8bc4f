// SPDX-License-Identifier: Apache-2.0
//
// While the host captures the work of a stream, the fake driver forbids what a
// driver does.

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <utility>

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
  EXPECT_EQ(ViolationText(), "");
  EXPECT_CU(api_.StreamWaitEvent(other, event, 0));
  ASSERT_EQ(Violations().size(), 1u);
  EXPECT_EQ(Violations()[0].kind, ViolationKind::kDrawnIn);
  ClearViolations();
  CuCaptureMode mode = CuCaptureMode::kRelaxed;
  EXPECT_CU(api_.ThreadExchangeCaptureMode(&mode));
  EXPECT_EQ(api_.EventQuery(event), CuResult::kCapturedEvent);
  EXPECT_CU(api_.ThreadExchangeCaptureMode(&mode));
}

// Each call that a capture forbids makes it invalid. Until its end, the stream
// takes no work, as of a driver; the end gives no graph, and the stream works.
TEST_F(CaptureTest, AForbiddenCallMakesTheCaptureInvalid) {
  const auto graphs = cuda::GraphApi::Load();
  const CuStream captured = MakeStream();
  const CuStream other = MakeStream();
  const CuPointer memory = MakeMemory();
  const CuEvent recorded = Record(other);
  Synchronize(other);
  CuEvent own = nullptr;  // Recorded in the capture.
  CuPointer made = 0;
  using Call = std::function<CuResult()>;
  const std::pair<Call, CuResult> forbidden[] = {
      {[&] { return api_.MemAlloc(&made, 1); },
       CuResult::kStreamCaptureUnsupported},
      {[&] { return api_.EventQuery(recorded); },
       CuResult::kStreamCaptureUnsupported},
      {[&] { return StreamSynchronize(captured); },
       CuResult::kStreamCaptureUnsupported},
      {[&] { return api_.StreamWaitEvent(captured, recorded, 0); },
       CuResult::kStreamCaptureIsolation},
  };
  const std::pair<Call, CuResult> later[] = {
      {[&] { return api_.MemsetD8Async(memory, 2, 1, captured); },
       CuResult::kStreamCaptureInvalidated},
      {[&] { return api_.MemcpyAsync(memory, memory + 1, 1, captured); },
       CuResult::kStreamCaptureInvalidated},
      {[&] { return LaunchInLibrary(captured, "kernel", {}, [] {}); },
       CuResult::kStreamCaptureInvalidated},
      {[&] { return api_.EventRecord(recorded, captured); },
       CuResult::kStreamCaptureInvalidated},
      {[&] { return api_.StreamWaitEvent(captured, own, 0); },
       CuResult::kStreamCaptureInvalidated},
      {[&] { return StreamSynchronize(captured); },
       CuResult::kStreamCaptureInvalidated},
      {[&] { return api_.StreamWaitEvent(other, own, 0); },
       CuResult::kInvalidValue},
  };
  for (const auto& [call, error] : forbidden) {
    EXPECT_CU(graphs.StreamBeginCapture(captured, CuCaptureMode::kThreadLocal));
    Set(memory, 1, captured);
    own = Record(captured);
    EXPECT_EQ(call(), error);
    EXPECT_EQ(StatusOf(captured), CuCaptureStatus::kInvalidated);
    for (const auto& [use, refused] : later) EXPECT_EQ(use(), refused);
    EXPECT_EQ(StatusOf(captured), CuCaptureStatus::kInvalidated);
    EXPECT_CU(api_.MemsetD8Async(memory, 0, 1, other));
    cuda::CuGraph graph = nullptr;
    EXPECT_EQ(graphs.StreamEndCapture(captured, &graph),
              CuResult::kStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(StatusOf(captured), CuCaptureStatus::kNone);
    Synchronize(other);
    EXPECT_EQ(Read(memory, captured), 0);
    EXPECT_CU(graphs.StreamBeginCapture(captured, CuCaptureMode::kThreadLocal));
    EXPECT_CU(graphs.StreamEndCapture(captured, &graph));
    EXPECT_CU(graphs.GraphDestroy(graph));
  }
}

// An event of a capture is for its stream alone, and may not be queried.
TEST_F(CaptureTest, ARelaxedCaptureBecomesInvalidByItsEvents) {
  const auto graphs = cuda::GraphApi::Load();
  const CuStream captured = MakeStream();
  EXPECT_CU(graphs.StreamBeginCapture(captured, CuCaptureMode::kRelaxed));
  const CuEvent event = Record(captured);
  EXPECT_EQ(api_.EventQuery(event), CuResult::kCapturedEvent);
  cuda::CuGraph graph = nullptr;
  EXPECT_EQ(graphs.StreamEndCapture(captured, &graph),
            CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
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
  cuda::CuGraph second = nullptr;
  std::thread other([&] {
    ASSERT_CU(api_.CtxPushCurrent(context_));
    EXPECT_CU(api_.EventQuery(event));
    EXPECT_CU(graphs.StreamBeginCapture(b, cuda::CuCaptureMode::kGlobal));
    Set(memory, 2, b);
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

TEST_F(CaptureTest, CapturesAreNotMerged) {
  const cuda::GraphApi graphs = cuda::GraphApi::Load();
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  for (const CuStream stream : {a, b}) {
    EXPECT_CU(graphs.StreamBeginCapture(stream, CuCaptureMode::kThreadLocal));
  }
  EXPECT_EQ(api_.StreamWaitEvent(b, Record(a), 0),
            CuResult::kStreamCaptureMerge);
  for (const CuStream stream : {a, b}) {
    cuda::CuGraph graph = nullptr;
    EXPECT_EQ(graphs.StreamEndCapture(stream, &graph),
              CuResult::kStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
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
