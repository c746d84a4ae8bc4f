// SPDX-License-Identifier: Apache-2.0
//
// Updates a range's parameters from its gradients, in memory that all ranks
// see: the local half of a step, for optimizers of elements, of whole
// parameters and of matrices.

#ifndef SHARD_CORE_ENGINE_STEP_UPDATE_H_
#define SHARD_CORE_ENGINE_STEP_UPDATE_H_

#include <cstdint>

#include "core/device/stream.h"
#include "core/engine/step/owned_range.h"
#include "core/flat/plan.h"
#include "core/optim/optimizer.h"

namespace shard {

// The input of an update, the same on every rank.
struct UpdateInput {
  int64_t step;  // The number of the engine's step, from 1.
  // By ParamPlace::position: the number of the step that each parameter does,
  // from 1, or 0 where the parameter is not stepped. Null: `step` for all.
  const int64_t* param_steps;
  double scale;       // Factor of the sum of gradients.
  double clip_value;  // Clips to [-clip_value, clip_value]; infinity: none.
  bool reduced;       // Whether OwnedRange::AddNorm was called.
  Masters masters;    // PlanOptions::masters and seed.
  uint64_t seed;
};

// Returns the step number of the parameter of `slice`; see
// UpdateInput::param_steps.
inline int64_t StepOf(const RangeSlice& slice, const UpdateInput& input) {
  return input.param_steps == nullptr ? input.step
                                      : input.param_steps[slice.position];
}

// Each function enqueues on `stream` and returns the bytes that will be read
// and written; on a stream of the host nothing is allocated.

// Updates with an optimizer of single elements: one pass over the range.
uint64_t UpdateElements(const OwnedRange& range, const Optimizer& optimizer,
                        const UpdateInput& input, Stream* stream);

// Updates with an optimizer of whole parameters, one after the other. REQUIRES,
// here and below: a range of whole parameters; Plan::workspace_numel()
// elements, aligned to a page.
uint64_t UpdateTensors(const OwnedRange& range, const Optimizer& optimizer,
                       const UpdateInput& input, float* workspace,
                       Stream* stream);

// Updates with Muon: small matrices of one shape together. Each matrix is
// iterated on by its owner alone. The bytes of matrix products are not counted.
uint64_t UpdateMatrices(const OwnedRange& range, const Optimizer& optimizer,
                        const UpdateInput& input, float* workspace,
                        Stream* stream);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_UPDATE_H_
