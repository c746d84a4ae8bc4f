// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/convert.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

void Widen(DType dtype, const void* from, float* to, size_t count) {
  WidenTensor(dtype, from, to, count);
}

void Narrow(DType dtype, const float* from, void* to, size_t count,
            const RandomStream* random) {
  if (random == nullptr) return NarrowToNearest(dtype, from, to, count);
  const RandomKeys keys(*random);
  int64_t element = random->first_element;
  HWY_ALIGN uint16_t words[kRandomBlock];
  while (count > 0) {
    const auto offset = static_cast<size_t>(element % kRandomBlock);
    const size_t n = std::min(count, kRandomBlock - offset);
    MakeRandomWords(keys, element, RandomPair(kParamTensor), offset, offset + n,
                    words);
    NarrowStochastically(from, to, n, kParamTensor, words + offset);
    element += static_cast<int64_t>(n);
    from += n;
    to = static_cast<uint16_t*>(to) + n;
    count -= n;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(Widen);
HWY_EXPORT(Narrow);

void Widen(DType dtype, const void* from, float* to, size_t count) {
  HWY_DYNAMIC_DISPATCH(Widen)(dtype, from, to, count);
}

void Narrow(DType dtype, const float* from, void* to, size_t count,
            const RandomStream* random) {
  HWY_DYNAMIC_DISPATCH(Narrow)(dtype, from, to, count, random);
}

}  // namespace shard
#endif  // HWY_ONCE
