// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_TRANSFER_PLAN_SETS_H_
#define SHARD_CORE_ENGINE_TRANSFER_PLAN_SETS_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/base/dtype.h"
#include "core/collectives/collectives.h"
#include "core/comm/rank_set.h"
#include "core/flat/plan.h"

namespace shard {

// The sets of a rank in which a plan's tensors are exchanged: W ranks in R = W
// / S shard groups of S ranks.
struct PlanSets {
  PlanSets(const Plan& plan, int rank)
      : PlanSets(plan.options().world_size, plan.options().shard_group_size,
                 rank) {}

  // Returns those that collectives are opened with, each once.
  std::vector<RankSet> ToOpen() const {
    if (replicas.count == 1) return {all};
    return {all, shard_group, replicas};
  }

  // Returns the memory that reductions of the plan's gradients take.
  ReduceMemory Reductions(const Plan& plan) const {
    ReduceMemory memory;
    for (const FlatBufferPlan& buffer : plan.buffers()) {
      if (!buffer.trainable) continue;
      const size_t range =
          DTypeBytes(buffer.grad_dtype, buffer.layout.shard_numel());
      const auto add = [&](const RankSet& set, size_t bytes) {
        if (set.count == 1) return;
        const auto peers = static_cast<size_t>(set.count - 1);
        memory.peer_bytes = std::max(memory.peer_bytes, peers * bytes);
        memory.block_bytes = std::max(memory.block_bytes, bytes);
      };
      if (replicas.count == 1 || plan.options().deterministic) {
        add(all, range);
      } else {
        add(shard_group, range * static_cast<size_t>(replicas.count));
        add(replicas, range);
      }
    }
    return memory;
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
