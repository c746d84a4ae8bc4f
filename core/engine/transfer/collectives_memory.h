// SPDX-License-Identifier: Apache-2.0
//
// The memory of a plan's collectives, which engines allocate and predictions
// count.

#ifndef SHARD_CORE_ENGINE_TRANSFER_COLLECTIVES_MEMORY_H_
#define SHARD_CORE_ENGINE_TRANSFER_COLLECTIVES_MEMORY_H_

#include <cstdint>

#include "core/base/transport.h"
#include "core/collectives/collectives.h"
#include "core/flat/plan.h"

namespace shard {

// Returns the order in which the plan's gradients may be added.
inline SumOrder OrderOf(const Plan& plan) {
  return plan.options().deterministic ? SumOrder::kRankOrder
                                      : SumOrder::kLibrary;
}

// Returns the memory for reductions of the plan's gradients, in whole pages.
// Blocks that are summed in the order of ranks come all at once: those of a
// unit where its gradients are not more than buffer_bytes, else at least those
// of any buffer. Where a library sums, ranks that lack gradients are summed in
// parts of 4 MiB.
ReduceMemory ReduceMemoryOf(const Plan& plan);

// Returns the bytes for the sums of a shard group on a rank that lacks
// gradients, in whole pages, where ranks may lack them and share no tensors.
uint64_t GroupSumBytes(const Plan& plan);

// Returns whether collectives that were opened with `memory` have enough of it
// for a plan, of the same sets of ranks and the same order of sums. An engine
// whose plan changes keeps its collectives then.
inline bool ServesReductions(const ReduceMemory& memory, const Plan& plan) {
  return memory.Covers(ReduceMemoryOf(plan));
}

// Predicts the memory of the collectives of one rank, whose device the host
// does not reach. Transport::kAuto: that of both kinds, of which an engine has
// one.
CollectivesMemory CollectivesMemoryOf(const Plan& plan, Transport transport);

// Returns the memory with which the kernels of `ranks` ranks meet in a step of
// one kernel (PeerStep), of one rank, in whole pages; none where tensors pass
// through the host's memory, or a rank is alone.
CollectivesMemory MeetingsMemory(int ranks, Transport transport);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_COLLECTIVES_MEMORY_H_
