// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/manifest/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace shard::checksum_test {
namespace {

std::vector<unsigned char> Bytes(size_t count) {
  std::vector<unsigned char> bytes(count);
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<unsigned char>(i * 131 + i / 251);
  }
  return bytes;
}

// Checksums are those that `xxhsum -H2` prints, so that checkpoints stay
// readable to other programs.
TEST(ChecksumTest, IsXxh3With128Bits) {
  EXPECT_EQ(ChecksumText(ChecksumOf(nullptr, 0)),
            "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(ChecksumText({1, 0xABCDEF}), "0000000000abcdef0000000000000001");
}

TEST(ChecksumTest, EveryBitCounts) {
  auto bytes = Bytes(300);
  std::set<std::string> texts = {
      ChecksumText(ChecksumOf(bytes.data(), bytes.size()))};
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    texts.insert(ChecksumText(ChecksumOf(bytes.data(), bytes.size())));
    bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
  }
  EXPECT_EQ(texts.size(), 300u * 8 + 1);
}

TEST(ChecksumTest, CopyingGivesTheSameChecksum) {
  constexpr size_t kBlock = 16 * 1024;
  for (const size_t count : {size_t{0}, size_t{1}, size_t{240}, size_t{241},
                             kBlock - 1, kBlock, kBlock + 1, 5 * kBlock + 7}) {
    const auto from = Bytes(count + 1);
    std::vector<unsigned char> to(count + 2, 0xEE);
    // Neither side is aligned.
    const Checksum copied =
        CopyWithChecksum(to.data() + 1, from.data() + 1, count);
    EXPECT_EQ(copied, ChecksumOf(from.data() + 1, count)) << count;
    EXPECT_TRUE(std::equal(from.begin() + 1, from.end(), to.begin() + 1));
    EXPECT_EQ(to.front(), 0xEE);
    EXPECT_EQ(to.back(), 0xEE);
  }
}

}  // namespace
}  // namespace shard::checksum_test
