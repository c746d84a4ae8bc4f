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
  const bool nearest = random == nullptr || !IsRoundedStochastically(kind);
  const RandomStream stream = nearest ? RandomStream() : *random;
  const RandomKeys keys(stream);
  HWY_ALIGN uint16_t words[kBlock];
  for (size_t i = 0; i < count; i += kBlock) {
    const size_t n = std::min(kBlock, count - i);
    if (!nearest) {
      MakeRandomWords(keys, stream.first_element + static_cast<int64_t>(i),
                      RandomPair(tensor), 0, n, words);
    }
    const float scale = ScaleOfBlock(kind, from + i, n);
    scales[i / kBlock] = scale;
    EncodeBlock(kind, from + i, scale, n, tensor, nearest ? nullptr : words,
                codes + i);
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
