// SPDX-License-Identifier: Apache-2.0
//
// BoundMemory: memory of the host that is bound to parameters and gradients.
// The flat buffers stay the only memory that ranks share and kernels update:
// bound memory is copied (bound_copies.h), so that a binding of one rank
// changes nothing for the others.
//
// Bindings are kept by ParamId and outlive a change of the plan. No two bound
// regions overlap.
//
// Pure bookkeeping: owns, reads and writes no bound memory. Thread-compatible.

#ifndef SHARD_CORE_ENGINE_MEMORY_BOUND_MEMORY_H_
#define SHARD_CORE_ENGINE_MEMORY_BOUND_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/model/model.h"

namespace shard {

class BoundMemory {
 public:
  // The memory that is bound to one parameter. An empty span: none.
  struct Tensors {
    std::span<std::byte> values;  // Receives the parameter.
    std::span<std::byte> grad;    // Holds this rank's gradient.
  };

  // Binds memory in place of what was bound to the parameter before. Errors, on
  // which nothing changes: memory that overlaps other bound memory.
  Status Bind(ParamId param, const Tensors& tensors);

  // Returns the memory that is bound to a parameter.
  Tensors Of(ParamId param) const {
    const auto p = static_cast<size_t>(param);
    return p < tensors_.size() ? tensors_[p] : Tensors();
  }
  // Returns whether any memory is bound.
  bool any() const { return !regions_.empty(); }

 private:
  struct Region {
    uintptr_t end;
    ParamId param;
  };

  // Returns OK when no region of another parameter overlaps `memory`.
  Status CheckFree(ParamId param, std::span<const std::byte> memory) const;

  std::vector<Tensors> tensors_;         // By ParamId; may be shorter.
  std::map<uintptr_t, Region> regions_;  // By first byte.
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_MEMORY_BOUND_MEMORY_H_
