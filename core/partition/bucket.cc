// SPDX-License-Identifier: Apache-2.0

#include "core/partition/bucket.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "core/partition/load_heap.h"

namespace shard {

namespace {

// Returns the element count of every bucket.
StatusOr<std::vector<int64_t>> BucketNumels(
    const std::vector<std::vector<int64_t>>& buckets) {
  std::vector<int64_t> numels;
  numels.reserve(buckets.size());
  int64_t total = 0;
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    if (buckets[bucket].empty()) {
      return InvalidArgument("bucket ", bucket, " is empty");
    }
    const int64_t before = total;
    for (const int64_t numel : buckets[bucket]) {
      if (numel < 0) {
        return InvalidArgument("a parameter of bucket ", bucket, " has ", numel,
                               " elements");
      }
      if (__builtin_add_overflow(total, numel, &total)) {
        return InvalidArgument("the ", buckets.size(),
                               " buckets have more than 2^63-1 elements "
                               "together");
      }
    }
    numels.push_back(total - before);
  }
  return numels;
}

// Assigns the pieces of one bucket at a time.
class PieceAssigner {
 public:
  explicit PieceAssigner(int world_size)
      : waiting_(LoadHeap::OfIdleRanks(world_size)) {}

  void Assign(BucketPiece piece, std::vector<BucketPiece>* pieces) {
    if (waiting_.empty()) FinishBucket();  // The next round of this bucket.
    LoadHeap::Entry rank = waiting_.top();
    waiting_.Pop();
    rank.load += piece.numel;
    served_.push_back(rank);
    piece.rank = rank.rank;
    pieces->push_back(piece);
  }

  // Lets all ranks take a piece again.
  void FinishBucket() {
    for (const LoadHeap::Entry& rank : served_) waiting_.Push(rank);
    served_.clear();
  }

 private:
  LoadHeap waiting_;                     // Ranks without a piece.
  std::vector<LoadHeap::Entry> served_;  // The others.
};

// Returns the smallest element count at which the reference considers total / W
// reached: it divides in floating point and compares an integer with the
// quotient exactly. (Above 2^53 elements the quotient here may be off by one
// unit in the last place.)
int64_t Threshold(int64_t total, int world_size) {
  const double quotient = static_cast<double>(total) / world_size;
  // 2^63 is beyond int64, and no piece reaches it.
  if (quotient >= 0x1p63) return total;
  return static_cast<int64_t>(std::ceil(quotient));
}

}  // namespace

StatusOr<std::vector<BucketPiece>> AssignBuckets(
    const std::vector<std::vector<int64_t>>& buckets, int world_size,
    bool shard_buckets) {
  if (world_size < 1) {
    return InvalidArgument("world size ", world_size, " is below 1");
  }
  SHARD_ASSIGN_OR_RETURN(const std::vector<int64_t> numels,
                         BucketNumels(buckets));
  std::vector<BucketPiece> pieces;
  if (!shard_buckets) {
    pieces.reserve(buckets.size());
    for (size_t i = 0; i < buckets.size(); ++i) {
      const auto rank =
          static_cast<int32_t>(i % static_cast<size_t>(world_size));
      pieces.push_back({static_cast<int32_t>(i), 0,
                        static_cast<int32_t>(buckets[i].size()), rank,
                        numels[i]});
    }
    return pieces;
  }

  std::vector<int32_t> by_size(buckets.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&](int32_t a, int32_t b) {
    return numels[static_cast<size_t>(a)] < numels[static_cast<size_t>(b)];
  });
  const int64_t threshold = Threshold(
      std::accumulate(numels.begin(), numels.end(), int64_t{0}), world_size);

  PieceAssigner assigner(world_size);
  for (const int32_t bucket : by_size) {
    BucketPiece piece = {bucket, 0, 0, -1, 0};
    for (const int64_t numel : buckets[static_cast<size_t>(bucket)]) {
      if (piece.count > 0 && piece.numel + numel >= threshold) {
        assigner.Assign(piece, &pieces);
        piece = {bucket, piece.offset + piece.count, 0, -1, 0};
      }
      ++piece.count;
      piece.numel += numel;
    }
    assigner.Assign(piece, &pieces);
    assigner.FinishBucket();
  }
  return pieces;
}

Assignment ToAssignment(const std::vector<BucketPiece>& pieces,
                        const std::vector<std::vector<int64_t>>& buckets) {
  std::vector<int32_t> first(buckets.size());
  int32_t count = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    first[i] = count;
    count += static_cast<int32_t>(buckets[i].size());
  }
  Assignment assignment;
  assignment.owners.assign(static_cast<size_t>(count), -1);
  assignment.order.reserve(static_cast<size_t>(count));
  for (const BucketPiece& piece : pieces) {
    const int32_t begin =
        first[static_cast<size_t>(piece.bucket)] + piece.offset;
    for (int32_t param = begin; param < begin + piece.count; ++param) {
      assignment.owners[static_cast<size_t>(param)] = piece.rank;
      assignment.order.push_back(param);
    }
  }
  return assignment;
}

}  // namespace shard
