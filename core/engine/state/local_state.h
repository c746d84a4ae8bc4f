// SPDX-License-Identifier: Apache-2.0
//
// The places of a training state's tensors in this rank's memory, and the
// numbers that belong to the state.

#ifndef SHARD_CORE_ENGINE_STATE_LOCAL_STATE_H_
#define SHARD_CORE_ENGINE_STATE_LOCAL_STATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/element_type.h"
#include "core/engine/memory/buffers.h"
#include "core/flat/plan.h"
#include "core/optim/loss_scaler.h"
#include "core/optim/optimizer.h"
#include "core/state/state_entries.h"

namespace shard {

// Returns the elements of an entry that this rank, `rank`, owns; of a host
// tensor, this rank's copy. REQUIRES: there are some.
std::byte* LocalData(const Plan& plan, const EngineMemory& memory,
                     const StateEntry& entry, const OwnedElements& owned,
                     int rank);

// Returns TensorInfo's codebook of an entry: the meaning of the codes of a q8
// state, else 0. `optimizers`: by GroupId.
int32_t CodebookOf(const Plan& plan, const std::vector<Optimizer>& optimizers,
                   const StateEntry& entry);

// Returns the bytes of `numel` elements of an entry.
inline size_t EntryBytes(const StateEntry& entry, int64_t numel) {
  return static_cast<size_t>(numel) * ElementSize(entry.type);
}

// The numbers from which training continues, beside the tensors.
struct TrainingNumbers {
  int64_t step = 0;
  // By ParamPlace::position; empty: `step` for all.
  std::vector<int64_t> param_steps;
  // Set with dynamic loss scaling.
  std::optional<LossScaler::State> loss_scale;
  // By GroupId: the optimizer in its canonical text form, with all values.
  std::vector<std::string> groups;

  int64_t StepOf(const Plan& plan, ParamId param) const {
    if (param_steps.empty()) return step;
    return param_steps[static_cast<size_t>(plan.place(param).position)];
  }
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_LOCAL_STATE_H_
