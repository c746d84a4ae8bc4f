// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/random.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/cpu/random-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

void RandomBits(const RandomStream& stream, uint32_t tensor, uint16_t* bits) {
  HWY_ALIGN uint16_t words[kRandomBlock];
  MakeRandomWords(RandomKeys(stream), stream.first_element, RandomPair(tensor),
                  0, kRandomBlock, words);
  for (int64_t e = 0; e < kRandomBlock; ++e) {
    const auto low = static_cast<uint16_t>(words[e] >> 8);
    const auto high = static_cast<uint16_t>(words[e] << 8);
    bits[e] = IsFirstOfPair(tensor) ? words[e] : low | high;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(RandomBits);

void RandomBits(const RandomStream& stream, uint32_t tensor, uint16_t* bits) {
  HWY_DYNAMIC_DISPATCH(RandomBits)(stream, tensor, bits);
}

}  // namespace shard
#endif  // HWY_ONCE
