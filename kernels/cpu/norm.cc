// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/norm.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

// After the headers above, because math-inl.h is included once per target, too.
#include <hwy/contrib/math/math-inl.h>

#ifndef SHARD_KERNELS_CPU_NORM_ONCE
#define SHARD_KERNELS_CPU_NORM_ONCE

namespace shard {
namespace {

// Values summed in doubles before the sum is added to the wide number: 16 KiB,
// which stay in cache between the two passes over them.
constexpr int kBlockBits = 12;
constexpr size_t kBlock = size_t{1} << kBlockBits;

// Number of bits by which a level is finer than the one before it: a level of
// terms below 2^M leaves at most 2^(M - kLevelBits).
constexpr int kLevelBits = 52 - kBlockBits;

// Returns the exact bits: with terms below 2^M and `levels` levels nothing is
// lost down to 2^(M - ExactBits(levels)).
constexpr int ExactBits(int levels) {
  return (levels - 1) * kLevelBits + 53 - kBlockBits;
}

constexpr uint32_t kMagnitudeMask = 0x7FFFFFFF;
constexpr uint32_t kInfinityBits = 0x7F800000;

// Returns an exponent: a magnitude with these bits is below 2^(exponent + 1)
// and a multiple of 2^(exponent - 23). Denormals have the smallest normal
// exponent.
inline int ExponentOf(uint32_t magnitude_bits) {
  return std::max(static_cast<int>(magnitude_bits >> 23), 1) - 127;
}

// Returns 2^exponent. REQUIRES: the result is a normal double.
inline double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// Returns the start of a level's accumulator, for terms below 2^top.
inline double Anchor(int top) { return 1.5 * PowerOfTwo(top + kBlockBits + 1); }

// The magnitudes that a pass includes.
struct Window {
  double lower;  // Inclusive.
  double upper;  // Exclusive.
};

}  // namespace
}  // namespace shard

#endif  // SHARD_KERNELS_CPU_NORM_ONCE

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Number of independent chains: an addition takes 4 cycles, and two start per
// cycle.
constexpr size_t kChains = 4;

using Wide = hn::ScalableTag<double>;
using V = hn::Vec<Wide>;

// Returns the number of values of which blocks are multiples.
HWY_INLINE size_t GroupSize() { return kChains * hn::Lanes(Wide()); }

HWY_INLINE V LoadWide(const float* values) {
  const hn::Rebind<float, Wide> narrow;
  return hn::PromoteTo(Wide(), hn::LoadU(narrow, values));
}

// Fetches values of the next block during the sums of this one: the pass that
// finds the next block's exponents would wait for memory with nothing to
// compute.
HWY_INLINE void PrefetchGroup(const float* values) {
  constexpr size_t kCacheLine = 64 / sizeof(float);
  for (size_t i = 0; i < GroupSize(); i += kCacheLine) {
    hwy::Prefetch(values + i);
  }
}

// Returns the sum of the chains. REQUIRES: no partial sum is rounded.
HWY_INLINE double Total(const V* chains) {
  V sum = chains[0];
  HWY_UNROLL(4)
  for (size_t c = 1; c < kChains; ++c) sum = hn::Add(sum, chains[c]);
  return hn::GetLane(hn::SumOfLanes(Wide(), sum));
}

struct Extremes {
  uint32_t largest;           // As bits of a magnitude.
  uint32_t smallest_nonzero;  // 0 when all are zero.
};

// Finds the extremes. REQUIRES: count is a multiple of GroupSize().
HWY_INLINE Extremes FindExtremes(const float* values, size_t count) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const size_t lanes = hn::Lanes(du);
  const auto mask = hn::Set(du, kMagnitudeMask);
  const auto one = hn::Set(du, 1);
  auto largest = hn::Zero(du);
  // The least of bits - 1, in which zero is the largest number.
  auto smallest = hn::Set(du, ~uint32_t{0});
  for (size_t i = 0; i < count; i += lanes) {
    const auto bits = hn::And(hn::BitCast(du, hn::LoadU(df, values + i)), mask);
    largest = hn::Max(largest, bits);
    smallest = hn::Min(smallest, hn::Sub(bits, one));
  }
  return {hn::GetLane(hn::MaxOfLanes(du, largest)),
          hn::GetLane(hn::MinOfLanes(du, smallest)) + 1};
}

