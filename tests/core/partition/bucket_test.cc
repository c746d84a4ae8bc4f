// SPDX-License-Identifier: Apache-2.0

#include "core/partition/bucket.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/core/base/expect_status.h"

namespace shard {
namespace {

using Buckets = std::vector<std::vector<int64_t>>;

// Expects every parameter in exactly one piece, whose own numbers are right.
void ExpectCover(const std::vector<BucketPiece>& pieces, const Buckets& buckets,
                 int world_size) {
  std::vector<std::vector<int>> times(buckets.size());
  for (size_t i = 0; i < buckets.size(); ++i) {
    times[i].resize(buckets[i].size());
  }
  for (const BucketPiece& piece : pieces) {
    EXPECT_GT(piece.count, 0);
    EXPECT_GE(piece.rank, 0);
    EXPECT_LT(piece.rank, world_size);
    const auto bucket = static_cast<size_t>(piece.bucket);
    int64_t numel = 0;
    for (int32_t i = piece.offset; i < piece.offset + piece.count; ++i) {
      ++times[bucket].at(static_cast<size_t>(i));
      numel += buckets[bucket][static_cast<size_t>(i)];
    }
    EXPECT_EQ(numel, piece.numel);
  }
  for (const auto& bucket : times) {
    for (const int count : bucket) EXPECT_EQ(count, 1);
  }
}

TEST(AssignBuckets, InTurn) {
  const Buckets buckets = {{1}, {2, 3}, {4}, {5}};
  const auto pieces = AssignBuckets(buckets, 3, false);
  ASSERT_OK(pieces);
  ExpectCover(*pieces, buckets, 3);
  ASSERT_EQ(pieces->size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ((*pieces)[i].bucket, static_cast<int32_t>(i));
    EXPECT_EQ((*pieces)[i].rank, static_cast<int32_t>(i % 3));
  }
}

TEST(AssignBuckets, CutsAtTheShareOfOneRank) {
  const Buckets buckets = {{4, 4}, {1, 1}};
  const auto pieces = AssignBuckets(buckets, 2, true);
  ASSERT_OK(pieces);
  ExpectCover(*pieces, buckets, 2);
  // The share is 10 / 2: the small bucket goes whole to rank 0. The other is
  // cut, since 4 + 4 reaches 5.
  ASSERT_EQ(pieces->size(), 3u);
  EXPECT_EQ((*pieces)[0].bucket, 1);
  EXPECT_EQ((*pieces)[0].rank, 0);
  EXPECT_EQ((*pieces)[1].rank, 1);
  EXPECT_EQ((*pieces)[1].count, 1);
  EXPECT_EQ((*pieces)[2].rank, 0);
  EXPECT_EQ((*pieces)[2].offset, 1);
}

// The share is 10 / 3 = 3.33: 3 has not reached it, 4 has.
TEST(AssignBuckets, TheShareIsNotRounded) {
  const auto pieces = AssignBuckets({{1, 2, 1, 6}}, 3, true);
  ASSERT_OK(pieces);
  ASSERT_EQ(pieces->size(), 3u);
  EXPECT_EQ((*pieces)[0].count, 2);
  EXPECT_EQ((*pieces)[1].count, 1);
  EXPECT_EQ((*pieces)[2].count, 1);
}

TEST(AssignBuckets, ARankTakesASecondPieceWhenAllHaveOne) {
  // The threshold is 13 / 2 = 6.5: {3}, {4}, {6} are three pieces for two
  // ranks.
  const Buckets buckets = {{3, 4, 6}};
  const auto pieces = AssignBuckets(buckets, 2, true);
  ASSERT_OK(pieces);
  ExpectCover(*pieces, buckets, 2);
  ASSERT_EQ(pieces->size(), 3u);
  EXPECT_EQ((*pieces)[0].rank, 0);
  EXPECT_EQ((*pieces)[1].rank, 1);
  EXPECT_EQ((*pieces)[2].rank, 0);  // Rank 0 has the least load.
}

TEST(AssignBuckets, RandomOnesAreCoveredInBothModes) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const int world_size = 1 + static_cast<int>(random() % 9);
    Buckets buckets(1 + random() % 12);
    for (auto& bucket : buckets) {
      bucket.resize(1 + random() % 20);
      for (int64_t& numel : bucket) {
        numel = static_cast<int64_t>(random() % (round % 2 ? 100000 : 4));
      }
    }
    for (const bool shard : {false, true}) {
      const auto pieces = AssignBuckets(buckets, world_size, shard);
      ASSERT_OK(pieces);
      ExpectCover(*pieces, buckets, world_size);
      const Assignment assignment = ToAssignment(*pieces, buckets);
      EXPECT_EQ(assignment.order.size(), assignment.owners.size());
      for (const int32_t owner : assignment.owners) EXPECT_GE(owner, 0);
    }
  }
}

TEST(AssignBuckets, EdgeCases) {
  EXPECT_TRUE(AssignBuckets({}, 2, false)->empty());
  EXPECT_TRUE(AssignBuckets({}, 2, true)->empty());
  ExpectCover(*AssignBuckets({{0}, {0, 0}}, 3, true), {{0}, {0, 0}}, 3);
  const Buckets huge = {{std::numeric_limits<int64_t>::max() - 1, 1}};
  ExpectCover(*AssignBuckets(huge, 1, true), huge, 1);
}

TEST(AssignBuckets, BadInputsAreNamed) {
  ExpectInvalid(AssignBuckets({{1}}, 0, true), {"world size 0"});
  ExpectInvalid(AssignBuckets({{1}, {}}, 2, false), {"bucket 1", "empty"});
  ExpectInvalid(AssignBuckets({{1}, {2, -9}}, 2, true), {"bucket 1", "-9"});
  ExpectInvalid(
      AssignBuckets({{std::numeric_limits<int64_t>::max()}, {1}}, 2, true),
      {"2 buckets", "2^63-1"});
}

}  // namespace
}  // namespace shard
