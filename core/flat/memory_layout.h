// SPDX-License-Identifier: Apache-2.0
//
// The layout of a rank's memory: how large each kind of it is, and where the
// tensors of each flat buffer and the slots of each unit lie in it.
// Plan::Memory and the engine's allocations both follow it.

#ifndef SHARD_CORE_FLAT_MEMORY_LAYOUT_H_
#define SHARD_CORE_FLAT_MEMORY_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/base/offload.h"
#include "core/flat/plan.h"

namespace shard {

// Return the bytes of a buffer's tensors, page rounding included: of all
// parameters, of all gradients, of `ranges` ranges of parameters, and of one
// range of the summed gradients and of state `state`.
uint64_t ParamBytes(const FlatBufferPlan& buffer);
uint64_t GradBytes(const FlatBufferPlan& buffer);
uint64_t ParamRangeBytes(const FlatBufferPlan& buffer, int ranges);
uint64_t SumBytes(const FlatBufferPlan& buffer);
uint64_t StateBytes(const FlatBufferPlan& buffer, size_t state);

// Bytes by kind of memory. Each kind is one allocation.
struct MemorySizes {
  uint64_t params = 0;
  uint64_t grads = 0;
  uint64_t sums = 0;
  uint64_t states = 0;
  uint64_t workspace = 0;
  uint64_t param_slots = 0;
  uint64_t grad_slots = 0;
  uint64_t host_tensors = 0;
};

// Where the tensors of one flat buffer lie, in bytes from the start of their
// kind of memory.
struct BufferOffsets {
  uint64_t params = 0;
  // Empty where the rank keeps no whole gradients.
  std::optional<uint64_t> grads;
  // Empty where the sum has no memory of its own.
  std::optional<uint64_t> sum;
  std::vector<uint64_t> states;  // By FlatBufferPlan::states.
};

// Returns the processor that steps the parameters of a device: the host's where
// states are offloaded.
constexpr Processor StepperOf(Processor device, const Offload* offload) {
  return offload == nullptr ? device : Processor::kCpu;
}

// Lays out the memory of a rank whose host's ranks share memory, or do not, and
// whose parameters `stepper` steps. Calls `visit`, if there is one, for every
// buffer in the plan's order.
MemorySizes LayOutMemory(
    const Plan& plan, bool shared_memory, Processor stepper,
    const std::function<void(const FlatBufferPlan&, const BufferOffsets&)>&
        visit = nullptr);

// Lays out the memory through which offloaded updates pass, the same for every
// rank. `offload` null: none.
OffloadStaging StagingOf(const Plan& plan, bool shared_memory,
                         const Offload* offload);

// Returns the bytes of all slots.
uint64_t SlotBytes(const std::vector<SlotPlan>& slots);
// Returns where slot number `slot` of a depth begins. REQUIRES: 0 <= slot < the
// count at that depth.
uint64_t SlotOffset(const std::vector<SlotPlan>& slots, int32_t depth,
                    int slot);

// A buffer's place in the slot of its unit.
struct SlotPart {
  size_t buffer;    // Index into Plan::buffers().
  uint64_t offset;  // Bytes from the start of the slot.
};

// Returns the parts of a unit's slot: all buffers for parameters, the trainable
// ones for gradients.
std::vector<SlotPart> SlotParts(const Plan& plan, int32_t unit, bool grads);

}  // namespace shard

#endif  // SHARD_CORE_FLAT_MEMORY_LAYOUT_H_
