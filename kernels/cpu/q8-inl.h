// SPDX-License-Identifier: Apache-2.0
//
// The codes of q8.h, to be inlined. An fp32 number whose exponent is that of
// the code plus kBias has the code in its upper bits, followed by what rounding
// looks at. Below the smallest normal code the mantissa counts in equal steps;
// adding the smallest normal value brings those bits to the same place. Each
// of the two readings is the right one where it is the larger (decoding: the
// smaller), so none is chosen by a comparison.

#include "kernels/cpu/q8.h"

#if defined(SHARD_KERNELS_CPU_Q8_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_Q8_INL
#undef SHARD_KERNELS_CPU_Q8_INL
#else
#define SHARD_KERNELS_CPU_Q8_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <limits>

#include "kernels/cpu/loop-inl.h"
#include "kernels/cpu/random-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The random bits with which rounding is to nearest.
constexpr auto kNearestBits = [] {
  std::array<uint16_t, kQ8Block> bits = {};
  bits.fill(1 << 15);
  return bits;
}();

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
  HWY_UNROLL(4)
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
  const auto bits = hn::Add(hn::ShiftLeft<23 - Code::kMantissaBits>(code),
                            hn::Set(du, Code::kBias << 23));
  const auto shifted = hn::Add(bits, hn::Set(du, uint32_t{1} << 23));
  return hn::Min(
      hn::BitCast(d, bits),
      hn::Sub(hn::BitCast(d, shifted), hn::Set(d, Code::kSmallestNormal)));
}

// The code of `y`, of which what rounding looks at follows below. REQUIRES:
// 0 <= y <= Code::kTop.
template <class Code, class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> LongCode(D d, hn::Vec<D> y) {
  const hn::RebindToSigned<D> di;
  constexpr int32_t kOne = int32_t{1} << 23;
  const auto normal = hn::Add(hn::BitCast(di, y), hn::Set(di, kOne));
  const auto tiny =
      hn::BitCast(di, hn::Add(y, hn::Set(d, Code::kSmallestNormal)));
  return hn::Sub(hn::Max(normal, tiny),
                 hn::Set(di, static_cast<int32_t>((Code::kBias + 1) << 23)));
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

#if HWY_TARGET != HWY_SCALAR
// Stores byte kByte of the lanes of four vectors.
template <int kByte, class V>
HWY_INLINE void StoreBytesOf(V v0, V v1, V v2, V v3, uint8_t* to) {
  const hn::DFromV<V> d32;
  const hn::Repartition<uint8_t, hn::DFromV<V>> d8;
  constexpr size_t kLanes = hn::MaxLanes(d32);
  constexpr size_t kBlocks = kLanes / 4;
  constexpr uint8_t b = kByte;
  constexpr uint8_t no = 0x80;
  // Within blocks of 128 bits: v0's bytes to the first lane, v1's to the
  // second.
  HWY_ALIGN static constexpr uint8_t kPlaces[4][16] = {
      {b, 4 + b, 8 + b, 12 + b, no, no, no, no, no, no, no, no, no, no, no, no},
      {no, no, no, no, b, 4 + b, 8 + b, 12 + b, no, no, no, no, no, no, no, no},
      {no, no, no, no, no, no, no, no, b, 4 + b, 8 + b, 12 + b, no, no, no, no},
      {no, no, no, no, no, no, no, no, no, no, no, no, b, 4 + b, 8 + b, 12 + b},
  };
  const auto placed = [&](V v, int i) HWY_ATTR {
    return hn::TableLookupBytesOr0(hn::BitCast(d8, v),
                                   hn::LoadDup128(d8, kPlaces[i]));
  };
  auto bytes = hn::Or(hn::Or(placed(v0, 0), placed(v1, 1)),
                      hn::Or(placed(v2, 2), placed(v3, 3)));
  if constexpr (kBlocks > 1) {
    static constexpr auto kOrder = [] {
      std::array<int32_t, kLanes> order = {};
      for (size_t i = 0; i < kLanes; ++i) {
        order[i] = static_cast<int32_t>(i % kBlocks * 4 + i / kBlocks);
      }
      return order;
    }();
    bytes = hn::BitCast(
        d8, hn::TableLookupLanes(hn::BitCast(d32, bytes),
                                 hn::SetTableIndices(d32, kOrder.data())));
  }
  hn::StoreU(bytes, d8, to);
}
#endif

// to[i] = byte kByte of lane i of code(d, i), a vector of uint32_t, for
// i < count; d is as in ForEachVector.
template <int kByte, class Code>
HWY_INLINE void StoreBytes(size_t count, uint8_t* HWY_RESTRICT to,
                           const Code& code) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    StoreBytesOf<kByte>(code(d, i), code(d, i + lanes), code(d, i + 2 * lanes),
                        code(d, i + 3 * lanes), to + i);
  }
#endif
  const hn::CappedTag<float, 1> one;
  for (; i < count; ++i) {
    to[i] = static_cast<uint8_t>(hn::GetLane(code(one, i)) >> 8 * kByte);
  }
}

