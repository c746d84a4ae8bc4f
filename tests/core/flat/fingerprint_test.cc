// SPDX-License-Identifier: Apache-2.0

#include "core/flat/fingerprint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace shard {
namespace {

TEST(Fingerprint, IsXxh3OfTheBytes) {
  Fingerprint nothing;
  EXPECT_EQ(nothing.Finish(), XXH3_64bits("", 0));
  Fingerprint fingerprint;
  fingerprint.Add(uint32_t{0x64636261});
  fingerprint.AddBytes("ef", 2);
  EXPECT_EQ(fingerprint.Finish(), XXH3_64bits("abcdef", 6));
}

// However the pieces fall on the buffer's edges.
TEST(Fingerprint, PiecesOfAnySize) {
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
}  // namespace shard
