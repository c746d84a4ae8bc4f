// SPDX-License-Identifier: Apache-2.0
//
// The arguments of shard_add_to_norm and shard_finish_norm, which do what
// Stream::AddToNorm and Stream::FinishNorm do.
//
// The sums of norms 1, 2 and infinity have the bytes that they have on the CPU,
// whatever the grid: they are exact (kernels/cpu/norm.h), and integers that
// warps add in any order. Terms of a norm p are a function of the value, p and
// the reference alone, the same on all GPUs, and differ from the CPU's in their
// last bits.

#ifndef SHARD_KERNELS_CUDA_NORM_H_
#define SHARD_KERNELS_CUDA_NORM_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/device/step_block.h"
#include "kernels/cpu/norm.h"
#include "kernels/cuda/sources.h"

namespace shard::cuda {

// The elements that a warp adds at a time.
inline constexpr uint64_t kNormTile = 1024;

// The sum of the blocks of a launch so far, in the device's memory. All zeros
// before the first launch; each launch leaves zeros. Launches that may run at
// once need one each.
struct NormScratch {
  // The terms: limb i counts 2^(32 i - 298). Limbs are two's complement and
  // wider than 32 bits, so that they are added without carries.
  static constexpr int kNumLimbs = 2 * static_cast<int>(ExactSum::kNumWords);
  uint64_t limbs[kNumLimbs];
  uint64_t largest_bits;
  uint32_t finished;  // Blocks.
};

// Adds the sum over all sources, f32, to `sum`; the first pass stores it as
// well, where the range keeps it. The second pass reads what was kept.
//
// Bytes per element, W sources: W times their size; and 4 where a sum of two or
// more is kept. Useful warps: one for each kNormTile elements. Scratch memory:
// a NormScratch.
struct AddToNormArgs {
  Sources sources;
  float* kept;  // Null: the sum is not kept.
  uint64_t count;
  NormPass pass;
  const StepBlock* block;
  NormSum* sum;
  NormScratch* scratch;
};
static_assert(std::is_trivially_copyable_v<AddToNormArgs>);

// Merges `count` sums and ends the pass. Useful warps: one.
struct FinishNormArgs {
  NormPass pass;
  uint32_t count;
  const NormSum* sums;
  StepBlock* block;
};
static_assert(std::is_trivially_copyable_v<FinishNormArgs>);

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_NORM_H_
