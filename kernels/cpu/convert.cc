// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/convert.h"

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
  if (random == nullptr) {
    NarrowToNearest(dtype, from, to, count);
  } else {
    NarrowStochastically(from, to, count, *random, kParamTensor);
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
