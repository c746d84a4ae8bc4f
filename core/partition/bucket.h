// SPDX-License-Identifier: Apache-2.0
//
// Bucket partition: gradients become ready in buckets, and each bucket, or
// each piece of one, is updated by one rank as soon as it is reduced.
//
//   in turn   bucket i belongs to rank i mod W
//   sharded   buckets by ascending size; each is cut before the parameter that
//             would bring a piece to total/W elements, and every piece goes to
//             the least loaded rank (the lowest on ties) that has no piece of
//             this bucket yet
//
// A bucket with more pieces than ranks makes ZeroRedundancyOptimizer fail with
// "All indices are disallowed". Here ranks take a second piece, and a third,
// again the least loaded first.

#ifndef SHARD_CORE_PARTITION_BUCKET_H_
#define SHARD_CORE_PARTITION_BUCKET_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/partition/assignment.h"

namespace shard {

// Consecutive parameters of one bucket, with one owner.
struct BucketPiece {
  int32_t bucket;
  int32_t offset;  // Index of the first parameter in the bucket.
  int32_t count;   // > 0
  int32_t rank;
  int64_t numel;
};

// Assigns buckets to ranks. `buckets[i]` are the element counts of the
// parameters in bucket i. The pieces come in order of assignment and cover
// every bucket. Errors: world_size < 1, an empty bucket, a negative count, a
// total beyond int64.
StatusOr<std::vector<BucketPiece>> AssignBuckets(
    const std::vector<std::vector<int64_t>>& buckets, int world_size,
    bool shard_buckets);

// Converts pieces to an Assignment, with parameters counted across buckets.
// REQUIRES: `pieces` are those of `buckets`.
Assignment ToAssignment(const std::vector<BucketPiece>& pieces,
                        const std::vector<std::vector<int64_t>>& buckets);

}  // namespace shard

#endif  // SHARD_CORE_PARTITION_BUCKET_H_
