// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/collective_transfers.h"

#include <algorithm>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/flat/memory_layout.h"

namespace shard {

CollectiveTransfers::CollectiveTransfers(const Dependencies& deps,
                                         DeviceMemory group_sums)
    : Transfers(deps),
      plan_(*deps.plan),
      memory_(*deps.memory),
      rank_(deps.comm->rank()),
      sets_(plan_, rank_),
      group_size_(sets_.shard_group.count),
      groups_(sets_.replicas.count),
      two_levels_(sets_.ReducesInTwoLevels(plan_)),
      group_sums_(std::move(group_sums)) {
  MakeTags();
}

void CollectiveTransfers::MakeTags() {
  // Units are named by number: names may be long, and records of collectives
  // keep the beginning of a tag.
  for (size_t u = 0; u < plan_.units().size(); ++u) {
    const std::string of = StrCat(" of unit ", u);
    Tags& tags = tags_.emplace_back();
    if (two_levels_) {
      tags.reduce_in_group = StrCat("reduce gradients", of, " in the group");
      tags.reduce_between_groups =
          StrCat("reduce gradients", of, " between groups");
    } else {
      tags.reduce =
          StrCat("reduce gradients", of, groups_ > 1 ? " in rank order" : "");
    }
    if (plan_.shards_params()) {
      tags.gather = StrCat("gather parameters", of);
    } else {
      tags.publish = StrCat("publish parameters", of);
    }
    if (groups_ > 1) {
      tags.publish_between_groups =
          StrCat("publish parameters", of, " between groups");
    }
  }
}

Status CollectiveTransfers::Reduce(const Proposal& led,
                                   const std::vector<Proposal>& proposals,
                                   bool add, Stream* stream) {
  const std::vector<SlotPart> parts = SlotParts(plan_, led.unit, true);
  // Where ranks may lack gradients they have met, and know all proposals.
  const bool all_send =
      !plan_.shards_grads() || !deps_.allow_missing ||
      std::all_of(proposals.begin(), proposals.end(),
                  [&](const Proposal& it) { return Contributes(it, led); });
  unsigned char* slot = nullptr;
  if (plan_.shards_grads()) {
    const Proposal& mine = proposals[static_cast<size_t>(rank_)];
    const int32_t depth = plan_.unit(led.unit).depth;
    if (Contributes(mine, led)) {
      slot = memory_.GradSlot(rank_, depth, mine.slot);
    } else if (all_send) {
      // This rank has joined. The others, who do not know it, count on all
      // ranks to send: it adds zeros, from a slot that it does not use.
      slot = memory_.GradSlot(rank_, depth, 0);
      const SlotPart& last = parts.back();
      stream->FillZeros(slot,
                        last.offset + GradBytes(plan_.buffers()[last.buffer]));
    }
  }
  std::vector<ReduceScatterArgs> sums;
  for (const SlotPart& part : parts) {
    const EngineBuffer& buffer = memory_.buffers()[part.buffer];
    unsigned char* const grads = !plan_.shards_grads()
                                     ? buffer.grads[static_cast<size_t>(rank_)]
                                 : slot == nullptr ? nullptr
                                                   : slot + part.offset;
    ReduceScatterArgs sum = SumOf(buffer, grads);
    sum.all_send = all_send;
    sum.add = add;
    if (sum.count > 0) sums.push_back(sum);
  }
  return ReduceAll(TagsOf(led.unit), sums, stream);
}

Status CollectiveTransfers::ReduceWhole(size_t index, Stream* stream) {
  const EngineBuffer& buffer = memory_.buffers()[index];
  ReduceScatterArgs sum =
      SumOf(buffer, buffer.grads[static_cast<size_t>(rank_)]);
  sum.all_send = true;
  if (sum.count == 0) return Status();
  return ReduceAll(TagsOf(buffer.plan->unit), {&sum, 1}, stream);
}

ReduceScatterArgs CollectiveTransfers::SumOf(const EngineBuffer& buffer,
                                             unsigned char* grads) const {
  const FlatBufferPlan& plan = *buffer.plan;
  ReduceScatterArgs sum;
  sum.send = grads;
  sum.dtype = plan.grad_dtype;
  sum.count = static_cast<size_t>(plan.layout.shard_numel());
  sum.block_groups = groups_;
  if (buffer.sum != nullptr) {
    sum.recv = buffer.sum;
    sum.recv_dtype = plan.sum_dtype;
  } else {
    const auto own = static_cast<size_t>(plan_.RangeOf(rank_)) * sum.count;
    sum.recv = grads + own * DTypeSize(plan.grad_dtype);
    sum.recv_dtype = plan.grad_dtype;
  }
  return sum;
}

Status CollectiveTransfers::ReduceAll(const Tags& tags,
                                      std::span<const ReduceScatterArgs> sums,
                                      Stream* stream) {
  if (two_levels_) {
    // A rank that has no gradients has room for one sum of its group.
    const size_t most = sums.empty() || sums[0].all_send ? sums.size() : 1;
    for (size_t i = 0; i < sums.size(); i += most) {
      SHARD_RETURN_IF_ERROR(
          ReduceInTwoLevels(tags, sums.subspan(i, most), stream));
    }
    return Status();
  }
  CollectiveGroup group(deps_.collectives, stream);
  for (const ReduceScatterArgs& sum : sums) {
    deps_.collectives->ReduceScatter(tags.reduce, sets_.all, sum, stream);
  }
  group.End();
  return Status();
}

Status CollectiveTransfers::ReduceInTwoLevels(
    const Tags& tags, std::span<const ReduceScatterArgs> sums, Stream* stream) {
  std::vector<ReduceScatterArgs> between(sums.begin(), sums.end());
  CollectiveGroup inside_groups(deps_.collectives, stream);
  for (ReduceScatterArgs& sum : between) {
    ReduceScatterArgs inside = sum;
    inside.block_groups = 1;
    inside.count = static_cast<size_t>(groups_) * sum.count;
    inside.recv_dtype = sum.dtype;
    inside.add = false;
    if (sum.send != nullptr) {
      const auto place = static_cast<size_t>(rank_ % group_size_);
      inside.recv =
          const_cast<std::byte*>(static_cast<const std::byte*>(sum.send) +
                                 place * inside.count * DTypeSize(sum.dtype));
    } else {
      inside.recv = group_sums_.data();
    }
    deps_.collectives->ReduceScatter(tags.reduce_in_group, sets_.shard_group,
                                     inside, stream);
    sum.send = inside.recv;
    sum.all_send = true;
    sum.block_groups = 1;
  }
  inside_groups.End();
  CollectiveGroup between_groups(deps_.collectives, stream);
  for (const ReduceScatterArgs& sum : between) {
    deps_.collectives->ReduceScatter(tags.reduce_between_groups, sets_.replicas,
                                     sum, stream);
  }
  between_groups.End();
  return Status();
}

Status CollectiveTransfers::Gather(int32_t unit, unsigned char* slot,
                                   Stream* stream) {
  CollectiveGroup group(deps_.collectives, stream);
  for (const SlotPart& part : SlotParts(plan_, unit, false)) {
    const EngineBuffer& buffer = memory_.buffers()[part.buffer];
    const size_t bytes = DTypeBytes(buffer.plan->dtype, buffer.held_numel);
    if (bytes == 0) continue;
    if (memory_.shares_slots()) {
      deps_.collectives->GatherOnHosts(TagsOf(unit).gather, sets_.shard_group,
                                       buffer.params, bytes, 1,
                                       slot + part.offset, stream);
      continue;
    }
    deps_.collectives->AllGatherBlocks(TagsOf(unit).gather, sets_.shard_group,
                                       buffer.params, bytes, slot + part.offset,
                                       stream);
  }
  group.End();
  return Status();
}

Status CollectiveTransfers::Publish(size_t index, Stream* stream) {
  const EngineBuffer& buffer = memory_.buffers()[index];
  const FlatBufferPlan& plan = *buffer.plan;
  const int64_t range = plan.layout.shard_numel();
  const size_t bytes = DTypeBytes(plan.dtype, range);
  if (bytes == 0) return Status();
  const Tags& tags = TagsOf(plan.unit);
  if (memory_.shares_params()) {
    deps_.collectives->GatherOnHosts(
        tags.publish, sets_.all, buffer.ParamAt(plan_.RangeOf(rank_) * range),
        bytes, groups_, buffer.ParamAt(0), stream);
    return Status();
  }
  // The elements that this rank and its replicas hold are contiguous.
  auto* const stretch = static_cast<unsigned char*>(
      buffer.ParamAt(rank_ % group_size_ * groups_ * range));
  if (groups_ > 1) {
    deps_.collectives->AllGatherBlocks(
        tags.publish_between_groups, sets_.replicas,
        buffer.ParamAt(plan_.RangeOf(rank_) * range), bytes, stretch, stream);
  }
  if (plan_.shards_params()) return Status();
  deps_.collectives->AllGatherBlocks(tags.publish, sets_.shard_group, stretch,
                                     static_cast<size_t>(groups_) * bytes,
                                     buffer.ParamAt(0), stream);
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
