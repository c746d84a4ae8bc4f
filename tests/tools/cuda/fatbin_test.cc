// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "tests/tools/cuda/fixture.h"

namespace {

TEST(FatbinTest, IsEmbeddedWithItsSize) {
  if (shard_fatbin_fixture_size == 0) GTEST_SKIP() << "no CUDA toolkit";
  EXPECT_EQ(reinterpret_cast<uintptr_t>(shard_fatbin_fixture) % 8, 0u);
  // The head: magic number, version, bytes of the head, bytes of the rest.
  uint32_t magic;
  uint16_t head;
  uint64_t rest;
  ASSERT_GT(shard_fatbin_fixture_size, 16u);
  std::memcpy(&magic, shard_fatbin_fixture, sizeof(magic));
  std::memcpy(&head, shard_fatbin_fixture + 6, sizeof(head));
  std::memcpy(&rest, shard_fatbin_fixture + 8, sizeof(rest));
  EXPECT_EQ(magic, 0xba55ed50u);
  EXPECT_EQ(head + rest, shard_fatbin_fixture_size);
}

}  // namespace
