// SPDX-License-Identifier: Apache-2.0
//
// The codes of q8.h, to be inlined. An fp32 number whose exponent is that of
// the code plus kBias has the code in its upper bits, followed by what rounding
// looks at. Below the smallest normal code the mantissa counts in equal steps;
// adding the smallest normal value brings those bits to the same place.

#include "kernels/cpu/q8.h"

#if defined(SHARD_KERNELS_CPU_Q8_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_Q8_INL
#undef SHARD_KERNELS_CPU_Q8_INL
#else
#define SHARD_KERNELS_CPU_Q8_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "kernels/cpu/loop-inl.h"
#include "kernels/cpu/random-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct SignedCode {
  static constexpr int kMantissaBits = 3;
  static constexpr uint32_t kBias = 112;
  static constexpr float kSmallestNormal = 0x1p-14f;
  static constexpr float kTop = 1.875f;
};

struct RootCode {
  static constexpr int kMantissaBits = 5;
  static constexpr uint32_t kBias = 120;
  static constexpr float kSmallestNormal = 0x1p-6f;
  static constexpr float kTop = 1.96875f;
};

// The value with the largest bits of |x|: above infinity's when there is a NaN.
HWY_INLINE float LargestMagnitude(const float* from, size_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(di);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    largest =
        hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(d, from + i))));
  }
  const hn::CappedTag<float, 1> one;
  const hn::RebindToSigned<decltype(one)> one_i;
  auto most = hn::Set(one_i, hn::GetLane(hn::MaxOfLanes(di, largest)));
  for (; i < count; ++i) {
    most = hn::Max(most, hn::BitCast(one_i, hn::Abs(hn::LoadU(one, from + i))));
  }
  return hn::GetLane(hn::BitCast(one, most));
}

template <class Code, class D>
HWY_INLINE hn::Vec<D> DecodeMagnitude(D d,
                                      hn::Vec<hn::RebindToUnsigned<D>> code) {
  const hn::RebindToUnsigned<D> du;
  const auto tiny =
      hn::Lt(code, hn::Set(du, uint32_t{1} << Code::kMantissaBits));
  const auto bits = hn::Add(hn::ShiftLeft<23 - Code::kMantissaBits>(code),
                            hn::Set(du, Code::kBias << 23));
  const auto one = hn::Set(du, uint32_t{1} << 23);
  const auto shifted = hn::BitCast(d, hn::Add(bits, one));
  return hn::IfThenElse(hn::RebindMask(d, tiny),
                        hn::Sub(shifted, hn::Set(d, Code::kSmallestNormal)),
                        hn::BitCast(d, bits));
}

HWY_INLINE void DecodeSigned(const uint8_t* codes, float scale, float* to,
                             size_t count) {
  const float unit = scale / SignedCode::kTop;
  ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
    using D = decltype(d);
    const hn::RebindToUnsigned<D> du;
    const auto code =
        hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint8_t, D>(), codes + i));
    const auto magnitude =
        DecodeMagnitude<SignedCode>(d, hn::And(code, hn::Set(du, 0x7F)));
    const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(du, 0x80)));
    hn::StoreU(
        hn::Or(hn::Mul(magnitude, hn::Set(d, unit)), hn::BitCast(d, sign)), d,
        to + i);
  });
}

HWY_INLINE void DecodeRoots(const uint8_t* codes, float scale, float* to,
                            size_t count) {
  const float unit = scale / RootCode::kTop;
  ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
    using D = decltype(d);
    const hn::RebindToUnsigned<D> du;
    const auto code =
        hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint8_t, D>(), codes + i));
    const auto root =
        hn::Mul(DecodeMagnitude<RootCode>(d, code), hn::Set(d, unit));
    hn::StoreU(hn::Mul(root, root), d, to + i);
  });
}

// `random`: 16 bits for each element.
HWY_INLINE void EncodeSigned(const float* from, float scale,
                             const uint32_t* random, uint8_t* codes,
                             size_t count) {
  using Code = SignedCode;
  constexpr int kShift = 23 - Code::kMantissaBits;
  const float factor = Code::kTop / scale;
  ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
    using D = decltype(d);
    const hn::RebindToUnsigned<D> du;
    const auto x = hn::LoadU(d, from + i);
    const auto smallest = hn::Set(d, Code::kSmallestNormal);
    const auto y = hn::Min(hn::Mul(hn::Abs(x), hn::Set(d, factor)),
                           hn::Set(d, Code::kTop));
    const auto tiny = hn::Lt(y, smallest);
    const auto bits =
        hn::BitCast(du, hn::Add(y, hn::IfThenElseZero(tiny, smallest)));
    const auto base = hn::IfThenElse(hn::RebindMask(du, tiny),
                                     hn::Set(du, (Code::kBias + 1) << 23),
                                     hn::Set(du, Code::kBias << 23));
    // The middle of the interval that 16 bits leave of what is cut off: what
    // is exact but for an error in the last place keeps its code.
    const auto part =
        hn::Or(hn::ShiftLeft<kShift - 16>(hn::LoadU(du, random + i)),
               hn::Set(du, uint32_t{1} << (kShift - 17)));
    const auto magnitude =
        hn::ShiftRight<kShift>(hn::Add(hn::Sub(bits, base), part));
    const auto sign =
        hn::And(hn::ShiftRight<24>(hn::BitCast(du, x)), hn::Set(du, 0x80));
    const hn::Rebind<uint8_t, D> d8;
    hn::StoreU(hn::TruncateTo(d8, hn::Or(magnitude, sign)), d8, codes + i);
  });
}

