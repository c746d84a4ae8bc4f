// SPDX-License-Identifier: Apache-2.0
//
// Computes the memory of a plan, and which sharding is worth its slots.

#include <algorithm>
#include <cstddef>

#include "core/flat/plan.h"

namespace shard {

namespace {

uint64_t PagesOf(DType dtype, int64_t numel) {
  return RoundUpToPage(DTypeBytes(dtype, numel));
}

uint64_t WholeParams(const FlatBufferPlan& buffer) {
  return PagesOf(buffer.dtype, buffer.layout.padded_numel());
}

uint64_t WholeGrads(const FlatBufferPlan& buffer) {
  return PagesOf(buffer.grad_dtype, buffer.layout.padded_numel());
}

uint64_t SumRange(const FlatBufferPlan& buffer) {
  return PagesOf(buffer.sum_dtype, buffer.layout.shard_numel());
}

uint64_t HeldParams(const FlatBufferPlan& buffer, int ranges) {
  return PagesOf(buffer.dtype, ranges * buffer.layout.shard_numel());
}

// Returns the slots for the buffers that each unit gathers or reduces: those
// that `takes` chooses, with `bytes` each.
template <typename Takes, typename Bytes>
std::vector<SlotPlan> SlotsOf(const std::vector<UnitPlan>& units,
                              const std::vector<FlatBufferPlan>& buffers,
                              int prefetch, Takes takes, Bytes bytes) {
  std::vector<SlotPlan> slots;
  for (const UnitPlan& unit : units) {
    const auto depth = static_cast<size_t>(unit.depth);
    if (depth >= slots.size()) slots.resize(depth + 1);
    uint64_t sum = 0;
    bool any = false;
    for (const int32_t index : unit.buffers) {
      const FlatBufferPlan& buffer = buffers[static_cast<size_t>(index)];
      if (!takes(buffer)) continue;
      any = true;
      sum += bytes(buffer);
    }
    if (!any) continue;
    SlotPlan& slot = slots[depth];
    slot.count = std::min(slot.count + 1, 1 + prefetch);
    slot.bytes = std::max(slot.bytes, sum);
  }
  return slots;
}

uint64_t TotalOf(const std::vector<SlotPlan>& slots) {
  uint64_t total = 0;
  for (const SlotPlan& slot : slots) {
    total += static_cast<uint64_t>(slot.count) * slot.bytes;
  }
  return total;
}

}  // namespace

void Plan::ChooseSharding() {
  if (options_.stage < 2 || options_.world_size == 1) {
    int32_t deepest = 0;
    for (const UnitPlan& unit : units_) deepest = std::max(deepest, unit.depth);
    param_slots_.resize(static_cast<size_t>(deepest) + 1);
    grad_slots_ = param_slots_;
    return;
  }
  const auto is_trainable = [](const FlatBufferPlan& b) { return b.trainable; };
  const auto is_any = [](const FlatBufferPlan&) { return true; };
  grad_slots_ =
      SlotsOf(units_, buffers_, options_.prefetch, is_trainable, WholeGrads);
  param_slots_ =
      SlotsOf(units_, buffers_, options_.prefetch, is_any, WholeParams);
  uint64_t whole_grads = 0;
  uint64_t whole_params = 0;
  uint64_t own_grads = TotalOf(grad_slots_);
  uint64_t own_params = TotalOf(param_slots_);
  const int held = options_.world_size / ShardGroupSize();
  for (const FlatBufferPlan& buffer : buffers_) {
    whole_params += WholeParams(buffer);
    own_params += HeldParams(buffer, held);
    if (!buffer.trainable) continue;
    whole_grads += WholeGrads(buffer);
    own_grads += SumRange(buffer);
  }
  shards_grads_ = !options_.whole_grads && own_grads < whole_grads;
  shards_params_ = options_.stage == 3 && !options_.keep_after_forward &&
                   own_params < whole_params;
  if (!shards_grads_) grad_slots_.assign(grad_slots_.size(), {});
  if (!shards_params_) param_slots_.assign(param_slots_.size(), {});
}

MemoryReport Plan::Memory(bool shared_memory) const {
  const bool holds_part = shards_params_ && !shared_memory;
  MemoryReport memory;
  for (const FlatBufferPlan& buffer : buffers_) {
    memory.param_bytes +=
        holds_part ? HeldParams(buffer, HeldRanges()) : WholeParams(buffer);
    if (!buffer.trainable) continue;
    memory.grad_bytes += shards_grads_ ? SumRange(buffer) : WholeGrads(buffer);
    if (!shards_grads_ && !shared_memory &&
        buffer.sum_dtype != buffer.grad_dtype) {
      memory.grad_bytes += SumRange(buffer);
    }
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      memory.state_bytes += PagesOf(buffer.states[s].tensor.dtype,
                                    buffer.StateLayout(s).shard_numel());
    }
  }
  memory.workspace_bytes = PagesOf(DType::kF32, workspace_numel_);
  memory.transient_bytes =
      TotalOf(grad_slots_) + (holds_part ? TotalOf(param_slots_) : 0);
  return memory;
}

}  // namespace shard
