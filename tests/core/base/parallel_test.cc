// SPDX-License-Identifier: Apache-2.0

#include "core/base/parallel.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <barrier>
#include <mutex>
#include <new>
#include <set>
#include <thread>

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

}  // namespace
}  // namespace shard::parallel_test
