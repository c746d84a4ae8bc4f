// SPDX-License-Identifier: Apache-2.0
//
// Streams and events of the fake driver keep the driver's order, and a seed
// chooses among the orders that are left.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/fake_cuda/driver_testing.h"

namespace shard::streams_test {
namespace {

using namespace testing::fake_cuda;

using StreamsTest = DriverTest;

TEST_F(StreamsTest, AStreamRunsInItsOrder) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  for (int i = 1; i <= 20; ++i)
    Set(memory, static_cast<unsigned char>(i), stream);
  EXPECT_EQ(Read(memory, stream), 20);
}

TEST_F(StreamsTest, AStreamWaitsForAnEvent) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    TearDown();
    Options options;
    options.seed = seed;
    options.max_delay = std::chrono::microseconds(50);
    Begin(options);
    const CuStream a = MakeStream();
    const CuStream b = MakeStream();
    const CuPointer memory = MakeMemory();
    for (int i = 1; i <= 20; ++i) {
      const CuStream stream = i % 2 == 0 ? a : b;
      Set(memory, static_cast<unsigned char>(i), stream);
      EXPECT_CU(api_.StreamWaitEvent(i % 2 == 0 ? b : a, Record(stream), 0));
    }
    EXPECT_EQ(Read(memory, b), 20);
  }
}

TEST_F(StreamsTest, WorkIsAsynchronous) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  Pause();
  Set(memory, 1, stream);
  const CuEvent event = Record(stream);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(api_.EventQuery(event), CuResult::kNotReady);
  }
  EXPECT_EQ(NumPending(), 2u);
  Resume();
  EXPECT_CU(Await(event));
  EXPECT_EQ(NumPending(), 0u);
}

TEST_F(StreamsTest, APauseLetsSomeOperationsBegin) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  Set(memory, 1, stream);
  Synchronize(stream);
  Pause(3);
  Set(memory, 2, stream);
  const CuEvent second = Record(stream);
  Set(memory, 3, stream);
  Set(memory, 4, stream);
  const CuEvent last = Record(stream);
  EXPECT_CU(Await(second));
  while (NumPending() > 2) std::this_thread::yield();
  EXPECT_EQ(api_.EventQuery(last), CuResult::kNotReady);
  EXPECT_EQ(NumPending(), 2u);
  Resume();
  EXPECT_EQ(Read(memory, stream), 4);
}

TEST_F(StreamsTest, TheLegacyStreamIsOrderedWithBlockingStreams) {
  for (const bool blocking : {true, false}) {
    SCOPED_TRACE(blocking);
    const CuStream other = MakeStream(blocking ? 0 : cuda::kStreamNonBlocking);
    const CuPointer memory = MakeMemory();
    Set(memory, 1, other);
    Set(memory, 2, cuda::LegacyStream());
    Set(memory, 3, other);
    Set(memory, 4, nullptr);  // Another name of the legacy stream.
    if (blocking) {
      EXPECT_EQ(Read(memory, cuda::LegacyStream()), 4);
      EXPECT_EQ(ViolationText(), "");
    } else {
      RunAll();
      EXPECT_GE(Violations().size(), 3u);
      ClearViolations();
      Synchronize(other);
    }
  }
}

TEST_F(StreamsTest, TheLegacyStreamWaitsForADestroyedStream) {
  CuStream other = nullptr;
  EXPECT_CU(api_.StreamCreate(&other, 0));
  const CuPointer memory = MakeMemory();
  Pause();
  Set(memory, 1, other);
  EXPECT_CU(api_.StreamDestroy(other));
  EXPECT_EQ(api_.StreamDestroy(other), CuResult::kInvalidHandle);
  Set(memory, 2, nullptr);
  Resume();
  EXPECT_EQ(Read(memory, nullptr), 2);
}

// The place of a stream in the clocks is free once the host knows of its work.
TEST_F(StreamsTest, AStreamComesAfterADestroyedOneOnlyIfTheHostDoes) {
  for (const bool knows : {false, true}) {
    SCOPED_TRACE(knows);
    const CuPointer memory = MakeMemory();
    CuStream first = nullptr;
    EXPECT_CU(api_.StreamCreate(&first, 0));
    Set(memory, 1, first);
    if (knows) {
      Synchronize(first);
    } else {
      RunAll();
    }
    EXPECT_CU(api_.StreamDestroy(first));
    const CuStream second = MakeStream();
    Set(memory, 2, second);
    RunAll();
    EXPECT_EQ(Violations().size(), knows ? 0u : 1u);
    ClearViolations();
    Synchronize(second);
  }
}

