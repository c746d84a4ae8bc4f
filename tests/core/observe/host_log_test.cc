// SPDX-License-Identifier: Apache-2.0

#include "core/observe/host_log.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace shard::host_log_test
