// SPDX-License-Identifier: Apache-2.0

#include "tests/bench/tensor_roof.h"

#define SHARD_ROOF_TARGETS \
  __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))

namespace shard::bench {

SHARD_ROOF_TARGETS void LambRoof(const float* __restrict g, float* __restrict p,
                                 float* __restrict m, float* __restrict v,
                                 size_t count, float zero) {
  for (size_t i = 0; i < count; ++i) {
    m[i] += zero * g[i];
    v[i] += zero * p[i];
  }
  for (size_t i = 0; i < count; ++i) p[i] += zero * (m[i] + v[i]);
}

SHARD_ROOF_TARGETS void AdafactorRoof(const float* __restrict g,
                                      float* __restrict p, size_t count,
                                      float zero) {
  float sum = 0;
  // Without the pragmas the order of these sums keeps the loops scalar.
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) sum += g[i];
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) sum += g[i] + p[i];
  const float none = zero * sum;
  for (size_t i = 0; i < count; ++i) p[i] += none * g[i];
}

}  // namespace shard::bench
