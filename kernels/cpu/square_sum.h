// SPDX-License-Identifier: Apache-2.0
//
// SquareSum: the sum of squares of many vectors of floats, in double, where the
// square of a float is exact and finite.
//
// Compiled once per SIMD target, like the .cc that includes it; the include
// guard admits it once per target.

#if defined(SHARD_KERNELS_CPU_SQUARE_SUM_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_SQUARE_SUM_H_
#undef SHARD_KERNELS_CPU_SQUARE_SUM_H_
#else
#define SHARD_KERNELS_CPU_SQUARE_SUM_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The sum for whole vectors of D, a tag of floats.
template <class D>
class SquareSum;

// The scalar target has no half vectors, and needs only the specialization
// below.
#if HWY_TARGET != HWY_SCALAR
template <class D>
class SquareSum {
 public:
  // Spelled out, because members that the compiler generates are not compiled
  // for the target.
  HWY_INLINE SquareSum() : low_(hn::Zero(kWide)), high_(hn::Zero(kWide)) {}

  HWY_INLINE void Add(hn::Vec<D> x) {
    const auto low = hn::PromoteTo(kWide, hn::LowerHalf(kHalf, x));
    const auto high = hn::PromoteTo(kWide, hn::UpperHalf(kHalf, x));
    low_ = hn::MulAdd(low, low, low_);
    high_ = hn::MulAdd(high, high, high_);
  }

  HWY_INLINE double Total() const {
    return hn::GetLane(hn::SumOfLanes(kWide, hn::Add(low_, high_)));
  }

 private:
  static constexpr hn::Repartition<double, D> kWide{};
  static constexpr hn::Half<D> kHalf{};
  hn::Vec<decltype(kWide)> low_;
  hn::Vec<decltype(kWide)> high_;
};
#endif

// The sum of single elements: the rest of a row, and all elements on the scalar
// target.
template <>
class SquareSum<hn::CappedTag<float, 1>> {
 public:
  HWY_INLINE void Add(hn::Vec<hn::CappedTag<float, 1>> x) {
    const auto value = static_cast<double>(hn::GetLane(x));
    total_ += value * value;
  }

  HWY_INLINE double Total() const { return total_; }

 private:
  double total_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_SQUARE_SUM_H_
