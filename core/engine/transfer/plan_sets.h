// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_TRANSFER_PLAN_SETS_H_
#define SHARD_CORE_ENGINE_TRANSFER_PLAN_SETS_H_

#include <vector>

#include "core/comm/rank_set.h"
#include "core/flat/plan.h"

namespace shard {

// The sets of a rank in which a plan's tensors are exchanged: W ranks in R = W
// / S shard groups of S ranks.
struct PlanSets {
  PlanSets(const Plan& plan, int rank)
      : PlanSets(plan.options().world_size, plan.options().shard_group_size,
                 rank) {}

  // A reduction over a set, of blocks of so many ranges (Plan::RangeOf).
  struct Level {
    RankSet set;
    int ranges;
  };

  // Returns those that collectives are opened with, each once.
  std::vector<RankSet> ToOpen() const {
    if (replicas.count == 1) return {all};
    return {all, shard_group, replicas};
  }

  // Returns the levels in which gradients are reduced, one after the other.
  std::vector<Level> Levels(const Plan& plan) const {
    if (!ReducesInTwoLevels(plan)) return {{all, 1}};
    return {{shard_group, replicas.count}, {replicas, 1}};
  }
  bool ReducesInTwoLevels(const Plan& plan) const {
    return replicas.count > 1 && !plan.options().deterministic;
  }

  RankSet all;
  RankSet shard_group;  // Consecutive ranks that shard among them.
  RankSet replicas;     // One rank of each shard group.

 private:
  // `group_size`: 0 for one group of all ranks.
  PlanSets(int world_size, int group_size, int rank)
      : all(RankSet::All(world_size)),
        shard_group(
            RankSet::Of(rank, 1, group_size == 0 ? world_size : group_size)),
        replicas(RankSet::Of(rank, shard_group.count,
                             world_size / shard_group.count)) {}
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_PLAN_SETS_H_
