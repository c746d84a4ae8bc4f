// SPDX-License-Identifier: Apache-2.0

#include "core/flat/fingerprint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace shard::fingerprint_test {
namespace {

TEST(Fingerprint, IsXxh3OfTheBytes) {
  Fingerprint nothing;
  EXPECT_EQ(nothing.Finish(), XXH3_64bits("", 0));
  Fingerprint fingerprint;
  fingerprint.Add(uint32_t{0x64636261});
  fingerprint.AddBytes("ef", 2);
  EXPECT_EQ(fingerprint.Finish(), XXH3_64bits("abcdef", 6));
}

// The pieces fall on the buffer's edges in every way.
TEST(Fingerprint, TakesPiecesOfAnySize) {
  std::string bytes(200'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i * 131 >> 3);
  }
  const uint64_t expected = XXH3_64bits(bytes.data(), bytes.size());
  for (const size_t piece : {1, 7, 4096, 16383, 16384, 16385, 100'000}) {
    Fingerprint fingerprint;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      fingerprint.AddBytes(bytes.data() + at,
                           std::min(piece, bytes.size() - at));
    }
    EXPECT_EQ(fingerprint.Finish(), expected) << piece;
  }
}

// The result is that of one piece after the other, wherever the buffer's edges
// are.
TEST(Fingerprint, AddsAllAtOnceAsOneByOne) {
  const std::string text(70'000, 'x');
  for (size_t before = 16 * 1024 - 60; before <= 16 * 1024; ++before) {
    for (const size_t size : {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 40, 70'000}) {
      const std::string_view piece = std::string_view(text).substr(0, size);
      Fingerprint one;
      Fingerprint all;
      one.AddBytes(text.data(), before);
      all.AddBytes(text.data(), before);
      one.Add(uint32_t{1});
      one.AddBytes(piece.data(), piece.size());
      one.Add(int64_t{-2});
      all.AddAll(uint32_t{1}, piece, int64_t{-2});
      ASSERT_EQ(one.Finish(), all.Finish()) << before << ", " << size;
    }
  }
}

TEST(Fingerprint, StringsDelimitThemselves) {
  Fingerprint a;
  a.AddString("ab");
  a.AddString("c");
  Fingerprint b;
  b.AddString("a");
  b.AddString("bc");
  EXPECT_NE(a.Finish(), b.Finish());
}

}  // namespace
}  // namespace shard::fingerprint_test
