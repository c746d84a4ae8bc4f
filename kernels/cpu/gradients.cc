// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/gradients.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gradients.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/cpu/gradients-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

void SumGradients(const GradientSources& sources, size_t begin, size_t count,
                  double scale, double clip_value, float* out) {
  SumSources(sources, begin, count, scale, clip_value, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(SumGradients);

void SumGradients(const GradientSources& sources, size_t begin, size_t count,
                  double scale, double clip_value, float* out) {
  HWY_DYNAMIC_DISPATCH(SumGradients)
  (sources, begin, count, scale, clip_value, out);
}

}  // namespace shard
#endif  // HWY_ONCE
