// SPDX-License-Identifier: Apache-2.0

#include "tests/bench/roof.h"

#define SHARD_ROOF_TARGETS \
  __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))

namespace shard::bench {

SHARD_ROOF_TARGETS void AdamRoof(const float* __restrict g0,
                                 const float* __restrict g1,
                                 float* __restrict p, float* __restrict m,
                                 float* __restrict v, size_t count,
                                 float zero) {
  for (size_t i = 0; i < count; ++i) {
    const float g = zero * (g0[i] + g1[i]);
    p[i] += g;
    m[i] += g;
    v[i] += g;
  }
}

namespace {

SHARD_ROOF_TARGETS void Roof0(const float* __restrict g, float* __restrict p,
                              size_t count, float zero) {
  for (size_t i = 0; i < count; ++i) p[i] += zero * g[i];
}

SHARD_ROOF_TARGETS void Roof1(const float* __restrict g, float* __restrict p,
                              float* __restrict a, size_t count, float zero) {
  for (size_t i = 0; i < count; ++i) {
    p[i] += zero * g[i];
    a[i] += zero * g[i];
  }
}

SHARD_ROOF_TARGETS void Roof2(const float* __restrict g, float* __restrict p,
                              float* __restrict a, float* __restrict b,
                              size_t count, float zero) {
  for (size_t i = 0; i < count; ++i) {
    p[i] += zero * g[i];
    a[i] += zero * g[i];
    b[i] += zero * g[i];
  }
}

SHARD_ROOF_TARGETS void Roof3(const float* __restrict g, float* __restrict p,
                              float* __restrict a, float* __restrict b,
                              float* __restrict c, size_t count, float zero) {
  for (size_t i = 0; i < count; ++i) {
    p[i] += zero * g[i];
    a[i] += zero * g[i];
    b[i] += zero * g[i];
    c[i] += zero * g[i];
  }
}

}  // namespace

void UpdateRoof(const float* g, float* p, float* const* states,
                size_t num_states, size_t count, float zero) {
  switch (num_states) {
    case 0:
      return Roof0(g, p, count, zero);
    case 1:
      return Roof1(g, p, states[0], count, zero);
    case 2:
      return Roof2(g, p, states[0], states[1], count, zero);
    case 3:
      return Roof3(g, p, states[0], states[1], states[2], count, zero);
  }
}

SHARD_ROOF_TARGETS double SquaresRoof(const float* values, size_t count) {
  // As many sums as hide the latency of additions: the compiler may not change
  // their order.
  constexpr size_t kSums = 32;
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (size_t j = 0; j < kSums; ++j) {
      const auto value = static_cast<double>(values[i + j]);
      sums[j] += value * value;
    }
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  for (; i < count; ++i) {
    total += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return total;
}

}  // namespace shard::bench
