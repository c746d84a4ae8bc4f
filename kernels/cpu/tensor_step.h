// SPDX-License-Identifier: Apache-2.0
//
// The optimizer step of formulas that need norms of a whole parameter, or of
// its rows and columns: one parameter at a time, for the instruction set of the
// processor (chosen at run time by Highway).
//
// Passes over memory, and bytes per fp32 element where a parameter is larger
// than the caches:
//   Lamb       1  reads p, g, m, v; writes m, v; squares of p and u      24
//              2  reads p, m, v; writes p                                16
//   Adafactor, two dimensions and more
//              1  reads g; rows' and columns' squares                     4
//              2  reads p, g; squares of p and u                          8
//              3  reads p, g; writes p                                   12
//   Adafactor, fewer
//              1  reads p, g, variance; writes it; squares of p and u    16
//              2  reads p, g, variance; writes p                         16
// u, the update, is computed again instead of stored: a buffer as large as the
// parameter was no faster (within 5 % at 64 KiB, 4 MiB and 128 MiB).
//
// Sums are in double, those of a row over 1024 columns at a time, and in the
// order of ordered_sum.h and square_sum.h with any instruction set. A
// parameter's result depends on nothing but its values: neither on the contents
// of the scratch nor on alignment.
//
// Thread-safe; disjoint parameters may run at once, each with its own scratch.

#ifndef SHARD_KERNELS_CPU_TENSOR_STEP_H_
#define SHARD_KERNELS_CPU_TENSOR_STEP_H_

#include <cstddef>
#include <cstdint>

#include "kernels/formula/registry.h"

namespace shard {

struct TensorStepArgs {
  // The gradient of the whole parameter: summed, scaled and clipped.
  const float* grad;
  float* param;
  // As many as the formula has; states[s] has StateNumel(s) elements, and is
  // not read where that is 0.
  float* const* states;
  // Row-major, `ndim` sizes. A shape of 0 dimensions has one element, a shape
  // with a size of 0 none.
  const int64_t* shape;
  int ndim;
  // REQUIRES: TensorScratchElements elements, with any contents.
  float* scratch;
};

// Returns the scratch elements that TensorStep needs for a parameter of this
// shape: none for Lamb, as many as the states have for Adafactor with two
// dimensions and more. A caller that steps many parameters one after the other
// allocates the largest.
size_t TensorScratchElements(Formula formula, const int64_t* shape, int ndim);

// Returns the bytes that TensorStep reads and writes, as above, without those
// of Adafactor's rows and columns.
uint64_t TensorStepBytes(Formula formula, const int64_t* shape, int ndim);

// Updates param and states. `scalars` are the formula's (FormulaScalars::data).
// Allocates nothing. REQUIRES: Lamb or Adafactor.
void TensorStep(Formula formula, const void* scalars,
                const TensorStepArgs& args);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_TENSOR_STEP_H_
