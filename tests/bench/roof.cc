// SPDX-License-Identifier: Apache-2.0

#include "tests/bench/roof.h"

#include <bit>

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

namespace {

inline float Widened(uint16_t bf16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16);
}

inline uint16_t Truncated(float x) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
}

}  // namespace

SHARD_ROOF_TARGETS void Bf16MasterRoof(const uint16_t* __restrict g,
                                       uint16_t* __restrict p,
                                       float* __restrict master,
                                       float* __restrict m, float* __restrict v,
                                       size_t count, float zero) {
  for (size_t i = 0; i < count; ++i) {
    const float change = zero * Widened(g[i]);
    master[i] += change;
    m[i] += change;
    v[i] += change;
    p[i] = Truncated(master[i]);
  }
}

SHARD_ROOF_TARGETS void Bf16Roof(const uint16_t* __restrict g,
                                 uint16_t* __restrict p, float* __restrict m,
                                 float* __restrict v, size_t count,
                                 float zero) {
  for (size_t i = 0; i < count; ++i) {
    const float change = zero * Widened(g[i]);
    p[i] = Truncated(Widened(p[i]) + change);
    m[i] += change;
    v[i] += change;
  }
}

SHARD_ROOF_TARGETS void Q8Roof(const float* __restrict g, float* __restrict p,
                               uint8_t* __restrict m, uint8_t* __restrict v,
                               size_t count, float zero) {
  const auto none = static_cast<uint8_t>(zero);
  for (size_t i = 0; i < count; ++i) {
    p[i] += zero * g[i];
    m[i] = static_cast<uint8_t>(m[i] + none);
    v[i] = static_cast<uint8_t>(v[i] + none);
  }
}

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

SHARD_ROOF_TARGETS void StoreRoof(float* out, size_t count, float scale) {
  const auto n = static_cast<int32_t>(count);
  for (int32_t i = 0; i < n; ++i) out[i] = scale * static_cast<float>(i);
}

SHARD_ROOF_TARGETS void AddRoof(float* out, size_t count, float scale) {
  const auto n = static_cast<int32_t>(count);
  for (int32_t i = 0; i < n; ++i) out[i] += scale * static_cast<float>(i);
}

SHARD_ROOF_TARGETS void SumRoof(const float* __restrict g0,
                                const float* __restrict g1,
                                float* __restrict sum, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = g0[i] + g1[i];
}

SHARD_ROOF_TARGETS double SquaresRoof(const float* values, size_t count) {
  // The number of sums hides the latency of additions: the compiler may not
  // change their order.
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
