// SPDX-License-Identifier: Apache-2.0

#include "core/base/host_calls.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/core/base/in_child.h"

namespace shard::host_calls_test {
namespace {

TEST(HostCallsTest, AreOpenUntilTheyAreClosed) {
  HostCalls calls;
  EXPECT_TRUE(HostCalls::Call(&calls).is_open());
  calls.Close();
  EXPECT_FALSE(HostCalls::Call(&calls).is_open());
  calls.Close();
}

TEST(HostCallsTest, CloseWaitsForTheCallInProgress) {
  HostCalls calls;
  std::atomic<bool> entered = false;
  std::atomic<bool> closing = false;
  std::atomic<bool> closed = false;
  bool closed_meanwhile = true;
  std::thread host([&] {
    const HostCalls::Call call(&calls);
    entered = true;
    entered.notify_all();
    closing.wait(false);
    // Gives a Close that does not wait the time to return.
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    closed_meanwhile = closed;
  });
  entered.wait(false);
  closing = true;
  closing.notify_all();
  calls.Close();
  closed = true;
  host.join();
  EXPECT_FALSE(closed_meanwhile);
}

TEST(HostCallsTest, CloseWaitsForNobodyInAChildOfFork) {
  HostCalls calls;
  const HostCalls::Call call(&calls);
  testing::InChild([&] {
    ::alarm(10);  // Ends a child that waits, which InChild reports.
    calls.Close();
  });
  EXPECT_TRUE(HostCalls::Call(&calls).is_open());
}

}  // namespace
}  // namespace shard::host_calls_test
