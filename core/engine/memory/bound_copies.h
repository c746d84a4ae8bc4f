// SPDX-License-Identifier: Apache-2.0
//
// BoundCopies: copies between the flat buffers and the memory that the host
// bound (BoundMemory). Parameters are copied to the host after they have
// changed. Gradients are copied from the host just before ranks may read them:
// when they become ready where that reduces them, and at the step elsewhere.
//
// Copies run on the compute stream, those of one call in one operation. Those
// of Refresh... come after what the host has done so far, and the host's next
// work comes after them; the caller orders the others. Where nothing is bound,
// nothing is copied.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_MEMORY_BOUND_COPIES_H_
#define SHARD_CORE_ENGINE_MEMORY_BOUND_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/device/host_stream.h"
#include "core/device/stream.h"
#include "core/engine/memory/bound_memory.h"
#include "core/engine/memory/buffers.h"
#include "core/flat/plan.h"

namespace shard {

class BoundCopies {
 public:
  struct Dependencies {
    const Plan* plan;
    const EngineMemory* memory;
    const BoundMemory* bound;
    HostStream* host;
    Stream* compute;
  };

  // All of `deps` must outlive this.
  explicit BoundCopies(const Dependencies& deps)
      : deps_(deps), stale_(deps.plan->units().size()) {}

  // Returns whether the host bound any memory.
  bool any() const { return deps_.bound->any(); }

  // Returns the error of binding `tensors` to a parameter: an id that does not
  // exist, a plan of stage 3, a gradient of a frozen parameter, a wrong size,
  // or memory of the engine.
  Status CheckBind(ParamId param, const BoundMemory::Tensors& tensors) const;

  // Copy parameters to the host: one, all, or those that steps change.
  // REQUIRES: they are whole, and published before the host's next work.
  Status RefreshParam(ParamId param, const Deadline& deadline);
  Status RefreshAll(const Deadline& deadline);
  Status RefreshTrainable(const Deadline& deadline);
  // Copies the trainable parameters of a unit, if they have changed since they
  // were copied.
  Status RefreshUnit(int32_t unit, const Deadline& deadline);
  // Marks all trainable parameters as changed by a step that may still be on
  // its way.
  void MarkAllStale() { stale_.assign(stale_.size(), any()); }

  // Returns the memory in which the host keeps a gradient: the bound one, or
  // `flat`, its place in the flat buffer.
  void* GradOf(ParamId param, void* flat) const;
  // Append the copy of a bound gradient to `flat`, or zeros of it, to what one
  // Stream::Fill does; nothing where none is bound.
  void AddGradCopy(ParamId param, void* flat, std::vector<MemoryFill>* fills);
  void AddGradZeros(ParamId param, std::vector<MemoryFill>* fills) const;
  // Fills all bound gradients with zeros, where gradients are whole.
  void ZeroGrads();

  // Returns the bytes that copies have read and written since the last call,
  // without those of RefreshParam.
  uint64_t TakeBytes() { return std::exchange(bytes_, 0); }

 private:
  // Append the copies of a parameter, or of a unit's. The first returns the
  // bytes that are read and written.
  uint64_t AddParam(ParamId param, std::vector<MemoryFill>* fills) const;
  void AddUnit(int32_t unit, bool with_frozen, std::vector<MemoryFill>* fills);
  // Enqueues copies to the host.
  Status Run(std::vector<MemoryFill> fills, const Deadline& deadline) const;
  Status RefreshUnits(bool with_frozen, const Deadline& deadline);
  Status CheckMemory(ParamId param, std::string_view what, DType dtype,
                     std::span<const std::byte> memory) const;

  const Dependencies deps_;
  std::vector<bool> stale_;  // By unit.
  uint64_t bytes_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_MEMORY_BOUND_COPIES_H_