TEST_F(StreamsTest, PlacesOfStreamsThatEndedAreUsedAgain) {
  for (int i = 0; i < 50; ++i) {
    CuStream stream = nullptr;
    EXPECT_CU(api_.StreamCreate(&stream, 0));
    Synchronize(stream);
    EXPECT_CU(api_.StreamDestroy(stream));
  }
  const CuPointer memory = MakeMemory();
  const CuStream streams[] = {MakeStream(), MakeStream()};
  for (const CuStream stream : streams) Set(memory, 1, stream);
  RunAll();
  const std::string text = ViolationText();
  const std::string name = " on stream ";
  const size_t at = text.find(name);
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_LT(std::stoi(text.substr(at + name.size())), 10) << text;
  ClearViolations();
}

TEST_F(StreamsTest, AnEventThatWasNotRecordedHoldsNothingBack) {
  const CuStream stream = MakeStream();
  const CuEvent event = MakeEvent();
  EXPECT_CU(api_.EventQuery(event));
  EXPECT_CU(api_.StreamWaitEvent(stream, event, 0));
  Synchronize(stream);
}

TEST_F(StreamsTest, AWaitIsForTheRecordBeforeIt) {
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuPointer memory = MakeMemory();
  const CuPointer other = MakeMemory();
  const CuEvent event = MakeEvent();
  Pause();
  Set(memory, 1, a);
  EXPECT_CU(api_.EventRecord(event, a));
  EXPECT_CU(api_.StreamWaitEvent(b, event, 0));
  Set(other, 1, a);
  EXPECT_CU(api_.EventRecord(event, a));
  Copy(memory, memory, b);  // After the first record.
  EXPECT_EQ(ViolationText(), "");
  Set(other, 2, b);  // Not after the second.
  ExpectViolation(ViolationKind::kUnordered, "(no. 3 on stream 3",
                  "(no. 3 on stream 2");
  Resume();
  EXPECT_CU(Await(event));
  Synchronize(b);
}

TEST_F(StreamsTest, TheTimeBetweenTwoRecordsIsToldOnceBothAreDone) {
  const CuStream stream = MakeStream();
  CuEvent events[2];
  for (CuEvent& event : events) EXPECT_CU(api_.EventCreate(&event, 0));
  float milliseconds = -1;
  EXPECT_EQ(api_.EventElapsedTime(&milliseconds, events[0], events[1]),
            CuResult::kInvalidHandle);
  EXPECT_CU(api_.EventRecord(events[0], stream));
  EXPECT_CU(Await(events[0]));
  Pause();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_CU(api_.EventRecord(events[1], stream));
  EXPECT_EQ(api_.EventElapsedTime(&milliseconds, events[0], events[1]),
            CuResult::kNotReady);
  const std::chrono::duration<float, std::milli> paused =
      std::chrono::steady_clock::now() - begin;
  Resume();
  EXPECT_CU(Await(events[1]));
  EXPECT_CU(api_.EventElapsedTime(&milliseconds, events[0], events[1]));
  EXPECT_GE(milliseconds, paused.count());
  float back = 0;
  EXPECT_CU(api_.EventElapsedTime(&back, events[1], events[0]));
  EXPECT_EQ(back, -milliseconds);
  // Without a time.
  EXPECT_EQ(api_.EventElapsedTime(&milliseconds, events[0], Record(stream)),
            CuResult::kInvalidHandle);
  for (const CuEvent event : events) EXPECT_CU(api_.EventDestroy(event));
}

TEST_F(StreamsTest, AnEventMayBeDestroyedWhileItIsPending) {
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuPointer memory = MakeMemory();
  CuEvent event = nullptr;
  EXPECT_CU(api_.EventCreate(&event, 0));
  Pause();
  Set(memory, 1, a);
  EXPECT_CU(api_.EventRecord(event, a));
  EXPECT_CU(api_.StreamWaitEvent(b, event, 0));
  EXPECT_CU(api_.EventDestroy(event));
  EXPECT_EQ(api_.EventQuery(event), CuResult::kInvalidHandle);
  Set(memory, 2, b);
  Resume();
  EXPECT_EQ(Read(memory, b), 2);
}

