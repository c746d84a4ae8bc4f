// SPDX-License-Identifier: Apache-2.0
//
// The gradient of a range of elements: cast, sum over all sources, scale and
// clip by value, in one pass. The sum is in source order and in fp32 for all
// source dtypes, so every rank count and every instruction set gives the same
// result.
//
// Bytes per element, W sources: W times their size, and 4 written; only the
// sources' where `out` stays in the L1 cache.
//
// Thread-safe; disjoint ranges may run at once. Pointers need no alignment
// beyond their type's.

#ifndef SHARD_KERNELS_CPU_GRADIENTS_H_
#define SHARD_KERNELS_CPU_GRADIENTS_H_

#include <cstddef>

#include "core/base/dtype.h"

namespace shard {

struct GradientSources {
  // data[w] is source w's first element. REQUIRES: at least one source; f32,
  // bf16 or f16.
  const void* const* data;
  size_t count;
  DType dtype;
};

// Sets out[i] = scale (sum over the sources of element begin + i), i < count,
// and clips it to [-clip_value, clip_value]; infinity clips nothing. NaN stays
// NaN. `out` may be element `begin` of an f32 source. REQUIRES: clip_value > 0.
void SumGradients(const GradientSources& sources, size_t begin, size_t count,
                  double scale, double clip_value, float* out);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_GRADIENTS_H_
