// SPDX-License-Identifier: Apache-2.0

#include "core/base/host_memory.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/core/base/expect_status.h"

namespace shard::host_memory_test {
namespace {

TEST(HostMemoryTest, SomeIsAvailable) {
  EXPECT_GT(AvailableHostMemory(), uint64_t{1} << 20);
  EXPECT_TRUE(CheckHostMemory(0).ok());
  EXPECT_TRUE(CheckHostMemory(4096).ok());
}

TEST(HostMemoryTest, MoreThanAnyHostHasIsRefused) {
  if (AvailableHostMemory() == UINT64_MAX) {
    GTEST_SKIP() << "this host does not say what it has";
  }
  const Status status = CheckHostMemory(uint64_t{1} << 60);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("available"), std::string::npos)
      << status.ToString();
  EXPECT_EQ(status.message().find(';'), std::string::npos);
  EXPECT_NE(CheckHostMemory(uint64_t{1} << 60, "add some")
                .message()
                .find(" are available; add some"),
            std::string::npos);
}

}  // namespace
}  // namespace shard::host_memory_test
