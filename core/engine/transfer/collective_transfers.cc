// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/collective_transfers.h"

#include <algorithm>
#include <optional>

#include "core/base/dtype.h"

namespace shard {

CollectiveTransfers::CollectiveTransfers(const Dependencies& deps)
    : Transfers(deps),
      plan_(*deps.plan),
      memory_(*deps.memory),
      rank_(deps.comm->rank()),
      sets_(plan_, rank_),
      group_size_(sets_.shard_group.count),
      groups_(sets_.replicas.count),
      two_levels_(groups_ > 1 && !plan_.options().deterministic) {}

Status CollectiveTransfers::Reduce(const Proposal& led,
                                   const std::vector<Proposal>& proposals,
                                   bool add, Stream* stream) {
  const Proposal& mine = proposals[static_cast<size_t>(rank_)];
  const int32_t depth = plan_.unit(led.unit).depth;
  // The second level of a buffer uses what the first one writes.
  std::optional<CollectiveGroup> group;
  if (!two_levels_) group.emplace(deps_.collectives, stream);
  for (const SlotPart& part : SlotParts(plan_, led.unit, true)) {
    const EngineBuffer& buffer = memory_.buffers()[part.buffer];
    unsigned char* grads = nullptr;
    if (!plan_.shards_grads()) {
      grads = buffer.grads[static_cast<size_t>(rank_)];
    } else if (Contributes(mine, led)) {
      grads = memory_.GradSlot(rank_, depth, mine.slot) + part.offset;
    }
    SHARD_RETURN_IF_ERROR(ReduceBuffer(buffer, grads, add, stream));
  }
  return Status();
}

Status CollectiveTransfers::ReduceWhole(size_t index, Stream* stream) {
  const EngineBuffer& buffer = memory_.buffers()[index];
  return ReduceBuffer(buffer, buffer.grads[static_cast<size_t>(rank_)], false,
                      stream);
}

Status CollectiveTransfers::ReduceBuffer(const EngineBuffer& buffer,
                                         unsigned char* grads, bool add,
                                         Stream* stream) {
  const FlatBufferPlan& plan = *buffer.plan;
  const auto range = static_cast<size_t>(plan.layout.shard_numel());
  if (range == 0) return Status();
  const size_t own_begin = static_cast<size_t>(plan_.RangeOf(rank_)) * range;
  ReduceScatterArgs sum;
  sum.send = grads;
  sum.dtype = plan.grad_dtype;
  sum.count = range;
  sum.add = add;
  sum.block_groups = groups_;
  if (buffer.sum != nullptr) {
    sum.recv = buffer.sum;
    sum.recv_dtype = plan.sum_dtype;
  } else {
    sum.recv = grads + own_begin * DTypeSize(plan.grad_dtype);
    sum.recv_dtype = plan.grad_dtype;
  }
  if (two_levels_) return ReduceInTwoLevels(sum, grads, stream);
  deps_.collectives->ReduceScatter(
      groups_ == 1 ? "reduce gradients" : "reduce gradients in rank order",
      sets_.all, sum, stream);
  return Status();
}

Status CollectiveTransfers::ReduceInTwoLevels(const ReduceScatterArgs& sum,
                                              unsigned char* grads,
                                              Stream* stream) {
  const size_t held = static_cast<size_t>(groups_) * sum.count;
  unsigned char* stretch = nullptr;
  if (grads != nullptr) {
    stretch = grads + static_cast<size_t>(rank_ % group_size_) * held *
                          DTypeSize(sum.dtype);
  } else {
    SHARD_RETURN_IF_ERROR(MakeLevel());
    stretch = reinterpret_cast<unsigned char*>(level_.data());
  }
  ReduceScatterArgs inside;
  inside.send = grads;
  inside.dtype = sum.dtype;
  inside.count = held;
  inside.recv = stretch;
  inside.recv_dtype = sum.dtype;
  deps_.collectives->ReduceScatter("reduce gradients in the group",
                                   sets_.shard_group, inside, stream);
  ReduceScatterArgs between = sum;
  between.send = stretch;
  between.block_groups = 1;
  deps_.collectives->ReduceScatter("reduce gradients between groups",
                                   sets_.replicas, between, stream);
  return Status();
}

Status CollectiveTransfers::MakeLevel() {
  if (level_.data() != nullptr) return Status();
  uint64_t bytes = 0;
  for (const FlatBufferPlan& buffer : plan_.buffers()) {
    if (!buffer.trainable) continue;
    bytes = std::max(bytes, Part(buffer, buffer.grad_dtype, groups_));
  }
  SHARD_ASSIGN_OR_RETURN(level_,
                         deps_.device->Allocate(bytes, "sums of shard groups"));
  return Status();
}

Status CollectiveTransfers::Gather(int32_t unit, unsigned char* slot,
                                   Stream* stream) {
  const CollectiveGroup group(deps_.collectives, stream);
  for (const SlotPart& part : SlotParts(plan_, unit, false)) {
    const EngineBuffer& buffer = memory_.buffers()[part.buffer];
    const size_t bytes = DTypeBytes(buffer.plan->dtype, buffer.held_numel);
    if (bytes == 0) continue;
    deps_.collectives->AllGatherBlocks("gather parameters", sets_.shard_group,
                                       buffer.params, bytes, slot + part.offset,
                                       stream);
  }
  return Status();
}

Status CollectiveTransfers::Publish(size_t index, Stream* stream) {
  const EngineBuffer& buffer = memory_.buffers()[index];
  const FlatBufferPlan& plan = *buffer.plan;
  const int64_t range = plan.layout.shard_numel();
  const size_t bytes = DTypeBytes(plan.dtype, range);
  if (bytes == 0) return Status();
  // The elements that this rank and its replicas hold are contiguous.
  auto* const stretch = static_cast<unsigned char*>(
      buffer.ParamAt(rank_ % group_size_ * groups_ * range));
  if (groups_ > 1) {
    deps_.collectives->AllGatherBlocks(
        "publish parameters between groups", sets_.replicas,
        buffer.ParamAt(plan_.RangeOf(rank_) * range), bytes, stretch, stream);
  }
  if (plan_.shards_params()) return Status();
  deps_.collectives->AllGatherBlocks(
      "publish parameters", sets_.shard_group, stretch,
      static_cast<size_t>(groups_) * bytes, buffer.ParamAt(0), stream);
  return Status();
}

uint64_t CollectiveTransfers::Part(const FlatBufferPlan& buffer, DType dtype,
                                   int part) const {
  return DTypeBytes(dtype, buffer.layout.shard_numel()) *
         static_cast<uint64_t>(part);
}

uint64_t CollectiveTransfers::ReduceBytes(int32_t unit) const {
  uint64_t bytes = 0;
  for (const SlotPart& part : SlotParts(plan_, unit, true)) {
    bytes += ReduceWholeBytes(part.buffer);
  }
  return bytes;
}

uint64_t CollectiveTransfers::ReduceWholeBytes(size_t index) const {
  const FlatBufferPlan& buffer = plan_.buffers()[index];
  return Part(buffer, buffer.grad_dtype, (group_size_ - 1) * groups_) +
         Part(buffer, buffer.grad_dtype, groups_ - 1);
}

uint64_t CollectiveTransfers::GatherBytes(int32_t unit) const {
  uint64_t bytes = 0;
  for (const SlotPart& part : SlotParts(plan_, unit, false)) {
    const FlatBufferPlan& buffer = plan_.buffers()[part.buffer];
    bytes += Part(buffer, buffer.dtype, (group_size_ - 1) * groups_);
  }
  return bytes;
}

uint64_t CollectiveTransfers::PublishBytes(size_t index) const {
  const FlatBufferPlan& buffer = plan_.buffers()[index];
  return Part(buffer, buffer.dtype, groups_ - 1) +
         (plan_.shards_params()
              ? 0
              : Part(buffer, buffer.dtype, (group_size_ - 1) * groups_));
}

}  // namespace shard
