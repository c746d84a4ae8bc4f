// SPDX-License-Identifier: Apache-2.0
//
// The optimizer step in one pass over memory, for the instruction set the
// processor has: cast and sum the gradients, unscale, clip by value, update,
// and cast back. Tiles of 256 elements stay in the L1 cache in between; what is
// fp32 already is read and written in place.
//
// Precision: the update itself is in fp32, always.
//
//   gradients   f32, bf16 or f16, summed in source order in fp32
//   parameter   f32, bf16 or f16. With fp32 master weights these are updated
//               and the parameter is only written: the master to nearest even.
//               Without, the parameter is widened, updated and rounded back, to
//               nearest even or (bf16) stochastically: to nearest, an update
//               smaller than half a unit in the last place is lost.
//   states      f32; for formulas with NarrowStateKinds also bf16 or 8 bits
//               (q8.h). Narrow averages are rounded stochastically, always: to
//               nearest, an average with beta2 = 0.999 would freeze. Narrow
//               maxima are rounded to nearest.
//
// Bytes per element: W sources of g bytes; parameter of p bytes, read and
// written, or with a master p + 8; and 2 s for each state of s bytes (f32: 4;
// bf16: 2; q8: 1.016).
//   AdamW, all fp32, W = 1                       28
//   AdamW, bf16 with fp32 master and states      28
//   AdamW, bf16 without a master, fp32 states    22
//   AdamW, fp32 with 8-bit states                16.1
//
// The result of an element does not depend on where a call begins, nor on its
// neighbours (but with q8: of its block), so ranges may be split as threads
// like: for q8 at multiples of 256. Instruction sets differ in one thing: some
// have no fused multiply-add, which formulas use. Pointers need no alignment
// beyond their type's; 64 bytes are fastest.
//
// Thread-safe; disjoint ranges may run at once.

#ifndef SHARD_KERNELS_CPU_FUSED_STEP_H_
#define SHARD_KERNELS_CPU_FUSED_STEP_H_

#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/base/dtype.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/target.h"
#include "kernels/formula/registry.h"

namespace shard {

struct FusedStepArgs {
  GradientSources gradients = {};
  // The sources' element that is this call's first.
  size_t gradients_begin = 0;
  // The sum is multiplied by this: 1/world size, unscaling, clipping by norm.
  double gradient_scale = 1;
  // Then its elements are cut to [-clip_value, clip_value]. REQUIRES: > 0.
  double clip_value = std::numeric_limits<double>::infinity();

  void* param = nullptr;
  // REQUIRES: f32, bf16 or f16.
  DType param_dtype = DType::kF32;
  // NULL: none.
  float* master = nullptr;
  // Of a parameter without a master. REQUIRES: then it is bf16.
  bool stochastic_rounding = false;

  // As many as the formula has. REQUIRES: f32, or NarrowStateKinds and bf16
  // or q8.
  void* const* states = nullptr;
  DType state_dtype = DType::kF32;
  // For q8: scales[s] has one scale for each block of 256 elements.
  float* const* scales = nullptr;

  // Read where something is rounded stochastically. For q8, REQUIRES:
  // first_element is a multiple of 256 (the last block of a call may be
  // partial).
  RandomStream random = {};

  size_t count = 0;
};

// Updates param (or master) and states of `count` elements. `hypers` as the
// formula declares them; `step` counts from 1. REQUIRES: an element formula.
void FusedStep(Formula formula, const double* hypers, int64_t step,
               const FusedStepArgs& args);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_FUSED_STEP_H_