// Adds |x| or x x of the values in `window`, while it fetches the `count`
// values at `next`. Without kWindowed it adds all values. REQUIRES: count is a
// multiple of GroupSize() and at most kBlock; the terms are below 2^top and
// multiples of 2^(top - ExactBits(kLevels)).
template <bool kSquares, int kLevels, bool kWindowed>
HWY_INLINE void AddTerms(const float* values, size_t count, const float* next,
                         int top, const Window& window, ExactSum* sum) {
  constexpr int kLast = kLevels - 1;
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  const V lower = hn::Set(d, window.lower);
  const V upper = hn::Set(d, window.upper);
  // Kept in registers, as long as every loop over them is unrolled.
  V sums[kLevels][kChains];
  HWY_UNROLL(4)
  for (int level = 0; level < kLevels; ++level) {
    const double start =
        level == kLast ? 0.0 : Anchor(top - level * kLevelBits);
    HWY_UNROLL(4)
    for (size_t c = 0; c < kChains; ++c) sums[level][c] = hn::Set(d, start);
  }
  for (size_t i = 0; i < count; i += GroupSize()) {
    PrefetchGroup(next + i);
    HWY_UNROLL(4)
    for (size_t c = 0; c < kChains; ++c) {
      V x = LoadWide(values + i + c * lanes);
      if constexpr (kWindowed) {
        const V magnitude = hn::Abs(x);
        x = hn::IfThenElseZero(
            hn::And(hn::Ge(magnitude, lower), hn::Lt(magnitude, upper)), x);
      }
      V rest = x;
      if constexpr (!kSquares) rest = hn::Abs(x);
      HWY_UNROLL(4)
      for (int level = 0; level < kLast; ++level) {
        V& at = sums[level][c];
        // x x is exact, so fused and separate operations give the same result.
        const bool product = kSquares && level == 0;
        const V after = product ? hn::MulAdd(x, x, at) : hn::Add(at, rest);
        const V taken = hn::Sub(after, at);
        rest = product ? hn::MulSub(x, x, taken) : hn::Sub(rest, taken);
        at = after;
      }
      sums[kLast][c] = hn::Add(sums[kLast][c], rest);
    }
  }
  HWY_UNROLL(4)
  for (int level = 0; level < kLevels; ++level) {
    if (level != kLast) {
      const V start = hn::Set(d, Anchor(top - level * kLevelBits));
      HWY_UNROLL(4)
      for (size_t c = 0; c < kChains; ++c) {
        sums[level][c] = hn::Sub(sums[level][c], start);
      }
    }
    AddExact(Total(sums[level]), sum);
  }
}

// Returns the greatest difference between the largest and the smallest
// exponent, for terms that also have 24 kPower bits of mantissa.
template <int kPower, int kLevels>
constexpr int Span() {
  return (ExactBits(kLevels) - 24 * kPower) / kPower;
}

// Adds the values; returns false, and adds nothing, when they need more levels.
template <bool kSquares, int kLevels>
HWY_INLINE bool AddWithLevels(const float* values, size_t count,
                              const float* next, int exponent, int last,
                              ExactSum* sum) {
  constexpr int kPower = kSquares ? 2 : 1;
  if (exponent - last > Span<kPower, kLevels>()) return false;
  AddTerms<kSquares, kLevels, false>(values, count, next,
                                     kPower * (exponent + 1), Window(), sum);
  return true;
}

template <bool kSquares>
HWY_INLINE void AddBlock(const float* values, size_t count, const float* next,
                         const Extremes& extremes, ExactSum* sum) {
  constexpr int kPower = kSquares ? 2 : 1;
  constexpr int kMost = kPower + 2;
  int exponent = ExponentOf(extremes.largest);
  const int last = ExponentOf(extremes.smallest_nonzero);
  if (AddWithLevels<kSquares, kMost - 2>(values, count, next, exponent, last,
                                         sum) ||
      AddWithLevels<kSquares, kMost - 1>(values, count, next, exponent, last,
                                         sum) ||
      AddWithLevels<kSquares, kMost>(values, count, next, exponent, last,
                                     sum)) {
    return;
  }
  constexpr int kSpan = Span<kPower, kMost>();
  Window window = {0.0, std::numeric_limits<double>::infinity()};
  while (true) {
    const bool done = exponent - last <= kSpan;
    window.lower = done ? 0.0 : PowerOfTwo(exponent - kSpan);
    AddTerms<kSquares, kMost, true>(values, count, next,
                                    kPower * (exponent + 1), window, sum);
    if (done) return;
    window.upper = window.lower;
    exponent -= kSpan + 1;
  }
}

