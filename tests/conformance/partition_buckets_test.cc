// SPDX-License-Identifier: Apache-2.0
//
// Compares the bucket partition with ZeroRedundancyOptimizer's, in both modes:
// exactly, order included. Where the reference gives up, ours must not.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/partition/bucket.h"
#include "tests/conformance/golden.h"
#include "tests/core/base/expect_status.h"

namespace shard::partition_buckets_test {
namespace {

using nlohmann::json;
using Buckets = std::vector<std::vector<int64_t>>;

// Returns the index of each bucket's first parameter.
std::vector<int32_t> FirstParams(const Buckets& buckets) {
  std::vector<int32_t> first;
  int32_t count = 0;
  for (const auto& bucket : buckets) {
    first.push_back(count);
    count += static_cast<int32_t>(bucket.size());
  }
  return first;
}

// Returns [rank] -> {"bucket": {"params": [...], "offset": n}}.
json AssignmentsPerRank(const std::vector<BucketPiece>& pieces,
                        const Buckets& buckets, int world_size) {
  const std::vector<int32_t> first = FirstParams(buckets);
  json ranks(
      std::vector<json>(static_cast<size_t>(world_size), json::object()));
  for (const BucketPiece& piece : pieces) {
    std::vector<int32_t> params;
    for (int32_t i = 0; i < piece.count; ++i) {
      params.push_back(first[static_cast<size_t>(piece.bucket)] + piece.offset +
                       i);
    }
    ranks[static_cast<size_t>(piece.rank)][std::to_string(piece.bucket)] = {
        {"params", params}, {"offset", piece.offset}};
  }
  return ranks;
}

// Returns [rank] -> parameters in order of assignment.
json ParamsInOrder(const Assignment& assignment, int world_size) {
  const auto ranks =
      ParamsPerRank(assignment, {assignment.owners.size()}, world_size);
  json lists = json::array();
  for (const auto& groups : ranks) lists.push_back(groups[0]);
  return lists;
}

// Expects an owner for every parameter, and some rank with two pieces of one
// bucket.
void ExpectMended(const std::vector<BucketPiece>& pieces,
                  const Buckets& buckets, int world_size) {
  const Assignment assignment = ToAssignment(pieces, buckets);
  EXPECT_EQ(assignment.order.size(), assignment.owners.size());
  EXPECT_EQ(std::count(assignment.owners.begin(), assignment.owners.end(), -1),
            0);
  std::vector<size_t> pieces_of(buckets.size(), 0);
  for (const BucketPiece& piece : pieces) {
    ++pieces_of[static_cast<size_t>(piece.bucket)];
  }
  EXPECT_GT(*std::max_element(pieces_of.begin(), pieces_of.end()),
            static_cast<size_t>(world_size));
}

TEST(GoldenPartition, Buckets) {
  const json golden = LoadGolden("partition_buckets.json");
  size_t checked = 0;
  size_t mended = 0;
  for (const json& expected : golden["cases"]) {
    SCOPED_TRACE(::testing::Message() << "case " << checked);
    const int world_size = expected["world_size"];
    const Buckets buckets = expected["buckets"];
    const auto pieces =
        AssignBuckets(buckets, world_size, expected["shard_buckets"]);
    ASSERT_OK(pieces);
    ++checked;
    if (expected.contains("error")) {
      EXPECT_EQ(expected["error"], "All indices are disallowed");
      ExpectMended(*pieces, buckets, world_size);
      ++mended;
      continue;
    }
    EXPECT_EQ(AssignmentsPerRank(*pieces, buckets, world_size),
              expected["assignments"]);
    EXPECT_EQ(ParamsInOrder(ToAssignment(*pieces, buckets), world_size),
              expected["params_per_rank"]);
    EXPECT_EQ(pieces->size(), expected["num_bucket_assignments"]);
  }
  EXPECT_EQ(checked, 48u);
  EXPECT_EQ(mended, 1u);
}

}  // namespace
}  // namespace shard::partition_buckets_test
