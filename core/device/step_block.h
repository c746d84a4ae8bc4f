// SPDX-License-Identifier: Apache-2.0
//
// StepBlock: the values of one step in memory that kernels read, so that the
// host can enqueue a whole step before it knows the norm of the gradients. The
// host latches the upper half before it enqueues the step; kernels write the
// lower half, and kernels after them read it.
//
// Parameters of one group share a row of constants while they have done equally
// many steps; where they have not, there is a row for each number of steps.
//
// Lies in memory of Device::AllocateHost, with its rows. The host writes it
// only while no step is on its way: after the event that ends the step before.

#ifndef SHARD_CORE_DEVICE_STEP_BLOCK_H_
#define SHARD_CORE_DEVICE_STEP_BLOCK_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/norm.h"
#include "kernels/formula/scalars.h"

namespace shard {

// The constants of all parameters of one group that do the same step.
struct StepRow {
  int64_t step;  // From 1.
  FormulaScalars scalars;
};

// The row of a parameter that is not stepped.
inline constexpr uint32_t kNotStepped = ~uint32_t{0};

struct StepBlock {
  // Latched by the host, the same on all ranks.

  double gradient_scale;  // Factor of the sums of gradients.
  double max_grad_norm;   // 0: no clipping by norm.
  double clip_value;      // Infinity: no clipping by value.
  bool has_norm;          // A norm pass comes before the updates.
  NormType norm_type;
  double norm_p;         // The p of NormType::kP.
  uint32_t random_step;  // Numbers the random bits of the step.
  uint64_t seed;
  const StepRow* rows;
  // By ParamPlace::position: the index of the parameter's row, or kNotStepped.
  // Null: all parameters of group g have row g.
  const uint32_t* param_rows;

  // Written by kernels, or, without a norm, by the host.

  double largest;    // The largest magnitude, for NormType::kP.
  double grad_norm;  // Of the scaled gradients; -1: not computed.
  double scale;      // gradient_scale, times the coefficient of clipping.
  bool skipped;      // The norm is not finite: updates write nothing.

  // Returns the row index of a parameter.
  constexpr uint32_t RowOf(int32_t group, uint32_t position) const {
    return param_rows == nullptr ? static_cast<uint32_t>(group)
                                 : param_rows[position];
  }
};
static_assert(std::is_trivially_copyable_v<StepBlock>);

// A norm of type kP needs the largest magnitude first, in a pass of its own;
// all other norms are made in the first pass.
enum class NormPass : int32_t { kFirst, kSecond };

// Returns the norm that the pass sums up.
inline NormType NormTypeOf(const StepBlock& block, NormPass pass) {
  return block.norm_type == NormType::kP && pass == NormPass::kFirst
             ? NormType::kInf
             : block.norm_type;
}

// Returns false where the first pass has found the norm already: all gradients
// are 0, or one is not finite. REQUIRES: the first pass is finished.
inline bool NeedsSecondPass(const StepBlock& block) {
  return block.norm_type == NormType::kP && std::isfinite(block.largest) &&
         block.largest != 0;
}

// Ends a pass with the merged sums of all ranks: stores the norm, the factor of
// the gradients and whether the step is skipped.
inline void FinishNorm(NormPass pass, const NormSum& all, StepBlock* block) {
  // The value of torch.nn.utils.clip_grad_norm_.
  constexpr double kClipEpsilon = 1e-6;
  if (pass == NormPass::kSecond && !NeedsSecondPass(*block)) return;
  const double norm =
      FinishNorm(NormTypeOf(*block, pass), block->norm_p, block->largest, all);
  if (pass == NormPass::kFirst) {
    block->largest = norm;
    if (NeedsSecondPass(*block)) return;
  }
  block->grad_norm = norm * std::abs(block->gradient_scale);
  block->skipped = !std::isfinite(block->grad_norm);
  block->scale = block->gradient_scale;
  if (block->max_grad_norm > 0) {
    block->scale *=
        std::min(1.0, block->max_grad_norm / (block->grad_norm + kClipEpsilon));
  }
}

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_STEP_BLOCK_H_
