// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/collectives_memory.h"

#include <algorithm>
#include <cstddef>

#include "core/base/dtype.h"
#include "core/base/rounding.h"
#include "core/device/peer_waits.h"
#include "core/engine/transfer/plan_sets.h"

namespace shard {

namespace {

// The most for reductions in parts.
constexpr size_t kPartBytes = size_t{4} << 20;

// Adds what the reductions of a unit over one level take.
void AddUnit(const Plan& plan, const UnitPlan& unit,
             const PlanSets::Level& level, ReduceMemory* memory) {
  const auto peers = static_cast<size_t>(level.set.count - 1);
  size_t all = 0;
  size_t largest = 0;
  for (const int32_t index : unit.buffers) {
    const FlatBufferPlan& buffer = plan.buffer(index);
    if (!buffer.trainable) continue;
    const size_t block = DTypeBytes(buffer.grad_dtype,
                                    level.ranges * buffer.layout.shard_numel());
    size_t blocks = RoundUp(peers * block, ReduceMemory::kAlignment);
    memory->zeros = std::max(memory->zeros, std::min(block, kPartBytes));
    const bool by_library =
        OrderOf(plan) == SumOrder::kLibrary && buffer.grad_dtype == DType::kF32;
    if (by_library) {
      const size_t least = peers * ReduceMemory::kAlignment;
      blocks = std::min(blocks, std::max(kPartBytes, least));
    } else {
      all += blocks;
    }
    largest = std::max(largest, blocks);
  }
  const auto most = static_cast<size_t>(plan.options().buffer_bytes);
  memory->blocks = std::max({memory->blocks, largest, std::min(all, most)});
}

}  // namespace

ReduceMemory ReduceMemoryOf(const Plan& plan) {
  ReduceMemory memory;
  // All ranks' sets are of one size.
  for (const PlanSets::Level& level : PlanSets(plan, 0).Levels(plan)) {
    if (level.set.count == 1) continue;
    for (const UnitPlan& unit : plan.units()) {
      AddUnit(plan, unit, level, &memory);
    }
  }
  memory.blocks = RoundUpToPage(memory.blocks);
  memory.zeros = RoundUpToPage(memory.zeros);
  return memory;
}

uint64_t GroupSumBytes(const Plan& plan) {
  const PlanSets sets(plan, 0);
  // Gradients that are not sharded are there, and zeros where they are missing.
  if (!plan.shards_grads() || !sets.ReducesInTwoLevels(plan)) return 0;
  uint64_t bytes = 0;
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    if (!buffer.trainable) continue;
    bytes = std::max(
        bytes, DTypeBytes(buffer.grad_dtype,
                          sets.replicas.count * buffer.layout.shard_numel()));
  }
  return RoundUpToPage(bytes);
}

CollectivesMemory CollectivesMemoryOf(const Plan& plan, Transport transport) {
  const int ranks = plan.options().world_size;
  CollectivesMemory memory;
  if (ranks > 1 && transport != Transport::kStaged) {
    const ReduceMemory reduce = ReduceMemoryOf(plan);
    memory.device_bytes = reduce.blocks + reduce.zeros;
  }
  if (ranks == 1 || transport != Transport::kNccl) {
    memory.host_bytes = RoundUpToPage(StagingBytes(ranks));
  }
  return memory;
}

CollectivesMemory MeetingsMemory(int ranks, Transport transport) {
  if (ranks == 1 || transport == Transport::kStaged) return {};
  // Each rank tells each one, on the GPU of that one, two things.
  const uint64_t flags = 2 * static_cast<uint64_t>(ranks) * sizeof(uint64_t);
  return {.device_bytes = RoundUpToPage(flags),
          .host_bytes = RoundUpToPage(sizeof(PeerWaits))};
}

}  // namespace shard
