// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/gradients.h"

#include <algorithm>

#include "core/base/dtype.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gradients.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/cpu/gradients-inl.h"
#include "kernels/cpu/stream-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

// From this many elements on, a sum has left the inner caches before it is
// read.
constexpr size_t kMany = 1 << 18;
constexpr size_t kTile = 2048;

void SumGradients(const GradientSources& sources, size_t begin, size_t count,
                  double scale, double clip_value, float* out) {
  const auto* const end = sources.data + sources.count;
  // In place, the lines are in the cache already.
  const bool in_place = std::any_of(sources.data, end, [=](const void* source) {
    return static_cast<const float*>(source) + begin == out;
  });
  if (count < kMany || in_place) {
    SumSources(sources, begin, count, scale, clip_value, out);
    return;
  }
  HWY_ALIGN float tile[kTile];
  for (size_t i = 0; i < count; i += kTile) {
    const size_t n = std::min(kTile, count - i);
    SumSources(sources, begin + i, n, scale, clip_value, tile);
    StreamCopy(tile, out + i, n * sizeof(float));
  }
  hwy::FlushStream();
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
