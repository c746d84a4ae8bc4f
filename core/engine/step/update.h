// SPDX-License-Identifier: Apache-2.0
//
// From the gradients of a range to its new parameters, in memory that all ranks
// see: the local half of a step, for each of the ways in which optimizers look
// at parameters.

#ifndef SHARD_CORE_ENGINE_STEP_UPDATE_H_
#define SHARD_CORE_ENGINE_STEP_UPDATE_H_

#include <cstdint>

#include "core/device/stream.h"
#include "core/engine/step/range.h"
#include "core/flat/plan.h"
#include "core/optim/optimizer.h"

namespace shard {

// The same on every rank.
struct UpdateInput {
  int64_t step;  // The number of the engine's step, from 1.
  // By Plan::positions(): the number of the step that each parameter does, from
  // 1, or 0 where it does none. Null: `step` for all.
  const int64_t* param_steps;
  double scale;       // What the sum of gradients is multiplied by.
  double clip_value;  // Then to [-clip_value, clip_value]; infinity: not.
  bool reduced;       // Range::AddNorm went before.
  Masters masters;    // PlanOptions::masters and seed.
  uint64_t seed;
};

// What the parameter of `slice` does: UpdateInput::param_steps.
inline int64_t StepOf(const RangeSlice& slice, const UpdateInput& input) {
  return input.param_steps == nullptr ? input.step
                                      : input.param_steps[slice.position];
}

// Each enqueues on `stream` and returns the bytes that will be read and
// written; on a stream of the host nothing is allocated.

// For optimizers that look at one element at a time: one pass over the range.
uint64_t UpdateElements(const Range& range, const Optimizer& optimizer,
                        const UpdateInput& input, Stream* stream);

// For optimizers that look at whole parameters, one after the other. REQUIRES,
// here and below: a range of whole parameters; Plan::workspace_numel()
// elements, aligned to a page.
uint64_t UpdateTensors(const Range& range, const Optimizer& optimizer,
                       const UpdateInput& input, float* workspace,
                       Stream* stream);

// For Muon: matrices of one shape together, where they are small. Each matrix
// is iterated on by its owner alone. Products are not counted as bytes.
uint64_t UpdateMatrices(const Range& range, const Optimizer& optimizer,
                        const UpdateInput& input, float* workspace,
                        Stream* stream);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_UPDATE_H_
