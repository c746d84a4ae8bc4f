// SPDX-License-Identifier: Apache-2.0
//
// SumGradients of gradients.h, to be inlined.

#include "kernels/cpu/gradients.h"

#if defined(SHARD_KERNELS_CPU_GRADIENTS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_GRADIENTS_INL
#undef SHARD_KERNELS_CPU_GRADIENTS_INL
#else
#define SHARD_KERNELS_CPU_GRADIENTS_INL
#endif

#include <hwy/highway.h>

#include <limits>

#include "kernels/cpu/convert-inl.h"
#include "kernels/cpu/loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Sums gradients. kPlain: `scale` is 1 and `clip` infinite, as for norms, where
// a third of the instructions would have no effect.
template <DType kFrom, bool kPlain>
HWY_INLINE void SumAll(const void* const* data, size_t num_sources,
                       size_t begin, size_t count, float scale, float clip,
                       float* out) {
  // Copies for registers: the compiler must assume that the stores below change
  // `data`.
  const void* const first = data[0];
  const void* const second = num_sources > 1 ? data[1] : nullptr;
  ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
    auto sum = LoadAs<kFrom>(d, first, begin + i);
    if (second != nullptr) {
      sum = hn::Add(sum, LoadAs<kFrom>(d, second, begin + i));
    }
    for (size_t w = 2; w < num_sources; ++w) {
      sum = hn::Add(sum, LoadAs<kFrom>(d, data[w], begin + i));
    }
    if constexpr (!kPlain) {
      sum = hn::Mul(sum, hn::Set(d, scale));
      // Comparisons, since Min and Max lose a NaN on some processors.
      const auto most = hn::Set(d, clip);
      const auto least = hn::Set(d, -clip);
      sum = hn::IfThenElse(hn::Gt(sum, most), most, sum);
      sum = hn::IfThenElse(hn::Lt(sum, least), least, sum);
    }
    hn::StoreU(sum, d, out + i);
  });
}

template <DType kFrom>
HWY_INLINE void SumAs(const GradientSources& sources, size_t begin,
                      size_t count, float scale, float clip, float* out) {
  if (scale == 1 && clip == std::numeric_limits<float>::infinity()) {
    SumAll<kFrom, true>(sources.data, sources.count, begin, count, scale, clip,
                        out);
  } else {
    SumAll<kFrom, false>(sources.data, sources.count, begin, count, scale, clip,
                         out);
  }
}

HWY_INLINE void SumSources(const GradientSources& sources, size_t begin,
                           size_t count, double scale, double clip_value,
                           float* out) {
  const auto factor = static_cast<float>(scale);
  const auto clip = static_cast<float>(clip_value);
  switch (sources.dtype) {
    case DType::kF32:
      return SumAs<DType::kF32>(sources, begin, count, factor, clip, out);
    case DType::kBF16:
      return SumAs<DType::kBF16>(sources, begin, count, factor, clip, out);
    case DType::kF16:
      return SumAs<DType::kF16>(sources, begin, count, factor, clip, out);
    default:
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_GRADIENTS_INL
