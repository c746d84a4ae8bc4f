// SPDX-License-Identifier: Apache-2.0
//
// The codes of kernels/cpu/q8-inl.h, which explains them, for the elements of a
// lane.

#ifndef SHARD_KERNELS_CUDA_Q8_H_
#define SHARD_KERNELS_CUDA_Q8_H_

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/tile.h"
#include "kernels/formula/state_kind.h"

namespace shard::cuda {

inline constexpr float kSignedTop = 122878.0f;
inline constexpr float kSquareTop = 126976.0f;
inline constexpr uint32_t kInfinityBits = 0x7F800000;
inline constexpr uint32_t kNanBits = 0x7FC00000;

SHARD_DEVICE uint32_t CodeOf(const Raw& raw, int k) {
  return raw.w[k / 4] >> k % 4 * 8 & 0xFF;
}

// Converts the lane's codes to floats.
SHARD_DEVICE void DecodeQ8(StateKind kind, const Raw& raw, float scale,
                           float* to) {
  const bool is_signed = kind == StateKind::kAverage;
  const float unit = Div(scale, is_signed ? kSignedTop : kSquareTop);
  SHARD_UNROLL
  for (int k = 0; k < kPerLane; ++k) {
    const uint32_t code = CodeOf(raw, k);
    if (is_signed) {
      const float z = FloatOf(0x40000000u | (code & 0x7F) << 20);
      to[k] = FloatOf(BitsOf((z - 2.0f) * unit) | (code & 0x80) << 24);
    } else {
      const uint32_t upper = (code << 19) + 0x40000000u;
      const uint32_t lower = (code << 21) + 0x3B800000u;
      const float z = FloatOf(upper < lower ? upper : lower);
      to[k] = (z - 0x1p-8f) * unit;
    }
  }
}

// Returns the scale of a block from the bits of its largest magnitude.
SHARD_DEVICE float ScaleOfBlock(StateKind kind, uint32_t largest_bits) {
  constexpr float kSmallest = 0x1p-110f;
  if (largest_bits >= kInfinityBits) return FloatOf(kNanBits);
  const bool is_signed = kind == StateKind::kAverage;
  float scale = FloatOf(largest_bits);
  if (scale < kSmallest) {
    if (is_signed || scale == 0) return 0;
    scale = kSmallest;
  }
  const float top = is_signed ? kSignedTop : kSquareTop;
  const float decoded = top * Div(scale, top);
  return (BitsOf(decoded) & 0x7FFFFFFF) < kInfinityBits ? decoded : scale;
}

// Returns the codes of the lane's elements. `random(k)`: 16 bits for element k,
// or the middle, which rounds to nearest.
template <class Random>
SHARD_DEVICE Raw EncodeQ8(StateKind kind, const float* from, float scale,
                          const Random& random) {
  Raw raw = {};
  // A scale of 0 or NaN determines every element.
  if (!(scale > 0)) return raw;
  const bool is_signed = kind == StateKind::kAverage;
  const float factor = Div(is_signed ? kSignedTop : kSquareTop, scale);
  SHARD_UNROLL
  for (int k = 0; k < kPerLane; ++k) {
    const uint32_t x = BitsOf(from[k]);
    uint32_t code = 0;
    if (is_signed) {
      const float z = FloatOf(x & 0x7FFFFFFF) * factor + 2.0f;
      code = (BitsOf(z) << 4) + (random(k) << 8) + (1u << 7);
      code |= x & 0x80000000u;
    } else {
      const auto upper =
          static_cast<int32_t>(BitsOf(from[k] * factor + 0x1p-8f));
      const int32_t lower = (upper >> 2) + 0x41800000 / 4 * 3;
      code = (static_cast<uint32_t>(upper > lower ? upper : lower) << 5) +
             (random(k) << 8) + (1u << 7);
      const uint32_t least = x < 1u << 24 ? x : 1u << 24;
      if (code < least) code = least;
    }
    raw.w[k / 4] |= code >> 24 << k % 4 * 8;
  }
  return raw;
}

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_Q8_H_
