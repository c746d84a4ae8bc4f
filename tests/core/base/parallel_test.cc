// SPDX-License-Identifier: Apache-2.0

#include "core/base/parallel.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/core/base/expect_status.h"

namespace shard::parallel_test {
namespace {

TEST(RunOnThreadsTest, EveryIndexOnItsOwnThread) {
  std::barrier<> all(4);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<int> indices;
  ASSERT_TRUE(RunOnThreads(4, [&](int index) {
                // Only threads that run at the same time pass.
                all.arrive_and_wait();
                const std::lock_guard<std::mutex> lock(mutex);
                threads.insert(std::this_thread::get_id());
                indices.insert(index);
                return Status();
              }).ok());
  EXPECT_EQ(threads.size(), 4u);
  EXPECT_EQ(indices, (std::set<int>{0, 1, 2, 3}));
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 1u);
}

TEST(RunOnThreadsTest, TheErrorOfTheLowestIndex) {
  std::atomic<int> calls{0};
  const Status status = RunOnThreads(4, [&](int index) -> Status {
    ++calls;
    if (index >= 2) return OutOfRange("index ", index);
    return Status();
  });
  ExpectError(status, StatusCode::kOutOfRange, {"index 2"});
  EXPECT_EQ(calls, 4);
}

TEST(RunOnThreadsTest, MemoryThatRunsOutIsAnError) {
  for (const int thrower : {0, 1}) {
    const Status status = RunOnThreads(2, [&](int index) -> Status {
      if (index == thrower) throw std::bad_alloc();
      return Status();
    });
    ExpectError(status, StatusCode::kResourceExhausted, {"out of memory"});
  }
}

TEST(RunOnThreadsTest, ThreadsBlockSignalsAndTheCallerKeepsItsMask) {
  sigset_t before;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  ASSERT_FALSE(::sigismember(&before, SIGUSR1));
  std::atomic<bool> blocked{false};
  ASSERT_TRUE(RunOnThreads(2, [&](int index) {
                sigset_t mask;
                ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
                if (index == 1) blocked = ::sigismember(&mask, SIGUSR1) == 1;
                return Status();
              }).ok());
  EXPECT_TRUE(blocked);
  sigset_t after;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &after), 0);
  EXPECT_FALSE(::sigismember(&after, SIGUSR1));
}

TEST(ParallelForTest, EveryIndexOnceAndScratchOfOneThreadAtATime) {
  constexpr size_t kCount = 1000;
  for (const int threads : {-1, 0, 1, 3, 16}) {
    std::vector<std::atomic<int>> calls(kCount);
    std::vector<std::atomic<int>> users(16);
    std::atomic<bool> shared{false};
    EXPECT_OK(ParallelFor(kCount, threads, [&](size_t index, int thread) {
      auto& user = users[static_cast<size_t>(thread)];
      if (++user != 1 || thread >= std::max(threads, 1)) shared = true;
      ++calls[index];
      --user;
      return Status();
    }));
    EXPECT_FALSE(shared) << threads;
    for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(calls[i], 1) << i;
  }
}

TEST(ParallelForTest, NoMoreThreadsThanCalls) {
  std::atomic<int> highest{-1};
  EXPECT_OK(ParallelFor(2, 1 << 30, [&](size_t, int thread) {
    int before = highest;
    while (before < thread && !highest.compare_exchange_weak(before, thread)) {
    }
    return Status();
  }));
  EXPECT_LT(highest, 2);
  EXPECT_OK(ParallelFor(0, 4, [](size_t, int) { return Internal("called"); }));
}

TEST(ParallelForTest, AnErrorEndsTheLoopAndTheLowestIndexIsReported) {
  // All four threads fail at once, at the first index that each has taken.
  std::barrier<> all(4);
  std::atomic<int> calls{0};
  const Status status = ParallelFor(100, 4, [&](size_t index, int) -> Status {
    ++calls;
    all.arrive_and_wait();
    return OutOfRange("index ", index);
  });
  ExpectError(status, StatusCode::kOutOfRange, {"index 0"});
  EXPECT_EQ(calls, 4);
}

TEST(ParallelForTest, ACancelDoesNotHideAnError) {
  std::barrier<> all(3);
  const auto run = [&](size_t error) {
    return ParallelFor(3, 3, [&, error](size_t index, int) -> Status {
      all.arrive_and_wait();
      if (index == error) return OutOfRange("index ", index);
      return Cancelled("index ", index);
    });
  };
  ExpectError(run(2), StatusCode::kOutOfRange, {"index 2"});
  ExpectError(run(3), StatusCode::kCancelled, {"index 0"});
}

TEST(ParallelForTest, AnExceptionEndsTheLoop) {
  int calls = 0;
  const auto run = [&](auto raise) {
    calls = 0;
    return ParallelFor(100, 1, [&](size_t index, int) -> Status {
      ++calls;
      if (index == 3) raise();
      return Status();
    });
  };
  ExpectError(run([] { throw std::bad_alloc(); }),
              StatusCode::kResourceExhausted, {"out of memory"});
  EXPECT_EQ(calls, 4);
  ExpectError(run([] { throw std::runtime_error("a sink failed"); }),
              StatusCode::kInternal, {"a sink failed"});
  EXPECT_EQ(calls, 4);
  ExpectError(run([] { throw 7; }), StatusCode::kInternal, {"unknown type"});
  EXPECT_EQ(calls, 4);
}

}  // namespace
}  // namespace shard::parallel_test
