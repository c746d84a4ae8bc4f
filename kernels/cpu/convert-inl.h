// SPDX-License-Identifier: Apache-2.0
//
// The casts of convert.h for a vector or a range. Highway 1.0.3 truncates to
// bf16, and to f16 where the processor has no instruction for it; these casts
// round, with the same operations and so the same bits on every target.

#include "core/base/dtype.h"
#include "kernels/cpu/random.h"

#if defined(SHARD_KERNELS_CPU_CONVERT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_CONVERT_INL
#undef SHARD_KERNELS_CPU_CONVERT_INL
#else
#define SHARD_KERNELS_CPU_CONVERT_INL
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "kernels/cpu/loop-inl.h"
#include "kernels/cpu/random-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Converts from f16. `half` has the 16 bits of f16 in lanes of 32.
template <class D, class V>
HWY_INLINE hn::Vec<D> FromF16(D d, V half) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000)));
  const auto magnitude = hn::And(half, hn::Set(du, 0x7FFF));
  // The exponents of f16 and fp32 are 112 apart, and 224 where the largest
  // exponent means an infinity or NaN.
  auto bits = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(du, 112u << 23));
  const auto special = hn::Gt(magnitude, hn::Set(du, 0x7BFF));
  bits = hn::IfThenElse(special, hn::Add(bits, hn::Set(du, 112u << 23)), bits);
  const auto subnormal = hn::Lt(magnitude, hn::Set(du, 0x400));
  const auto scaled = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)),
                              hn::Set(d, 0x1p-24f));
  bits = hn::IfThenElse(subnormal, hn::BitCast(du, scaled), bits);
  return hn::BitCast(d, hn::Or(bits, sign));
}

// Returns the 16 bits of f16 nearest to x, in lanes of 32.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> ToF16(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  auto half = hn::ShiftRight<13>(
      hn::Add(hn::Sub(magnitude, hn::Set(du, (112u << 23) - 0xFFF)), odd));
  // Below 2^-14, the units of f16 are 2^-24. The last place of the fp32 number
  // 1/2 is 2^-24 as well, so adding 1/2 rounds x, and the low bits of the sum
  // are the 10 bits of f16.
  const auto shifted =
      hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f)));
  const auto subnormal = hn::Lt(magnitude, hn::Set(du, 113u << 23));
  half = hn::IfThenElse(subnormal, hn::Sub(shifted, hn::Set(du, 126u << 23)),
                        half);
  // From 65520 up the result is infinity.
  const auto large = hn::Gt(magnitude, hn::Set(du, 0x477FEFFF));
  half = hn::IfThenElse(large, hn::Set(du, 0x7C00), half);
  const auto nan = hn::Gt(magnitude, hn::Set(du, 0x7F800000));
  half = hn::IfThenElse(nan, hn::Set(du, 0x7E00), half);
  return hn::Or(half, sign);
}

// Returns the 16 bits of bf16 nearest to x, in lanes of 32. A NaN becomes a
// quiet NaN: its upper half alone could be an infinity.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> ToBf16(D, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
  const auto nan = hn::Gt(magnitude, hn::Set(du, 0x7F800000));
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd);
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  return hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
}

// Rounds to bf16 stochastically. `random` has 16 bits, which are added below
// the last place kept: they carry into it in as many of 65536 cases as the
// dropped bits are of 65536 parts of its unit. Nothing is added to an infinity,
// a NaN, or a value that would become an infinity.
template <class D, class V>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> ToBf16(D, hn::Vec<D> x, V random) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, x);
  // A signed comparison, since AVX2 has no other.
  const auto largest =
      hn::Gt(hn::BitCast(di, hn::Abs(x)), hn::Set(di, 0x7F7EFFFF));
  const auto rounded =
      hn::Add(bits, hn::IfThenZeroElse(hn::RebindMask(du, largest), random));
  const auto quiet = hn::IfThenElseZero(hn::RebindMask(du, hn::IsNaN(x)),
                                        hn::Set(du, 0x400000));
  return hn::ShiftRight<16>(hn::Or(rounded, quiet));
}

// Loads elements [i, i + lanes) of a tensor of kFrom.
template <DType kFrom, class D>
HWY_INLINE hn::Vec<D> LoadAs(D d, const void* from, size_t i) {
  if constexpr (kFrom == DType::kF32) {
    return hn::LoadU(d, static_cast<const float*>(from) + i);
  } else {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> du16;
    const auto half = hn::PromoteTo(
        du, hn::LoadU(du16, static_cast<const uint16_t*>(from) + i));
    if constexpr (kFrom == DType::kBF16) {
      return hn::BitCast(d, hn::ShiftLeft<16>(half));
    } else {
      return FromF16(d, half);
    }
  }
}

// Stores lanes of 32 bits, of which 16 are used.
template <class D, class V>
HWY_INLINE void StoreHalves(D, V halves, void* to, size_t i) {
  const hn::Rebind<uint16_t, D> du16;
  hn::StoreU(hn::TruncateTo(du16, halves), du16,
             static_cast<uint16_t*>(to) + i);
}

template <DType kFrom>
HWY_INLINE void WidenAll(const void* from, float* HWY_RESTRICT to,
                         size_t count) {
  ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
    hn::StoreU(LoadAs<kFrom>(d, from, i), d, to + i);
  });
}

HWY_INLINE void WidenTensor(DType dtype, const void* from, float* to,
                            size_t count) {
  switch (dtype) {
    case DType::kF32:
      return WidenAll<DType::kF32>(from, to, count);
    case DType::kBF16:
      return WidenAll<DType::kBF16>(from, to, count);
    case DType::kF16:
      return WidenAll<DType::kF16>(from, to, count);
    default:
      return;
  }
}

HWY_INLINE void NarrowToNearest(DType dtype, const float* HWY_RESTRICT from,
                                void* to, size_t count) {
  switch (dtype) {
    case DType::kF32:
      return ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
        hn::StoreU(hn::LoadU(d, from + i), d, static_cast<float*>(to) + i);
      });
    case DType::kBF16:
      return ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
        StoreHalves(d, ToBf16(d, hn::LoadU(d, from + i)), to, i);
      });
    case DType::kF16:
      return ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
        StoreHalves(d, ToF16(d, hn::LoadU(d, from + i)), to, i);
      });
    default:
      return;
  }
}

// Rounds to bf16 stochastically. `words` has one word for each element.
template <bool kSecond>
HWY_INLINE void NarrowStochastically(const float* HWY_RESTRICT from, void* to,
                                     size_t count, const uint16_t* words) {
  ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
    StoreHalves(
        d,
        ToBf16(d, hn::LoadU(d, from + i), LoadBits<kSecond, 0>(d, words + i)),
        to, i);
  });
}

// As above, with the bits of `words` for `tensor`.
HWY_INLINE void NarrowStochastically(const float* from, void* to, size_t count,
                                     uint32_t tensor, const uint16_t* words) {
  if (IsFirstOfPair(tensor)) {
    NarrowStochastically<false>(from, to, count, words);
  } else {
    NarrowStochastically<true>(from, to, count, words);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_CONVERT_INL
