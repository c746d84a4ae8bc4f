// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/manifest/key_index.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"

namespace shard::key_index_test {
namespace {

auto KeysOf(const std::vector<std::string>& keys) {
  return [&keys](size_t i) { return std::string_view(keys[i]); };
}

size_t SlotOf(const std::string& key, uint64_t seed, size_t slots) {
  return XXH3_64bits_withSeed(key.data(), key.size(), seed) & (slots - 1);
}

void ExpectFindsAll(const KeyIndex& index,
                    const std::vector<std::string>& keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(index.Find(keys[i], KeysOf(keys)), static_cast<int64_t>(i));
    ASSERT_EQ(index.Find(keys[i] + "x", KeysOf(keys)), -1);
  }
  EXPECT_EQ(index.Find("", KeysOf(keys)), -1);
}

TEST(KeyIndex, FindsItsKeys) {
  std::vector<std::string> keys;
  for (const size_t count : {0, 1, 2, 3, 4, 5, 31, 32, 33, 1024, 100000}) {
    while (keys.size() < count) keys.push_back(StrCat("k", keys.size()));
    KeyIndex index;
    EXPECT_EQ(index.Find("k0", KeysOf(keys)), -1) << "not built";
    ASSERT_OK(index.Build(count, 5, KeysOf(keys)));
    ExpectFindsAll(index, keys);
  }
}

TEST(KeyIndex, RefusesEqualKeys) {
  const std::vector<std::string> keys = {"a", "b", "c", "b"};
  KeyIndex index;
  ExpectError(index.Build(4, 5, KeysOf(keys)), StatusCode::kCorrupt,
              {"numbers 1 and 3"});
}

// All keys fall into one slot, as an attacker who knows the seed could choose
// them.
TEST(KeyIndex, StartsAgainWhenKeysCollide) {
  constexpr uint64_t kSeed = 77;
  constexpr size_t kCount = 1024;
  std::vector<std::string> keys;
  for (int i = 0; keys.size() < kCount; ++i) {
    std::string key = StrCat(i);
    if (SlotOf(key, kSeed, 2 * kCount) == 3) keys.push_back(std::move(key));
  }
  size_t looked_at = 0;
  KeyIndex index;
  ASSERT_OK(index.Build(kCount, kSeed, [&](size_t i) {
    ++looked_at;
    return std::string_view(keys[i]);
  }));
  // Without another seed, it would be 1024 * 1024 / 2.
  EXPECT_LT(looked_at, 20 * kCount);
  ExpectFindsAll(index, keys);
}

TEST(KeyIndex, GivesUpWhenTheyCollideForEverySeed) {
  constexpr size_t kCount = 64;
  std::vector<std::string> keys;
  for (int i = 0; keys.size() < kCount; ++i) {
    std::string key = StrCat(i);
    bool collides = true;
    for (uint64_t seed = 9; collides && seed < 9 + 4; ++seed) {
      collides = SlotOf(key, seed, 2 * kCount) < 8;
    }
    if (collides) keys.push_back(std::move(key));
  }
  KeyIndex index;
  ExpectError(index.Build(kCount, 9, KeysOf(keys)), StatusCode::kCorrupt,
              {"collide"});
}

}  // namespace
}  // namespace shard::key_index_test