// Rounds the root of x down to a, with the next code at b; then up when
// (x - a a) / (b b - a a) is more than a random number: the expected square is
// x. With the root's own fraction, the average of squares would grow by the
// variance of each rounding.
HWY_INLINE void EncodeRoots(const float* from, float scale,
                            const uint32_t* random, uint8_t* codes,
                            size_t count) {
  using Code = RootCode;
  constexpr int kShift = 23 - Code::kMantissaBits;
  const float factor = Code::kTop / scale;
  ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
    using D = decltype(d);
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto x = hn::LoadU(d, from + i);
    const auto smallest = hn::Set(d, Code::kSmallestNormal);
    const auto y = hn::Min(hn::Mul(hn::Sqrt(x), hn::Set(d, factor)),
                           hn::Set(d, Code::kTop));
    const auto tiny = hn::Lt(y, smallest);
    const auto shift = hn::IfThenElseZero(tiny, smallest);
    const auto base = hn::IfThenElse(hn::RebindMask(du, tiny),
                                     hn::Set(du, (Code::kBias + 1) << 23),
                                     hn::Set(du, Code::kBias << 23));
    const auto one = hn::Set(du, uint32_t{1} << kShift);
    const auto low_bits = hn::AndNot(hn::Set(du, (uint32_t{1} << kShift) - 1),
                                     hn::BitCast(du, hn::Add(y, shift)));
    const auto a = hn::Sub(hn::BitCast(d, low_bits), shift);
    const auto b = hn::Sub(hn::BitCast(d, hn::Add(low_bits, one)), shift);
    // In (0, 1).
    const auto uniform =
        hn::MulAdd(hn::ConvertTo(d, hn::BitCast(di, hn::LoadU(du, random + i))),
                   hn::Set(d, 0x1p-16f), hn::Set(d, 0x1p-17f));
    const auto up =
        hn::Gt(hn::Mul(hn::Sub(y, a), hn::Add(y, a)),
               hn::Mul(uniform, hn::Mul(hn::Sub(b, a), hn::Add(b, a))));
    auto code = hn::Add(hn::Sub(low_bits, base),
                        hn::IfThenElseZero(hn::RebindMask(du, up), one));
    code = hn::ShiftRight<kShift>(code);
    const auto positive = hn::RebindMask(du, hn::Gt(x, hn::Zero(d)));
    code = hn::Max(code, hn::IfThenElseZero(positive, hn::Set(du, 1)));
    const hn::Rebind<uint8_t, D> d8;
    hn::StoreU(hn::TruncateTo(d8, code), d8, codes + i);
  });
}

HWY_INLINE void DecodeBlocks(StateKind kind, const uint8_t* codes,
                             const float* scales, float* to, size_t count) {
  constexpr auto kBlock = static_cast<size_t>(kQ8Block);
  for (size_t i = 0; i < count; i += kBlock) {
    const size_t n = std::min(kBlock, count - i);
    const float scale = scales[i / kBlock];
    if (kind == StateKind::kAverage) {
      DecodeSigned(codes + i, scale, to + i, n);
    } else {
      DecodeRoots(codes + i, scale, to + i, n);
    }
  }
}

HWY_INLINE void EncodeBlocks(StateKind kind, const float* from, size_t count,
                             const RandomStream* stream, uint32_t tensor,
                             uint8_t* codes, float* scales) {
  constexpr auto kBlock = static_cast<size_t>(kQ8Block);
  static_assert(kQ8Block == kRandomBlock);
  HWY_ALIGN uint32_t random[kBlock];
  const bool nearest = stream == nullptr || kind == StateKind::kSquareMaximum;
  if (nearest) std::fill_n(random, kBlock, uint32_t{1} << 15);
  for (size_t i = 0; i < count; i += kBlock) {
    const size_t n = std::min(kBlock, count - i);
    float scale = LargestMagnitude(from + i, n);
    if (kind != StateKind::kAverage) scale = std::sqrt(scale);
    if (!std::isfinite(scale)) scale = std::numeric_limits<float>::quiet_NaN();
    if (scale < FLT_MIN) scale = 0;
    scales[i / kBlock] = scale;
    // A scale of 0 or NaN is all there is to say.
    if (!(scale > 0)) {
      std::fill_n(codes + i, n, uint8_t{0});
      continue;
    }
    if (!nearest) {
      RandomStream block = *stream;
      block.first_element += static_cast<int64_t>(i);
      MakeRandomBits(block, tensor, random);
    }
    if (kind == StateKind::kAverage) {
      EncodeSigned(from + i, scale, random, codes + i, n);
    } else {
      EncodeRoots(from + i, scale, random, codes + i, n);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_Q8_INL
