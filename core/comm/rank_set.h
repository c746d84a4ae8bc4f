// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COMM_RANK_SET_H_
#define SHARD_CORE_COMM_RANK_SET_H_

#include <cstdint>

namespace shard {

// The ranks that exchange tensors with each other: first, first + stride, ...,
// `count` of them. A collective divides the world into sets of one stride and
// count, and every rank passes its own set: with stride 1 its ranks are
// neighbours (shard groups), else they lie across such groups (replicas).
struct RankSet {
  int first = 0;
  int stride = 1;
  int count = 1;

  static RankSet All(int world_size) { return {0, 1, world_size}; }

  // Returns the set of that stride and count with `rank` in it.
  static RankSet Of(int rank, int stride, int count) {
    return {rank - rank / stride % count * stride, stride, count};
  }

  bool operator==(const RankSet&) const = default;

  // Returns the `index`-th rank of the set.
  int rank(int index) const { return first + index * stride; }

  // Returns the index of `rank`, or -1 when it is not in the set. REQUIRES:
  // stride > 0.
  int IndexOf(int rank) const {
    const int64_t steps = (int64_t{rank} - first) / stride;
    return rank >= first && steps < count && first + steps * stride == rank
               ? static_cast<int>(steps)
               : -1;
  }

  // Returns whether this is one of the sets into which stride and count divide
  // a world of that size. Their product must divide the world size; a set of
  // one rank may have any stride.
  bool Divides(int world_size) const {
    if (first < 0 || first >= world_size || stride < 1 || count < 1) {
      return false;
    }
    const int64_t span = int64_t{stride} * count;
    return count == 1 || (world_size % span == 0 && first % span < stride);
  }
};

}  // namespace shard

#endif  // SHARD_CORE_COMM_RANK_SET_H_
