// SPDX-License-Identifier: Apache-2.0
//
// Stream::AddGradientsToNorm: computes the sum over the sources and its norm
// tile by tile, so that the sum is read again from the L1 cache.
//
// Bytes per element, W sources: W times their size; and 4 where the sum is
// kept. Thread-safe; sums must differ.

#ifndef SHARD_CORE_DEVICE_CPU_GRADIENT_NORM_H_
#define SHARD_CORE_DEVICE_CPU_GRADIENT_NORM_H_

#include <cstddef>

#include "kernels/cpu/gradients.h"
#include "kernels/cpu/norm.h"

namespace shard::cpu {

// Does the work of SumGradients and AddToNorm. `out` is null, or receives the
// `count` sums; it may be element `begin` of an f32 source.
void AddGradientsToNorm(NormType type, double p, double reference,
                        const GradientSources& sources, size_t begin,
                        size_t count, float* out, NormSum* sum);

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_GRADIENT_NORM_H_