class OrderTest : public DriverTest {
 protected:
  // Returns which of two writers without an order was the last, for each of
  // many rounds.
  std::string Order(uint64_t seed) {
    Options options;
    options.seed = seed;
    options.lazy = true;
    TearDown();
    Begin(options);
    const CuStream a = MakeStream();
    const CuStream b = MakeStream();
    const CuPointer memory = MakeMemory();
    std::string order;
    for (int i = 0; i < 20; ++i) {
      Set(memory, 'a', a, 1);
      Set(memory, 'b', b, 1);
      EXPECT_CU(api_.StreamWaitEvent(a, Record(b), 0));
      Synchronize(a);
      order.push_back(static_cast<char>(Read(memory, a)));
    }
    ClearViolations();
    return order;
  }
};

TEST_F(OrderTest, ASeedChoosesTheOrder) {
  const std::string first = Order(1);
  EXPECT_EQ(first, Order(1));
  EXPECT_NE(first, Order(2));
  EXPECT_NE(first.find('a'), std::string::npos);
  EXPECT_NE(first.find('b'), std::string::npos);
}

TEST_F(StreamsTest, ALazyDeviceDoesOnlyWhatIsAwaited) {
  Options options;
  options.lazy = true;
  options.queries_before_progress = 2;
  TearDown();
  Begin(options);
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuStream c = MakeStream();
  const CuPointer memory = MakeMemory();
  Set(memory, 1, a);
  EXPECT_CU(api_.StreamWaitEvent(b, Record(a), 0));
  const CuEvent awaited = Record(b);
  const CuEvent later = Record(b);
  const CuEvent other = Record(c);
  EXPECT_EQ(api_.EventQuery(awaited), CuResult::kNotReady);
  EXPECT_EQ(api_.EventQuery(awaited), CuResult::kNotReady);
  EXPECT_EQ(NumPending(), 6u);
  EXPECT_CU(Await(awaited));
  EXPECT_EQ(NumPending(), 2u);
  EXPECT_EQ(api_.EventQuery(later), CuResult::kNotReady);
  EXPECT_EQ(api_.EventQuery(other), CuResult::kNotReady);
  RunAll();
  EXPECT_CU(api_.EventQuery(later));
  EXPECT_CU(api_.EventQuery(other));
}

// The host waits for what it has given a lazy device, not for other threads.
TEST_F(StreamsTest, AWaitOfTheHostEndsWhileOthersEnqueue) {
  TearDown();
  Options options;
  options.lazy = true;
  Begin(options);
  const CuPointer memory = MakeMemory();
  const CuStream stream = MakeStream();
  Set(memory, 1, stream);
  std::atomic<bool> stop = false;
  std::thread other([&] {
    ASSERT_CU(api_.CtxPushCurrent(context_));
    const CuEvent event = MakeEvent();
    while (!stop) EXPECT_CU(api_.EventRecord(event, stream));
    CuContext popped = nullptr;
    EXPECT_CU(api_.CtxPopCurrent(&popped));
  });
  for (int i = 0; i < 20; ++i) {
    CuPointer freed = 0;
    EXPECT_CU(api_.MemAlloc(&freed, 1));
    EXPECT_CU(api_.MemFree(freed));
  }
  stop = true;
  other.join();
}

TEST_F(StreamsTest, ManyThreadsEnqueue) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      ASSERT_CU(api_.CtxPushCurrent(context_));
      CuStream stream = nullptr;
      CuEvent event = nullptr;
      CuPointer memory = 0;
      ASSERT_CU(api_.StreamCreate(&stream, cuda::kStreamNonBlocking));
      ASSERT_CU(api_.EventCreate(&event, 0));
      ASSERT_CU(api_.MemAlloc(&memory, kBytes));
      for (int i = 0; i < 100; ++i) {
        const auto value = static_cast<unsigned char>(i);
        unsigned char host = 255;
        Set(memory, value, stream);
        Copy(At(&host), memory, stream, 1);
        EXPECT_CU(api_.EventRecord(event, stream));
        EXPECT_CU(Await(event));
        EXPECT_EQ(host, value);
      }
      EXPECT_CU(api_.MemFree(memory));
      EXPECT_CU(api_.EventDestroy(event));
      EXPECT_CU(api_.StreamDestroy(stream));
      CuContext popped = nullptr;
      EXPECT_CU(api_.CtxPopCurrent(&popped));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace shard::streams_test