// `random`: 16 bits for each element.
HWY_INLINE void EncodeSigned(const float* from, float scale,
                             const uint16_t* random, uint8_t* codes,
                             size_t count) {
  using Code = SignedCode;
  constexpr int kShift = 23 - Code::kMantissaBits;
  // Up to the bit below the sign.
  constexpr int kUp = 24 - kShift;
  const float factor = Code::kTop / scale;
  StoreBytes<3>(count, codes, [=](auto d, size_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    const auto x = hn::LoadU(d, from + i);
    const auto y = hn::Min(hn::Mul(hn::Abs(x), hn::Set(d, factor)),
                           hn::Set(d, Code::kTop));
    const auto long_code =
        hn::ShiftLeft<kUp>(hn::BitCast(du, LongCode<Code>(d, y)));
    // The middle of the interval that 16 bits leave of what is cut off: what
    // is exact but for an error in the last place keeps its code.
    const auto part = hn::Add(hn::ShiftLeft<8>(LoadBits(d, random + i)),
                              hn::Set(du, uint32_t{1} << 7));
    const auto sign = hn::And(hn::BitCast(du, x), hn::Set(du, 0x80000000));
    return hn::Or(hn::Add(long_code, part), sign);
  });
}

// Long codes of roots. A loop of its own, for what follows is a long chain of
// operations: in one loop too few elements would be under way at once.
HWY_INLINE void LongRootCodes(const float* from, float factor, size_t count,
                              int32_t* HWY_RESTRICT long_codes) {
  ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const auto root = hn::Sqrt(hn::LoadU(d, from + i));
    const auto y =
        hn::Min(hn::Mul(root, hn::Set(d, factor)), hn::Set(d, RootCode::kTop));
    hn::StoreU(LongCode<RootCode>(d, y), di, long_codes + i);
  });
}

// Rounds the root y of x down to a, with the next code at b; then up when
// (x - a a) / (b b - a a) is more than a random number: the expected square is
// x. With the root's own fraction, the average of squares would grow by the
// variance of each rounding. In steps between codes a is an integer, and
// b = a + 1.
HWY_INLINE void RoundRoots(const int32_t* HWY_RESTRICT long_codes,
                           const float* from, const uint16_t* random,
                           size_t count, uint8_t* HWY_RESTRICT codes) {
  constexpr int kShift = 23 - RootCode::kMantissaBits;
  constexpr float kSteps = 1 << RootCode::kMantissaBits;
  StoreBytes<0>(count, codes, [=](auto d, size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const auto long_code = hn::LoadU(di, long_codes + i);
    // [kSteps, 2 kSteps), which is right for normal codes.
    const auto bits = hn::Or(hn::And(long_code, hn::Set(di, 0x7FFFFF)),
                             hn::BitCast(di, hn::Set(d, kSteps)));
    const auto low_bits =
        hn::AndNot(hn::Set(di, (int32_t{1} << kShift) - 1), bits);
    const auto tiny = hn::Lt(long_code, hn::Set(di, int32_t{1} << 23));
    const auto shift =
        hn::IfThenElseZero(hn::RebindMask(d, tiny), hn::Set(d, kSteps));
    const auto y = hn::Sub(hn::BitCast(d, bits), shift);
    const auto a = hn::Sub(hn::BitCast(d, low_bits), shift);
    // In (0, 1); this and b + a are exact, so that all targets agree.
    const auto uniform =
        hn::MulAdd(hn::ConvertTo(d, hn::BitCast(di, LoadBits(d, random + i))),
                   hn::Set(d, 0x1p-16f), hn::Set(d, 0x1p-17f));
    const auto b_plus_a = hn::MulAdd(a, hn::Set(d, 2.0f), hn::Set(d, 1.0f));
    const auto up = hn::Gt(hn::Mul(hn::Sub(y, a), hn::Add(y, a)),
                           hn::Mul(uniform, b_plus_a));
    // -1 where true.
    const auto rounded = hn::Sub(hn::ShiftRight<kShift>(long_code),
                                 hn::BitCast(di, hn::VecFromMask(d, up)));
    // As integers, floats that are not negative have their order.
    const auto positive =
        hn::Min(hn::BitCast(di, hn::LoadU(d, from + i)), hn::Set(di, 1));
    return hn::BitCast(hn::RebindToUnsigned<decltype(d)>(),
                       hn::Max(rounded, positive));
  });
}

// `random`: 16 bits for each element.
HWY_INLINE void EncodeRoots(const float* from, float scale,
                            const uint16_t* random, uint8_t* codes,
                            size_t count) {
  HWY_ALIGN int32_t long_codes[kQ8Block];
  LongRootCodes(from, RootCode::kTop / scale, count, long_codes);
  RoundRoots(long_codes, from, random, count, codes);
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

// `random`: 16 bits for each element; NULL: to nearest. REQUIRES:
// count <= kQ8Block.
HWY_INLINE void EncodeBlock(StateKind kind, const float* from, size_t count,
                            const uint16_t* random, uint8_t* codes,
                            float* scale_to) {
  if (random == nullptr) random = kNearestBits.data();
  float scale = LargestMagnitude(from, count);
  if (kind != StateKind::kAverage) scale = std::sqrt(scale);
  if (!std::isfinite(scale)) scale = std::numeric_limits<float>::quiet_NaN();
  if (scale < FLT_MIN) scale = 0;
  *scale_to = scale;
  // A scale of 0 or NaN is all there is to say.
  if (!(scale > 0)) {
    std::fill_n(codes, count, uint8_t{0});
  } else if (kind == StateKind::kAverage) {
    EncodeSigned(from, scale, random, codes, count);
  } else {
    EncodeRoots(from, scale, random, codes, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_Q8_INL
