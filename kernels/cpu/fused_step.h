// SPDX-License-Identifier: Apache-2.0
//
// The optimizer step's two passes over memory, for the instruction set the
// processor has (AVX-512, AVX2, SSE4; chosen at run time by Highway).
//
// Bytes per fp32 element, W gradient sources, S optimizer states:
//   FusedStep     4 W + 8 + 8 S    (AdamW, 2 ranks: 32)
//   ReduceSquares 4 W + 4          (then FusedStep with W = 1)
//
// Gradients are summed in source order, in fp32, so that every rank count has
// one result. Pointers need no alignment; 64 bytes are fastest.
//
// Thread-safe; disjoint ranges may run at once.

#ifndef SHARD_KERNELS_CPU_FUSED_STEP_H_
#define SHARD_KERNELS_CPU_FUSED_STEP_H_

#include <cstddef>
#include <cstdint>

#include "kernels/formula/registry.h"

namespace shard {

struct FusedStepArgs {
  // sources[w][i] is source w's gradient of element i. REQUIRES: at least one.
  const float* const* sources;
  size_t num_sources;
  // The sum is multiplied by this: 1/world size, unscaling, clipping.
  double gradient_scale;
  float* param;
  // As many as the formula has.
  float* const* states;
  size_t count;
};

// Sums the sources, updates param and states. `hypers` as the formula declares
// them; `step` counts from 1. REQUIRES: an element formula.
void FusedStep(Formula formula, const double* hypers, int64_t step,
               const FusedStepArgs& args);

// sum[i] = sources[0][i] + sources[1][i] + ...; returns the sum of squares of
// that, accumulated in double: not finite when an element is not. `sum` may be
// one of the sources.
double ReduceSquares(const float* const* sources, size_t num_sources,
                     float* sum, size_t count);

// "AVX3", "AVX2", ...: the instruction set in use.
const char* KernelTargetName();

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_FUSED_STEP_H_
