// SPDX-License-Identifier: Apache-2.0

#include "core/base/process_id.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/core/base/in_child.h"

namespace shard::process_id_test {
namespace {

TEST(ProcessId, IsThatOfEachProcess) {
  const pid_t self = ProcessId();
  EXPECT_EQ(self, ::getpid());
  EXPECT_EQ(ProcessId(), self);
  testing::InChild([self] {
    const pid_t child = ProcessId();
    EXPECT_EQ(child, ::getpid());
    EXPECT_NE(child, self);
    testing::InChild([child] {
      EXPECT_EQ(ProcessId(), ::getpid());
      EXPECT_NE(ProcessId(), child);
    });
    EXPECT_EQ(ProcessId(), child);
  });
  EXPECT_EQ(ProcessId(), self);
}

}  // namespace
}  // namespace shard::process_id_test
