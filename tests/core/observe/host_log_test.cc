// SPDX-License-Identifier: Apache-2.0

#include "core/observe/host_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace shard::host_log_test {
namespace {

TEST(HostLogTest, NoCallBeginsOnceTheLogIsClosed) {
  int calls = 0;
  HostLog log(Logger(
      [](int32_t, const char*, void* count) { ++*static_cast<int*>(count); },
      LogLevel::kInfo, &calls));
  log.logger().Log(LogLevel::kWarning, "heard");
  log.logger().Log(LogLevel::kDebug, "too verbose");
  log.Close();
  log.logger().Log(LogLevel::kWarning, "too late");
  log.Close();
  EXPECT_EQ(calls, 1);
}

TEST(HostLogTest, AFunctionThatThrowsIsNoCallInProgress) {
  HostLog log(Logger([](int32_t, const char*, void*) { throw 1; },
                     LogLevel::kInfo, nullptr));
  EXPECT_THROW(log.logger().Log(LogLevel::kWarning, "x"), int);
  log.Close();
}

TEST(HostLogTest, CloseWaitsForTheCallInProgress) {
  struct Host {
    std::atomic<bool> entered = false;
    std::atomic<bool> closing = false;
    std::atomic<bool> closed = false;
    std::atomic<bool> closed_meanwhile = false;
  } host;
  HostLog log(Logger(
      [](int32_t, const char*, void* to) {
        auto* const host = static_cast<Host*>(to);
        host->entered = true;
        host->entered.notify_all();
        host->closing.wait(false);
        // Gives a Close that does not wait the time to return.
        for (int i = 0; i < 1000; ++i) std::this_thread::yield();
        host->closed_meanwhile = host->closed.load();
      },
      LogLevel::kInfo, &host));
  std::thread logging([&] { log.logger().Log(LogLevel::kWarning, "x"); });
  host.entered.wait(false);
  host.closing = true;
  host.closing.notify_all();
  log.Close();
  host.closed = true;
  logging.join();
  EXPECT_FALSE(host.closed_meanwhile);
}

}  // namespace
}  // namespace shard::host_log_test
