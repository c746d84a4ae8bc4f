// SPDX-License-Identifier: Apache-2.0

#include "tests/bench/roof.h"

namespace shard::bench {

__attribute__((target_clones("default", "avx2", "arch=x86-64-v4"))) void
AdamRoof(const float* __restrict g0, const float* __restrict g1,
         float* __restrict p, float* __restrict m, float* __restrict v,
         size_t count, float zero) {
  for (size_t i = 0; i < count; ++i) {
    const float g = zero * (g0[i] + g1[i]);
    p[i] += g;
    m[i] += g;
    v[i] += g;
  }
}

}  // namespace shard::bench
