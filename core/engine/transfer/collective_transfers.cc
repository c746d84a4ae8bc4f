// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/collective_transfers.h"

#include <algorithm>
#include <utility>

#include "core/base/dtype.h"

namespace shard {

namespace {

// Number of elements of a range that are reduced at once where blocks have to
// be put into the order of ranks first.
constexpr size_t kPiece = 4096;

int GroupSize(const Plan& plan) {
  const int size = plan.options().shard_group_size;
  return size == 0 ? plan.options().world_size : size;
}

}  // namespace

CollectiveTransfers::CollectiveTransfers(const Plan& plan,
                                         const EngineMemory& memory,
                                         Communicator* comm, Device* device,
                                         std::unique_ptr<Stream> stream)
    : plan_(plan),
      memory_(memory),
      comm_(comm),
      device_(device),
      stream_(std::move(stream)),
      rank_(comm->rank()),
      group_size_(GroupSize(plan)),
      groups_(comm->world_size() / group_size_),
      group_{rank_ / group_size_ * group_size_, 1, group_size_},
      replicas_{rank_ % group_size_, group_size_, groups_} {}

Status CollectiveTransfers::Reduce(const Proposal& led,
                                   const std::vector<Proposal>& proposals,
                                   bool add, const Deadline& deadline) {
  const Proposal& mine = proposals[static_cast<size_t>(rank_)];
  const int32_t depth = plan_.unit(led.unit).depth;
  for (const SlotPart& part : SlotParts(plan_, led.unit, true)) {
    const EngineBuffer& buffer = memory_.buffers()[part.buffer];
    unsigned char* grads = nullptr;
    if (!plan_.shards_grads()) {
      grads = buffer.grads[static_cast<size_t>(rank_)];
    } else if (Contributes(mine, led)) {
      grads = memory_.GradSlot(rank_, depth, mine.slot) + part.offset;
    }
    SHARD_RETURN_IF_ERROR(ReduceBuffer(buffer, grads, add, deadline));
  }
  return Status();
}

Status CollectiveTransfers::ReduceWhole(size_t index,
                                        const Deadline& deadline) {
  const EngineBuffer& buffer = memory_.buffers()[index];
  return ReduceBuffer(buffer, buffer.grads[static_cast<size_t>(rank_)], false,
                      deadline);
}

Status CollectiveTransfers::ReduceBuffer(const EngineBuffer& buffer,
                                         unsigned char* grads, bool add,
                                         const Deadline& deadline) {
  const FlatBufferPlan& plan = *buffer.plan;
  const auto range = static_cast<size_t>(plan.layout.shard_numel());
  if (range == 0) return Status();
  const size_t range_bytes = range * DTypeSize(plan.grad_dtype);
  unsigned char* const own =
      buffer.sum != nullptr
          ? buffer.sum
          : grads + static_cast<size_t>(plan_.RangeOf(rank_)) * range_bytes;
  const DType own_dtype =
      buffer.sum != nullptr ? plan.sum_dtype : plan.grad_dtype;
  if (groups_ == 1) {
    return comm_->ReduceScatter("reduce gradients", group_, grads,
                                plan.grad_dtype, range, own, own_dtype, add,
                                deadline);
  }
  if (plan_.options().deterministic) {
    return ReduceInRankOrder(plan, grads, own, own_dtype, add, deadline);
  }
  // Reduces inside the group, the ranges of this rank's replicas too.
  const auto held = static_cast<size_t>(groups_);
  unsigned char* stretch = nullptr;
  if (grads != nullptr) {
    stretch =
        grads + static_cast<size_t>(rank_ % group_size_) * held * range_bytes;
  } else {
    SHARD_RETURN_IF_ERROR(Grow(held * range_bytes));
    stretch = reinterpret_cast<unsigned char*>(level_.data());
  }
  SHARD_RETURN_IF_ERROR(comm_->ReduceScatter(
      "reduce gradients in the group", group_, grads, plan.grad_dtype,
      held * range, stretch, plan.grad_dtype, false, deadline));
  return comm_->ReduceScatter("reduce gradients between groups", replicas_,
                              stretch, plan.grad_dtype, range, own, own_dtype,
                              add, deadline);
}

Status CollectiveTransfers::Grow(size_t bytes) {
  if (level_.size() >= bytes) return Status();
  SHARD_ASSIGN_OR_RETURN(level_,
                         device_->Allocate(bytes, "sums of shard groups"));
  return Status();
}

Status CollectiveTransfers::ReduceInRankOrder(const FlatBufferPlan& plan,
                                              const unsigned char* grads,
                                              unsigned char* own,
                                              DType own_dtype, bool add,
                                              const Deadline& deadline) {
  const auto range = static_cast<size_t>(plan.layout.shard_numel());
  const auto ranks = static_cast<size_t>(plan_.options().world_size);
  const size_t size = DTypeSize(plan.grad_dtype);
  for (size_t at = 0; at < range; at += kPiece) {
    const size_t count = std::min(kPiece, range - at);
    if (grads != nullptr) {
      SHARD_RETURN_IF_ERROR(Grow(ranks * count * size));
      for (size_t r = 0; r < ranks; ++r) {
        const auto from =
            static_cast<size_t>(plan_.RangeOf(static_cast<int>(r))) * range +
            at;
        stream_->Copy(level_.data() + r * count * size, grads + from * size,
                      count * size);
      }
      SHARD_RETURN_IF_ERROR(stream_->Synchronize(deadline));
    }
    SHARD_RETURN_IF_ERROR(comm_->ReduceScatter(
        "reduce gradients in rank order",
        RankSet::All(plan_.options().world_size),
        grads == nullptr ? nullptr : level_.data(), plan.grad_dtype, count,
        own + at * DTypeSize(own_dtype), own_dtype, add, deadline));
  }
  return Status();
}

Status CollectiveTransfers::Gather(int32_t unit, unsigned char* slot,
                                   const Deadline& deadline) {
  for (const SlotPart& part : SlotParts(plan_, unit, false)) {
    const EngineBuffer& buffer = memory_.buffers()[part.buffer];
    const size_t bytes = DTypeBytes(buffer.plan->dtype, buffer.held_numel);
    if (bytes == 0) continue;
    SHARD_RETURN_IF_ERROR(comm_->AllGatherBlocks("gather parameters", group_,
                                                 buffer.params, bytes,
                                                 slot + part.offset, deadline));
  }
  return Status();
}

Status CollectiveTransfers::Publish(size_t index, const Deadline& deadline) {
  const EngineBuffer& buffer = memory_.buffers()[index];
  const FlatBufferPlan& plan = *buffer.plan;
  const int64_t range = plan.layout.shard_numel();
  const size_t bytes = DTypeBytes(plan.dtype, range);
  if (bytes == 0) return Status();
  // The elements that this rank and its replicas hold are contiguous.
  auto* const stretch = static_cast<unsigned char*>(
      buffer.ParamAt(rank_ % group_size_ * groups_ * range));
  if (groups_ > 1) {
    SHARD_RETURN_IF_ERROR(
        comm_->AllGatherBlocks("publish parameters between groups", replicas_,
                               buffer.ParamAt(plan_.RangeOf(rank_) * range),
                               bytes, stretch, deadline));
  }
  if (plan_.shards_params()) return Status();
  return comm_->AllGatherBlocks("publish parameters", group_, stretch,
                                static_cast<size_t>(groups_) * bytes,
                                buffer.ParamAt(0), deadline);
}

Status CollectiveTransfers::Finish(const Deadline&) { return Status(); }

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
