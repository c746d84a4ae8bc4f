// SPDX-License-Identifier: Apache-2.0

#include "core/flat/flat_param.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"

namespace shard {
namespace {

using Ranges = std::vector<ElementRange>;

FlatParam Flat(const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<FlatParamSource> sources;
  for (size_t i = 0; i < shapes.size(); ++i) {
    sources.push_back({StrCat("m.p", i), shapes[i]});
  }
  auto flat = FlatParam::Create(std::move(sources));
  EXPECT_OK(flat);
  return *std::move(flat);
}

TEST(FlatParam, ConcatenatesItsParameters) {
  const FlatParam flat = Flat({{2, 3}, {}, {4}});
  EXPECT_EQ(flat.full_numel(), 11);
  EXPECT_EQ(flat.num_padded(), 0);
  EXPECT_EQ(flat.dtype(), DType::kF32);
  EXPECT_TRUE(flat.trainable());
  const FlatParamMetadata all = flat.Metadata();
  EXPECT_EQ(all.names, (std::vector<std::string>{"m.p0", "m.p1", "m.p2"}));
  EXPECT_EQ(all.shapes, (std::vector<std::vector<int64_t>>{{2, 3}, {}, {4}}));
  EXPECT_EQ(all.numels, (std::vector<int64_t>{6, 1, 4}));
  EXPECT_EQ(all.offsets, (Ranges{{0, 5}, {6, 6}, {7, 10}}));
}

TEST(FlatParam, IsWholeUntilSharded) {
  const FlatParam flat = Flat({{2, 3}, {4}});
  EXPECT_EQ(flat.ParamsInShard(), (ElementRange{0, 1}));
  EXPECT_EQ(flat.ShardMetadata().offsets, (Ranges{{0, 5}, {0, 3}}));
  EXPECT_EQ(flat.ShardMetadata().names.size(), 2u);
}

TEST(FlatParam, ShardsByOffsets) {
  FlatParam flat = Flat({{6}, {1}, {4}, {5}});
  ASSERT_OK(flat.ShardByOffsets(4, 8, 0));
  EXPECT_EQ(flat.ParamsInShard(), (ElementRange{0, 2}));
  const FlatParamMetadata shard = flat.ShardMetadata();
  EXPECT_EQ(shard.names, (std::vector<std::string>{"m.p0", "m.p1", "m.p2"}));
  EXPECT_EQ(shard.numels, (std::vector<int64_t>{6, 1, 4}));
  EXPECT_EQ(shard.shapes, (std::vector<std::vector<int64_t>>{{6}, {1}, {4}}));
  EXPECT_EQ(shard.offsets, (Ranges{{4, 5}, {0, 0}, {0, 1}}));

  ASSERT_OK(flat.ShardByOffsets(12, 18, 3));
  EXPECT_EQ(flat.num_padded(), 3);
  EXPECT_EQ(flat.ParamsInShard(), (ElementRange{3, 3}));
  EXPECT_EQ(flat.ShardMetadata().offsets, (Ranges{{1, 4}}));
}

TEST(FlatParam, NothingButPaddingHasNoParameters) {
  FlatParam flat = Flat({{3}, {3}});
  ASSERT_OK(flat.ShardByOffsets(6, 7, 2));
  EXPECT_EQ(flat.ParamsInShard(), std::nullopt);
  EXPECT_TRUE(flat.ShardMetadata().names.empty());
  EXPECT_TRUE(flat.ShardMetadata().offsets.empty());
  EXPECT_EQ(flat.Metadata().names.size(), 2u);
}

TEST(FlatParam, BadRangesAreNamedAndChangeNothing) {
  FlatParam flat = Flat({{10}});
  ASSERT_OK(flat.ShardByOffsets(2, 4, 1));
  ExpectInvalid(flat.ShardByOffsets(-1, 4, 0), {"[-1, 4]"});
  ExpectInvalid(flat.ShardByOffsets(-3, -1, 0), {"[-3, -1]"});
  ExpectInvalid(flat.ShardByOffsets(5, 4, 0), {"[5, 4]"});
  ExpectInvalid(flat.ShardByOffsets(0, 4, 6), {"[0, 4]", "6"});
  ExpectInvalid(flat.ShardByOffsets(0, 4, -1), {"-1"});
  EXPECT_EQ(flat.num_padded(), 1);
  EXPECT_EQ(flat.ShardMetadata().offsets, (Ranges{{2, 4}}));
  ASSERT_OK(flat.ShardByOffsets(0, 4, 5));  // All of it is padding: allowed.
  ASSERT_OK(flat.ShardByOffsets(0, std::numeric_limits<int64_t>::max(), 0));
}

TEST(FlatParam, ShardsPutTogetherAreTheWhole) {
  std::mt19937 random(6);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<int64_t>> shapes(1 + random() % 10);
    for (auto& shape : shapes) shape = {static_cast<int64_t>(random() % 20)};
    FlatParam flat = Flat(shapes);
    const auto ranks = static_cast<int64_t>(1 + random() % 8);
    const int64_t shard = (flat.full_numel() + ranks - 1) / ranks;
    if (shard == 0) continue;
    std::vector<int64_t> next(shapes.size(), 0);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      ASSERT_OK(flat.ShardByOffsets(rank * shard, (rank + 1) * shard - 1, 0));
      const FlatParamMetadata part = flat.ShardMetadata();
      ASSERT_EQ(part.names.size(), part.offsets.size());
      for (size_t i = 0; i < part.offsets.size(); ++i) {
        if (part.numels[i] == 0) continue;
        const auto param = static_cast<size_t>(flat.ParamsInShard()->first) + i;
        EXPECT_EQ(part.offsets[i].first, next[param]);
        next[param] = part.offsets[i].last + 1;
      }
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_EQ(next[i], shapes[i][0]);
    }
  }
}

