// SPDX-License-Identifier: Apache-2.0
//
// Where in this rank's memory the tensors of a training state lie, and the
// numbers that belong to them.

#ifndef SHARD_CORE_ENGINE_STATE_LOCAL_STATE_H_
#define SHARD_CORE_ENGINE_STATE_LOCAL_STATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/memory/buffers.h"
#include "core/flat/plan.h"
#include "core/optim/loss_scaler.h"
#include "core/optim/optimizer.h"
#include "core/state/state_entries.h"

namespace shard {

// Elements that `rank`, this one, owns of an entry. REQUIRES: there are some.
std::byte* LocalData(const Plan& plan, const EngineMemory& memory,
                     const StateEntry& entry, const OwnedElements& owned,
                     int rank);

// As TensorInfo: of states in q8 what their codes are, else 0. `optimizers`: by
// GroupId.
int32_t CodebookOf(const Plan& plan, const std::vector<Optimizer>& optimizers,
                   const StateEntry& entry);

// Bytes of that many elements of an entry.
inline size_t EntryBytes(const StateEntry& entry, int64_t numel) {
  return static_cast<size_t>(numel) * DTypeSize(entry.dtype);
}

// What training goes on from, beside tensors.
struct TrainingNumbers {
  int64_t step = 0;
  // By Plan::positions(); empty: `step` for all.
  std::vector<int64_t> param_steps;
  // Of dynamic loss scaling.
  std::optional<LossScaler::State> loss_scale;
  // By GroupId: the optimizer in its canonical text form, with all values.
  std::vector<std::string> groups;

  int64_t StepOf(const Plan& plan, ParamId param) const {
    if (param_steps.empty()) return step;
    return param_steps[static_cast<size_t>(
        plan.positions()[static_cast<size_t>(param)])];
  }
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_LOCAL_STATE_H_
