// SPDX-License-Identifier: Apache-2.0
//
// The argument of the kernels that update a range with an optimizer of
// elements, one for each formula: shard_update_AdamW and so on. A kernel does
// for the range what core/device/cpu/update_elements.cc does for it, with the
// same bits but for those of a NaN, in one launch whatever the number of
// parameters.
//
// Bytes per element: those of FusedStep (kernels/cpu/fused_step.h).

#ifndef SHARD_KERNELS_CUDA_UPDATE_ELEMENTS_H_
#define SHARD_KERNELS_CUDA_UPDATE_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/base/dtype.h"
#include "core/device/step_block.h"
#include "kernels/cuda/peers.h"
#include "kernels/cuda/sources.h"
#include "kernels/formula/registry.h"

namespace shard::cuda {

// A parameter, or the part of one, that lies in a range.
struct ElementSlice {
  uint64_t begin;       // First element, from the range's begin.
  uint64_t count;       // > 0
  int64_t param_begin;  // The same element, from the parameter's first.
  uint32_t position;    // In StepBlock::param_rows, and of random bits.
  // The number of tiles in the slices before. Tiles begin where the
  // parameter's blocks of 256 do.
  uint32_t first_tile;
};

// All pointers are to memory that the device reaches; tensors begin at the
// range's first element.
struct ElementRange {
  Sources sources;  // Gradients, in the order of their sum.
  // The sum of the gradients, of the sources' dtype, which is read instead
  // where a norm pass has left it there (StepBlock::has_norm). Null: the
  // sources are read.
  const void* kept_sum;

  DType param_dtype;
  DType state_dtype;
  void* param;
  // Where the parameters of the range lie on other GPUs, which then get them,
  // too: `num_peers` pointers in memory of the device.
  void* const* peer_params;
  uint32_t num_peers;
  float* master;  // Null where there is none.
  void* states[kMaxStates];
  float* scales[kMaxStates];  // kQ8: one for each 256 elements.
  bool stochastic_rounding;   // Of bf16 parameters without a master.
  bool needs_random;          // For a parameter or a state.

  uint64_t count;
  int32_t group;
  // The slices are updated one by one where random bits or blocks are numbered
  // by the parameter's element, or where parameters do different steps;
  // otherwise the range as a whole, with its padding.
  bool by_param;
  uint32_t num_slices;
  uint32_t num_tiles;  // Of all slices.
  const ElementSlice* slices;
};

// One launch updates one range, or all ranges of a step that have the same
// formula.
struct UpdateElementsArgs {
  ElementRange range;
  // The ranges after it, in memory of the device; they need random bits where
  // it does.
  const ElementRange* more;
  uint32_t num_more;
  const StepBlock* block;
  // The meetings with the ranks whose gradients the sources are, and whose
  // parameters are stored; null where all of them are this rank's.
  PeerMeetings* meetings;
};
static_assert(std::is_trivially_copyable_v<UpdateElementsArgs>);

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_UPDATE_ELEMENTS_H_
