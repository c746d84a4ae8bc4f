// SPDX-License-Identifier: Apache-2.0
//
// Computes the memory of a plan, and which sharding is worth its slots.

#include <algorithm>
#include <cstddef>

#include "core/flat/memory_layout.h"
#include "core/flat/plan.h"

namespace shard {

namespace {

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

}  // namespace

uint64_t MemoryReport::HostTotal(int ranks_on_host, bool shares_params,
                                 bool shares_slots) const {
  const uint64_t once =
      (shares_params ? param_bytes : 0) + (shares_slots ? param_slot_bytes : 0);
  const uint64_t each = param_bytes + grad_bytes + state_bytes +
                        workspace_bytes + transient_bytes + host_tensor_bytes +
                        staging_bytes - once;
  const auto ranks = static_cast<uint64_t>(ranks_on_host);
  return each > (UINT64_MAX - once) / ranks ? UINT64_MAX : once + each * ranks;
}

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
      SlotsOf(units_, buffers_, options_.prefetch, is_trainable, GradBytes);
  param_slots_ =
      SlotsOf(units_, buffers_, options_.prefetch, is_any, ParamBytes);
  uint64_t whole_grads = 0;
  uint64_t whole_params = 0;
  uint64_t own_grads = SlotBytes(grad_slots_);
  uint64_t own_params = SlotBytes(param_slots_);
  const int held = options_.world_size / ShardGroupSize();
  for (const FlatBufferPlan& buffer : buffers_) {
    whole_params += ParamBytes(buffer);
    own_params += ParamRangeBytes(buffer, held);
    if (!buffer.trainable) continue;
    whole_grads += GradBytes(buffer);
    own_grads += SumBytes(buffer);
  }
  shards_grads_ = !options_.whole_grads && own_grads < whole_grads;
  shards_params_ = options_.stage == 3 && !options_.keep_after_forward &&
                   own_params < whole_params;
  if (!shards_grads_) grad_slots_.assign(grad_slots_.size(), {});
  if (!shards_params_) param_slots_.assign(param_slots_.size(), {});
}

MemoryReport Plan::Memory(bool shared_memory, const Offload* offload,
                          Processor device) const {
  const MemorySizes sizes =
      LayOutMemory(*this, shared_memory, StepperOf(device, offload));
  return {.param_bytes = sizes.params,
          .grad_bytes = sizes.grads + sizes.sums,
          .state_bytes = sizes.states,
          .workspace_bytes = sizes.workspace,
          .transient_bytes = sizes.grad_slots + sizes.param_slots,
          .param_slot_bytes = sizes.param_slots,
          .host_tensor_bytes = sizes.host_tensors,
          .staging_bytes = StagingOf(*this, shared_memory, offload).bytes(),
          .offloads_states = offload != nullptr};
}

}  // namespace shard
