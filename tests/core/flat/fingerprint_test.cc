// SPDX-License-Identifier: Apache-2.0

#include "core/flat/fingerprint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

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

TEST(Fingerprint, StringsDelimitThemselves) {
  Fingerprint a;
  a.AddString("ab");
  a.AddString("c");
  Fingerprint b;
  b.AddString("a");
  b.AddString("bc");
  EXPECT_NE(a.Finish(), b.Finish());
}

TEST(RecordHash, TellsFactsHashesAndOrderApart) {
  const uint64_t records[][3] = {{1, 2, 3}, {2, 1, 3}, {1, 3, 2}, {1, 2, 0},
                                 {1, 2, 4}, {0, 2, 3}, {3, 2, 1}};
  std::set<uint64_t> seen;
  for (const auto& first : records) {
    for (const auto& second : records) {
      RecordHash hash;
      hash.Add(first[0], first[1], first[2]);
      hash.Add(second[0], second[1], second[2]);
      seen.insert(hash.value());
    }
  }
  EXPECT_EQ(seen.size(), 49u);
}

}  // namespace
}  // namespace shard::fingerprint_test