// Adds (|x| / reference)^p, rounded to multiples of 2^-78. REQUIRES: count is a
// multiple of GroupSize() and at most kBlock.
HWY_INLINE void AddPowers(const float* values, size_t count, const float* next,
                          double p, double reference, ExactSum* sum) {
  // A term is at most 1, but exp may be slightly off.
  constexpr int kTop = 1;
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  const V power = hn::Set(d, p);
  const V scale = hn::Set(d, reference);
  // Constants instead of the accumulators of AddTerms: the bits that are
  // dropped below the second level must depend on the term alone.
  const V coarse = hn::Set(d, Anchor(kTop));
  const V fine = hn::Set(d, Anchor(kTop - kLevelBits));
  V high[kChains];
  V low[kChains];
  HWY_UNROLL(4)
  for (size_t c = 0; c < kChains; ++c) high[c] = low[c] = hn::Zero(d);
  for (size_t i = 0; i < count; i += GroupSize()) {
    PrefetchGroup(next + i);
    HWY_UNROLL(4)
    for (size_t c = 0; c < kChains; ++c) {
      const V x = hn::Abs(LoadWide(values + i + c * lanes));
      const V ratio = hn::Div(x, scale);
      // The logarithm of 0 is not defined.
      const V term =
          hn::IfThenElseZero(hn::Gt(ratio, hn::Zero(d)),
                             hn::Exp(d, hn::Mul(power, hn::Log(d, ratio))));
      const V taken = hn::Sub(hn::Add(term, coarse), coarse);
      const V rest = hn::Sub(term, taken);
      high[c] = hn::Add(high[c], taken);
      low[c] = hn::Add(low[c], hn::Sub(hn::Add(rest, fine), fine));
    }
  }
  AddExact(Total(high), sum);
  AddExact(Total(low), sum);
}

// Adds groups of values. REQUIRES: count is a multiple of GroupSize() and at
// most kBlock.
HWY_INLINE void AddGroups(NormType type, double p, double reference,
                          const float* values, size_t count, const float* next,
                          NormSum* sum) {
  const Extremes extremes = FindExtremes(values, count);
  sum->largest_bits = std::max<uint64_t>(sum->largest_bits, extremes.largest);
  // Infinities and NaN are recorded and not added.
  if (extremes.largest == 0 || extremes.largest >= kInfinityBits) return;
  switch (type) {
    case NormType::kOne:
      AddBlock<false>(values, count, next, extremes, &sum->terms);
      return;
    case NormType::kTwo:
      AddBlock<true>(values, count, next, extremes, &sum->terms);
      return;
    case NormType::kP:
      AddPowers(values, count, next, p, reference, &sum->terms);
      return;
    case NormType::kInf:
      return;
  }
}

void AddToNorm(NormType type, double p, double reference, const float* values,
               size_t count, NormSum* sum) {
  const size_t group = GroupSize();
  while (count >= group) {
    const size_t now = std::min(kBlock, count - count % group);
    // Never reads beyond the end: before a last, shorter block nothing is
    // fetched.
    const float* const next = count - now >= now ? values + now : values;
    AddGroups(type, p, reference, values, now, next, sum);
    values += now;
    count -= now;
  }
  if (count == 0) return;
  // Zeros add nothing to any norm.
  float padded[kChains * hn::MaxLanes(Wide())] = {};
  std::copy_n(values, count, padded);
  AddGroups(type, p, reference, padded, group, padded, sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(AddToNorm);

void AddToNorm(NormType type, double p, double reference, const float* values,
               size_t count, NormSum* sum) {
  HWY_DYNAMIC_DISPATCH(AddToNorm)(type, p, reference, values, count, sum);
}

namespace {

struct HostMath {
  double Sqrt(double x) const { return std::sqrt(x); }
  double Power(double x, double y) const { return std::pow(x, y); }
};

}  // namespace

double FinishNorm(NormType type, double p, double reference,
                  const NormSum& sum) {
  return FinishNormWith(HostMath(), type, p, reference, sum);
}

}  // namespace shard
#endif  // HWY_ONCE
