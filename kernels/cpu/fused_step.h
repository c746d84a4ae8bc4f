// SPDX-License-Identifier: Apache-2.0
//
// The optimizer step in one pass over memory, for the instruction set of the
// processor: cast and sum the gradients, unscale, clip by value, update, and
// cast back. Intermediate results are tiles of 256 elements that stay in the L1
// cache; fp32 data is read and written in place.
//
// Precision: the update itself is always in fp32.
//
//   gradients   f32, bf16 or f16, summed in source order in fp32
//   parameter   f32, bf16 or f16. With fp32 master weights, the masters are
//               updated and the parameter is only written: the master rounded
//               to nearest even. Without, the parameter is widened, updated and
//               rounded back, to nearest even or (bf16) stochastically: to
//               nearest, an update smaller than half a unit in the last place
//               is lost.
//   states      f32; for formulas with NarrowStateKinds also bf16 or 8 bits
//               (q8.h). Narrow averages are always rounded stochastically: to
//               nearest, an average with beta2 = 0.999 would freeze. Narrow
//               maxima are rounded to nearest.
//
// Bytes per element: W sources of g bytes; the parameter of p bytes, read and
// written, or with a master p + 8; and 2 s for each state of s bytes (f32: 4;
// bf16: 2; q8: 1.016).
//   AdamW, all fp32, W = 1                       28
//   AdamW, bf16 with fp32 master and states      28
//   AdamW, bf16 without a master, fp32 states    22
//   AdamW, fp32 with 8-bit states                16.1
//
// The result of an element depends neither on where a call begins nor on its
// neighbours (for q8: on the neighbours outside its block), so a range may be
// split over threads at any element; for q8 at multiples of 256. Instruction
// sets differ in one point: some have no fused multiply-add, which formulas
// use. Pointers need no alignment beyond their type's; 64 bytes are fastest.
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
#include "kernels/formula/registry.h"

namespace shard {

struct FusedStepArgs {
  GradientSources gradients = {};
  // The first element of this call, counted in the sources.
  size_t gradients_begin = 0;
  // The factor of the sum: 1/world size, unscaling, clipping by norm.
  double gradient_scale = 1;
  // The scaled sums are clipped to [-clip_value, clip_value]. REQUIRES: > 0.
  double clip_value = std::numeric_limits<double>::infinity();

  void* param = nullptr;
  // REQUIRES: f32, bf16 or f16.
  DType param_dtype = DType::kF32;
  // NULL when there is none.
  float* master = nullptr;
  // For a parameter without a master. REQUIRES: then it is bf16.
  bool stochastic_rounding = false;

  // As many states as the formula has. REQUIRES: f32, or NarrowStateKinds and
  // bf16 or q8.
  void* const* states = nullptr;
  DType state_dtype = DType::kF32;
  // For q8: scales[s] has one scale for each block of 256 elements.
  float* const* scales = nullptr;

  // Read where a value is rounded stochastically. For q8, REQUIRES:
  // first_element is a multiple of 256 (the last block of a call may be
  // partial).
  RandomStream random = {};

  size_t count = 0;
};

// Updates param (or master) and states of `count` elements. `scalars` are the
// formula's (FormulaScalars::data). REQUIRES: an element formula.
void FusedStep(Formula formula, const void* scalars, const FusedStepArgs& args);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_FUSED_STEP_H_
