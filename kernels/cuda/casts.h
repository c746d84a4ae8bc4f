// SPDX-License-Identifier: Apache-2.0
//
// The arguments of shard_sum_gradients, shard_widen, shard_narrow,
// shard_encode_q8 and shard_sum_blocks. Each kernel does what the function of
// that name in kernels/cpu does (gradients.h, convert.h, q8.h, block_sum.h),
// with the same bits but for those of a NaN. All pointers are to memory that
// the device reaches.
//
// Pointers need no alignment beyond their type's. Where all tensors are aligned
// to 16 bytes at one element, lanes read and write up to 16 bytes at once; else
// each element is an access.
//
// Bytes per element: those that are read, and those that are written. No
// scratch memory. Useful warps: CastWarps(count).

#ifndef SHARD_KERNELS_CUDA_CASTS_H_
#define SHARD_KERNELS_CUDA_CASTS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/base/dtype.h"
#include "kernels/cpu/random.h"
#include "kernels/cuda/sources.h"
#include "kernels/cuda/tile.h"
#include "kernels/formula/state_kind.h"

namespace shard::cuda {

// Returns the number of warps that have work. The first tile may be partial as
// well as the last.
constexpr uint64_t CastWarps(uint64_t count) {
  return count == 0 ? 0 : count / kTile + 2;
}

struct SumGradientsArgs {
  Sources sources;
  uint64_t begin;  // Of the sources' elements.
  uint64_t count;
  float scale;
  float clip_value;  // Infinity clips nothing.
  float* out;        // May be element `begin` of an f32 source.
};
static_assert(std::is_trivially_copyable_v<SumGradientsArgs>);

struct WidenArgs {
  DType dtype;
  const void* from;
  float* to;
  uint64_t count;
};
static_assert(std::is_trivially_copyable_v<WidenArgs>);

// A launch needs AesTable::kSharedBytes where it is stochastic.
struct NarrowArgs {
  DType dtype;
  bool stochastic;  // To bf16, with `random`.
  const float* from;
  void* to;
  uint64_t count;
  RandomStream random;
};
static_assert(std::is_trivially_copyable_v<NarrowArgs>);

// A launch needs AesTable::kSharedBytes where it is stochastic. REQUIRES:
// random.first_element is a multiple of 256.
struct EncodeQ8Args {
  StateKind kind;
  bool stochastic;  // With `random`; the kind is rounded stochastically.
  uint32_t tensor;
  const float* from;
  uint64_t count;
  RandomStream random;
  uint8_t* codes;
  float* scales;
};
static_assert(std::is_trivially_copyable_v<EncodeQ8Args>);

struct SumBlocksArgs {
  const void* own;  // Or null.
  const void* peers;
  int32_t own_index;
  int32_t ranks;
  DType dtype;
  DType recv_dtype;
  // 0 or 1. So there is no padding, and arguments can be told by their bytes.
  int32_t add;
  uint64_t count;
  void* recv;
};
static_assert(std::is_trivially_copyable_v<SumBlocksArgs>);

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_CASTS_H_
