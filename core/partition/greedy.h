// SPDX-License-Identifier: Apache-2.0
//
// Greedy partition, as in ZeroRedundancyOptimizer: within each group,
// parameters by descending size (equal ones in the order given), each to the
// rank with the least load so far, the lowest rank on ties. Loads carry over
// from group to group, so adding a group later moves no earlier parameter.
//
// O(n log W) for n parameters and W ranks.

#ifndef SHARD_CORE_PARTITION_GREEDY_H_
#define SHARD_CORE_PARTITION_GREEDY_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/partition/assignment.h"
#include "core/partition/load_heap.h"

namespace shard {

// Assigns group after group. A value that holds the loads of the groups so far.
class GreedyPartitioner {
 public:
  // REQUIRES: world_size >= 1.
  explicit GreedyPartitioner(int world_size)
      : loads_(LoadHeap::OfIdleRanks(world_size)) {}

  // Assigns a group of parameters with these element counts and appends to
  // `assignment`, which holds the groups before. Errors: a negative count, a
  // total beyond int64; both change nothing.
  Status AddGroup(const std::vector<int64_t>& numels, Assignment* assignment);

 private:
  LoadHeap loads_;
  int64_t total_ = 0;
};

// Assigns all `groups` at once. Errors: those of AddGroup, and world_size < 1.
StatusOr<Assignment> PartitionGreedy(
    const std::vector<std::vector<int64_t>>& groups, int world_size);

}  // namespace shard

#endif  // SHARD_CORE_PARTITION_GREEDY_H_