TEST(FlatParam, ViewsPointIntoTheStorage) {
  const FlatParam flat = Flat({{2, 3}, {}, {0}, {4}});
  std::vector<float> data(11);
  const auto views = flat.Views(data.data(), 11);
  ASSERT_OK(views);
  ASSERT_EQ(views->size(), 4u);
  EXPECT_EQ((*views)[0].data, data.data());
  EXPECT_EQ(*(*views)[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((*views)[1].data, data.data() + 6);
  EXPECT_EQ((*views)[1].numel, 1);
  EXPECT_EQ((*views)[2].numel, 0);
  EXPECT_EQ((*views)[3].data, data.data() + 7);
  ExpectInvalid(flat.Views(data.data(), 12), {"12", "11"});
  ExpectInvalid(flat.Views(data.data(), 10), {"10", "11"});
}

TEST(FlatParam, RefusesWhatCannotBeFlattened) {
  const auto create = [](std::vector<FlatParamSource> sources) {
    return FlatParam::Create(std::move(sources));
  };
  ExpectInvalid(create({}), {"at least one"});
  ExpectInvalid(create({{"a", {1}}, {"b", {1}, DType::kF32, true, true}}),
                {"'b'", "flat parameter already"});
  ExpectInvalid(create({{"a", {1}}, {"a", {2}}}), {"'a'", "twice"});
  ExpectInvalid(create({{"a", {1}}, {"b", {1}, DType::kBF16}}),
                {"'b' is bf16", "'a' is f32"});
  ExpectInvalid(create({{"a", {1}}, {"b", {1}, DType::kF32, false}}),
                {"'b' is frozen", "'a' is trainable"});
  ExpectInvalid(create({{"a", {2, -1}}}), {"'a'", "[2, -1]", "-1"});
  constexpr int64_t kBig = int64_t{1} << 62;
  ExpectInvalid(create({{"a", {kBig, 2}}}), {"'a'", "2^63-1"});
  ExpectInvalid(create({{"a", {kBig}}, {"b", {kBig}}}), {"'b'", "2^63-1"});
}

}  // namespace
}  // namespace shard
