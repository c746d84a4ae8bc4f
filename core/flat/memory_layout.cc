// SPDX-License-Identifier: Apache-2.0

#include "core/flat/memory_layout.h"

#include <algorithm>

namespace shard {

namespace {

uint64_t PagesOf(DType dtype, int64_t numel) {
  return RoundUpToPage(DTypeBytes(dtype, numel));
}

// Returns where `bytes` more begin in a kind of memory that has `size` so far.
uint64_t Append(uint64_t bytes, uint64_t* size) {
  const uint64_t begin = *size;
  *size += bytes;
  return begin;
}

}  // namespace

uint64_t ParamBytes(const FlatBufferPlan& buffer) {
  return PagesOf(buffer.dtype, buffer.layout.padded_numel());
}

uint64_t GradBytes(const FlatBufferPlan& buffer) {
  return PagesOf(buffer.grad_dtype, buffer.layout.padded_numel());
}

uint64_t ParamRangeBytes(const FlatBufferPlan& buffer, int ranges) {
  return PagesOf(buffer.dtype, ranges * buffer.layout.shard_numel());
}

uint64_t SumBytes(const FlatBufferPlan& buffer) {
  return PagesOf(buffer.sum_dtype, buffer.layout.shard_numel());
}

uint64_t StateBytes(const FlatBufferPlan& buffer, size_t state) {
  return PagesOf(buffer.states[state].tensor.dtype,
                 buffer.StateLayout(state).shard_numel());
}

MemorySizes LayOutMemory(
    const Plan& plan, bool shared_memory, Processor stepper,
    const std::function<void(const FlatBufferPlan&, const BufferOffsets&)>&
        visit) {
  const bool shards_params = plan.shards_params() && !shared_memory;
  MemorySizes sizes;
  BufferOffsets at;
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    at.params =
        Append(shards_params ? ParamRangeBytes(buffer, plan.HeldRanges())
                             : ParamBytes(buffer),
               &sizes.params);
    at.grads.reset();
    at.sum.reset();
    at.states.clear();
    if (buffer.trainable) {
      const bool narrower = buffer.sum_dtype != buffer.grad_dtype;
      if (!plan.shards_grads()) {
        at.grads = Append(GradBytes(buffer), &sizes.grads);
      }
      if (plan.shards_grads() || (!shared_memory && narrower)) {
        at.sum = Append(SumBytes(buffer), &sizes.sums);
      }
      for (size_t s = 0; s < buffer.states.size(); ++s) {
        at.states.push_back(Append(StateBytes(buffer, s), &sizes.states));
      }
    }
    if (visit != nullptr) visit(buffer, at);
  }
  sizes.workspace = PagesOf(DType::kF32, stepper == Processor::kGpu
                                             ? plan.gpu_workspace_numel()
                                             : plan.workspace_numel());
  sizes.param_slots = shards_params ? SlotBytes(plan.param_slots()) : 0;
  sizes.grad_slots = SlotBytes(plan.grad_slots());
  sizes.host_tensors = RoundUpToPage(plan.host_tensors().bytes);
  return sizes;
}

OffloadStaging StagingOf(const Plan& plan, bool shared_memory,
                         const Offload* offload) {
  OffloadStaging staging;
  if (offload == nullptr) return staging;
  staging.window = offload->window;
  const auto most = static_cast<int64_t>(offload->window);
  int64_t most_windows = 0;
  LayOutMemory(
      plan, shared_memory, Processor::kCpu,
      [&](const FlatBufferPlan& buffer, const BufferOffsets& at) {
        const int64_t range = buffer.layout.shard_numel();
        if (!buffer.trainable || range == 0) return;
        const DType grads = at.sum ? buffer.sum_dtype : buffer.grad_dtype;
        const auto add = [&](int64_t numel, OffloadStaging::Slot* slot) {
          slot->grad_bytes = std::max(slot->grad_bytes, PagesOf(grads, numel));
          slot->param_bytes =
              std::max(slot->param_bytes, PagesOf(buffer.dtype, numel));
        };
        int64_t window = std::min(range, most);
        const auto group = static_cast<size_t>(buffer.group);
        if (plan.options().groups[group].tensor != nullptr) {
          for (const Slot& slot : buffer.layout.slots()) {
            window = std::max(window, slot.numel);
          }
          most_windows = std::max<int64_t>(most_windows, 1);
        } else {
          add(window, &staging.others);
          most_windows = std::max(most_windows, (range - 1) / most + 1);
        }
        add(window, &staging.first);
      });
  staging.threads =
      static_cast<size_t>(std::min<int64_t>(most_windows, offload->threads));
  return staging;
}

uint64_t SlotBytes(const std::vector<SlotPlan>& slots) {
  uint64_t bytes = 0;
  for (const SlotPlan& slot : slots) {
    bytes += slot.bytes * static_cast<uint64_t>(slot.count);
  }
  return bytes;
}

uint64_t SlotOffset(const std::vector<SlotPlan>& slots, int32_t depth,
                    int slot) {
  uint64_t offset = 0;
  for (int32_t d = 0; d < depth; ++d) {
    const SlotPlan& above = slots[static_cast<size_t>(d)];
    offset += above.bytes * static_cast<uint64_t>(above.count);
  }
  return offset +
         slots[static_cast<size_t>(depth)].bytes * static_cast<uint64_t>(slot);
}

std::vector<SlotPart> SlotParts(const Plan& plan, int32_t unit, bool grads) {
  std::vector<SlotPart> parts;
  uint64_t size = 0;
  for (const int32_t index : plan.unit(unit).buffers) {
    const FlatBufferPlan& buffer = plan.buffer(index);
    if (grads && !buffer.trainable) continue;
    const uint64_t bytes = grads ? GradBytes(buffer) : ParamBytes(buffer);
    parts.push_back({static_cast<size_t>(index), Append(bytes, &size)});
  }
  return parts;
}

}  // namespace shard
