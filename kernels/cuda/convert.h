// SPDX-License-Identifier: Apache-2.0
//
// The casts of kernels/cpu/convert-inl.h, which explains them, for one element.

#ifndef SHARD_KERNELS_CUDA_CONVERT_H_
#define SHARD_KERNELS_CUDA_CONVERT_H_

#include <cstdint>

#include "kernels/cuda/device.h"

namespace shard::cuda {

SHARD_DEVICE float FromF16(uint32_t half) {
  const uint32_t sign = (half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7FFF;
  uint32_t bits = (magnitude << 13) + (112u << 23);
  if (magnitude > 0x7BFF) bits += 112u << 23;
  if (magnitude < 0x400) {
    bits =
        BitsOf(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  }
  return FloatOf(bits | sign);
}

// Returns the 16 bits of f16 nearest to x.
SHARD_DEVICE uint32_t ToF16(float x) {
  const uint32_t bits = BitsOf(x);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t half =
      (magnitude - ((112u << 23) - 0xFFF) + (magnitude >> 13 & 1)) >> 13;
  if (magnitude < 113u << 23) {
    half = BitsOf(FloatOf(magnitude) + 0.5f) - (126u << 23);
  }
  if (magnitude > 0x477FEFFF) half = 0x7C00;
  if (magnitude > 0x7F800000) half = 0x7E00;
  return half | sign;
}

// Returns the 16 bits of bf16 nearest to x.
SHARD_DEVICE uint32_t ToBf16(float x) {
  const uint32_t bits = BitsOf(x);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  const uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
  return (nan ? bits | 0x400000 : rounded) >> 16;
}

// Rounds to bf16 with 16 random bits.
SHARD_DEVICE uint32_t ToBf16(float x, uint32_t random) {
  const uint32_t bits = BitsOf(x);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const uint32_t rounded = magnitude > 0x7F7EFFFF ? bits : bits + random;
  return (magnitude > 0x7F800000 ? rounded | 0x400000 : rounded) >> 16;
}

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_CONVERT_H_
