// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/q8.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/q8.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/cpu/q8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

void EncodeQ8(StateKind kind, const float* from, size_t count,
              const RandomStream* random, uint32_t tensor, uint8_t* codes,
              float* scales) {
  constexpr auto kBlock = static_cast<size_t>(kQ8Block);
  static_assert(kQ8Block == kRandomBlock);
  const bool nearest = random == nullptr || kind == StateKind::kSquareMaximum;
  const RandomKeys keys(nearest ? 0 : random->seed);
  RandomStream block = nearest ? RandomStream() : *random;
  HWY_ALIGN uint16_t bits[kBlock];
  for (size_t i = 0; i < count; i += kBlock) {
    if (!nearest) MakeRandomBits(keys, block, tensor, bits);
    EncodeBlock(kind, from + i, std::min(kBlock, count - i),
                nearest ? nullptr : bits, codes + i, scales + i / kBlock);
    block.first_element += kQ8Block;
  }
}

void DecodeQ8(StateKind kind, const uint8_t* codes, const float* scales,
              float* to, size_t count) {
  DecodeBlocks(kind, codes, scales, to, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(EncodeQ8);
HWY_EXPORT(DecodeQ8);

void EncodeQ8(StateKind kind, const float* from, size_t count,
              const RandomStream* random, uint32_t tensor, uint8_t* codes,
              float* scales) {
  HWY_DYNAMIC_DISPATCH(EncodeQ8)
  (kind, from, count, random, tensor, codes, scales);
}

void DecodeQ8(StateKind kind, const uint8_t* codes, const float* scales,
              float* to, size_t count) {
  HWY_DYNAMIC_DISPATCH(DecodeQ8)(kind, codes, scales, to, count);
}

}  // namespace shard
#endif  // HWY_ONCE
