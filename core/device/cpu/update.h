// SPDX-License-Identifier: Apache-2.0
//
// Stream::Update: updates a range with an optimizer of elements, of whole
// parameters or of matrices.
//
// Allocates nothing. Thread-safe; ranges that run at once must have workspaces
// of their own.

#ifndef SHARD_CORE_DEVICE_CPU_UPDATE_H_
#define SHARD_CORE_DEVICE_CPU_UPDATE_H_

#include <cstddef>

#include "core/device/step_block.h"
#include "core/device/update_list.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/gradients.h"

namespace shard::cpu {

// `gradients` is null, or where the gradients are read instead. `blas` is read
// for Muon only.
void Update(const UpdateList& list, size_t range, const StepBlock& block,
            const GradientSources* gradients, const Blas* blas);

// One range, its gradients, and the step that it does.
struct RangeUpdate {
  const UpdateList& list;
  const UpdateRange& range;
  const StepBlock& block;
  GradientSources gradients;
};

// One pass over the range.
void UpdateElements(const RangeUpdate& update);

// One parameter after the other.
void UpdateTensors(const RangeUpdate& update);

// Small matrices of one shape together.
void UpdateMatrices(const RangeUpdate& update, const Blas& blas);

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_UPDATE_H_
