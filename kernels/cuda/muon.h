// SPDX-License-Identifier: Apache-2.0
//
// The argument of the kernels around Muon's products: of a batch, which are
// matrices of one shape. shard_sum_squares of the batch's `tensors` runs
// between the first two, and the products (core/device/cuda/muon_batch.h)
// between the last two. They compute what kernels/cpu/muon_step.h and
// newton_schulz.h compute, with the same bits but for the norm, whose squares
// are added in another order.
//
// Bytes per element of f32 tensors and one source; with a bf16 `x`, those in
// parentheses:
//   shard_muon_momentum   updates the momentum; direction, its squares  16
//   shard_muon_normalize  x = direction / max(norm, eps)                8 (6)
//   shard_muon_apply      updates the parameter along x                12 (10)
//
// A part of the directions and of x is still in a GPU's L2 cache. The last two
// begin with the last tile, where the launch before has just been, and what
// no other launch reads again leaves its place in the cache first.
//
// A matrix that is not stepped, and a batch of a step that is skipped, are
// neither read nor written: their products are of whatever was there before.
//
// Useful warps: one for each tile of the batch.

#ifndef SHARD_KERNELS_CUDA_MUON_H_
#define SHARD_KERNELS_CUDA_MUON_H_

#include <cstdint>
#include <type_traits>

#include "core/base/dtype.h"
#include "kernels/cuda/update_tensors.h"
#include "kernels/formula/muon.h"

namespace shard::cuda {

// Matrices are row-major without gaps; matrix i begins i * stride bytes after
// the first. Directions are f32.
struct MuonArgs {
  UpdateTensorsArgs tensors;  // The slices are the matrices.
  float* directions;
  void* x;          // Where it is f32, this may be `directions`.
  DType x_dtype;    // f32 or bf16.
  uint64_t stride;  // A multiple of 16.
  // By Muon::Scalars::adjustment.
  double adjustments[Muon::kNumAdjustments];
};
static_assert(std::is_trivially_copyable_v<MuonArgs>);

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_MUON_H_
