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
// The block and its rows are one piece of memory, which kernels read and write
// as fast as tensors: that of the tensors (Device::Allocate). Where the host
// does not reach tensors, it has a second block (StepLatch), which streams
// copy. The host writes its block only while no step is on its way: after the
// event that ends the step before.

#ifndef SHARD_CORE_DEVICE_STEP_BLOCK_H_
#define SHARD_CORE_DEVICE_STEP_BLOCK_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cpu/norm.h"
#include "kernels/formula/scalars.h"
#include "kernels/formula/target.h"

namespace shard {

// The constants of all parameters of one group that do the same step.
struct StepRow {
  int64_t step;  // From 1.
  FormulaScalars scalars;
};

// The row of a parameter that is not stepped.
inline constexpr uint32_t kNotStepped = ~uint32_t{0};

struct StepBlock {
  // Not 0 once a collective has failed on the device, so that kernels after it
  // see data that did not come: updates on a GPU then write nothing. The host
  // writes it at any time (StepLatch::Poison), and copies it apart from the
  // other values.
  uint32_t poisoned;

  // Latched by the host, the same on all ranks.

  double gradient_scale;  // Factor of the sums of gradients.
  double max_grad_norm;   // 0: no clipping by norm.
  double clip_value;      // Infinity: no clipping by value.
  bool has_norm;          // A norm pass comes before the updates.
  NormType norm_type;
  double norm_p;         // The p of NormType::kP.
  uint32_t random_step;  // Numbers the random bits of the step.
  uint64_t seed;
  // Where the rows lie, in bytes from the block: a copy of both is a block. By
  // ParamPlace::position: the index of the parameter's row, or kNotStepped; 0:
  // all parameters of group g have row g.
  int64_t rows_at;
  int64_t param_rows_at;

  // Written by kernels, or, without a norm, by the host.

  double largest;    // The largest magnitude, for NormType::kP.
  double grad_norm;  // Of the scaled gradients; -1: not computed.
  double scale;      // gradient_scale, times the coefficient of clipping.
  bool skipped;      // The norm is not finite: updates write nothing.

  // Returns whether kernels of a GPU update nothing.
  constexpr bool drops_updates() const { return skipped || poisoned != 0; }

  SHARD_FORMULA_INLINE const StepRow* rows() const {
    return static_cast<const StepRow*>(At(rows_at));
  }
  constexpr bool has_param_rows() const { return param_rows_at != 0; }
  SHARD_FORMULA_INLINE const uint32_t* param_rows() const {
    return static_cast<const uint32_t*>(At(param_rows_at));
  }
  // Returns the row index of a parameter.
  uint32_t RowOf(int32_t group, uint32_t position) const {
    return has_param_rows() ? param_rows()[position]
                            : static_cast<uint32_t>(group);
  }

  // `param_rows` may be null.
  void SetRows(const StepRow* rows, const uint32_t* param_rows) {
    rows_at = DistanceOf(rows);
    param_rows_at = param_rows == nullptr ? 0 : DistanceOf(param_rows);
  }

 private:
  SHARD_FORMULA_INLINE const void* At(int64_t bytes) const {
    return reinterpret_cast<const void*>(reinterpret_cast<intptr_t>(this) +
                                         bytes);
  }
  int64_t DistanceOf(const void* there) const {
    return reinterpret_cast<intptr_t>(there) - reinterpret_cast<intptr_t>(this);
  }
};
static_assert(std::is_trivially_copyable_v<StepBlock>);

// The block of a step as the host and as kernels have it, which are one and the
// same where both reach it.
struct StepBlocks {
  const StepBlock* host;
  const StepBlock* kernels;

  static StepBlocks Shared(const StepBlock* block) { return {block, block}; }
};

// A norm of type kP needs the largest magnitude first, in a pass of its own;
// all other norms are made in the first pass.
enum class NormPass : int32_t { kFirst, kSecond };

// Returns the norm that the pass sums up.
constexpr NormType NormTypeOf(const StepBlock& block, NormPass pass) {
  return block.norm_type == NormType::kP && pass == NormPass::kFirst
             ? NormType::kInf
             : block.norm_type;
}

constexpr bool IsFinite(double x) {
  return std::numeric_limits<double>::lowest() <= x &&
         x <= std::numeric_limits<double>::max();
}

// Returns false where the first pass has found the norm already: all gradients
// are 0, or one is not finite. REQUIRES: the first pass is finished.
constexpr bool NeedsSecondPass(const StepBlock& block) {
  return block.norm_type == NormType::kP && IsFinite(block.largest) &&
         block.largest != 0;
}

// Ends a pass: stores the norm, the factor of the gradients and whether the
// step is skipped. `norm` computes the norm of the merged sums of all ranks,
// norm(type, p, reference), as FinishNorm of kernels/cpu.
template <class Norm>
constexpr void FinishNormWith(const Norm& norm, NormPass pass,
                              StepBlock* block) {
  // The value of torch.nn.utils.clip_grad_norm_.
  constexpr double kClipEpsilon = 1e-6;
  if (pass == NormPass::kSecond && !NeedsSecondPass(*block)) return;
  const double found =
      norm(NormTypeOf(*block, pass), block->norm_p, block->largest);
  if (pass == NormPass::kFirst) {
    block->largest = found;
    if (NeedsSecondPass(*block)) return;
  }
  const double factor = block->gradient_scale;
  block->grad_norm = found * (factor < 0 ? -factor : factor);
  block->skipped = !IsFinite(block->grad_norm);
  block->scale = factor;
  if (block->max_grad_norm > 0) {
    block->scale *=
        std::min(1.0, block->max_grad_norm / (block->grad_norm + kClipEpsilon));
  }
}

// The same with `all`, those sums.
inline void FinishNorm(NormPass pass, const NormSum& all, StepBlock* block) {
  FinishNormWith(
      [&](NormType type, double p, double reference) {
        return FinishNorm(type, p, reference, all);
      },
      pass, block);
}

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_STEP_BLOCK_H_
