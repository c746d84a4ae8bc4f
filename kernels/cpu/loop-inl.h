// SPDX-License-Identifier: Apache-2.0
//
// The loop that all kernels share.

#if defined(SHARD_KERNELS_CPU_LOOP_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_LOOP_INL
#undef SHARD_KERNELS_CPU_LOOP_INL
#else
#define SHARD_KERNELS_CPU_LOOP_INL
#endif

#include <hwy/highway.h>

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Calls body(d, i) for i = 0, ... below `count`. The tag d is that of whole
// vectors of float, and of one lane for the elements left at the end.
template <class Body>
HWY_INLINE void ForEachVector(size_t count, const Body& body) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = count - count % lanes;
  // Bodies are short: without unrolling, the loop counter would be a quarter of
  // the instructions.
  HWY_UNROLL(4)
  for (size_t i = 0; i < whole; i += lanes) body(d, i);
  const hn::CappedTag<float, 1> one;
  for (size_t i = whole; i < count; ++i) body(one, i);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_LOOP_INL
