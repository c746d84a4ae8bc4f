// SPDX-License-Identifier: Apache-2.0
//
// The codes of q8.h, to be inlined. A magnitude y is mapped to z = y + kStart,
// whose bits as fp32 grow with the codes: exponent and upper mantissa are the
// code, and the other bits are the fraction of the way from y's code to the
// next. So small values need no case of their own, and rounding is an addition
// of integers.

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
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/loop-inl.h"
#include "kernels/cpu/random-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Bits that make rounding go to nearest when they replace the random ones.
constexpr auto kNearestBits = [] {
  std::array<uint16_t, kQ8Block> bits = {};
  bits.fill(1 << 15);
  return bits;
}();

// The code of averages, which have a sign. Magnitudes are scaled to [0, kTop].
// The powers of two make the exponent of the first code end in as many zeros as
// a code has bits, so no subtraction is needed.
struct SignedCode {
  static constexpr float kStart = 2.0f;
  static constexpr float kTop = 122878.0f;  // (2 - 2^-3) 2^16 - kStart.
  // In z's bits: the number below a code, and the value at which codes begin.
  static constexpr int kShift = 20;
  static constexpr int32_t kStartBits = 0x40000000;
};

// The code of squares. From kKnee up, codes are 2^kShift of z's bits apart, and
// below it four times that.
struct SquareCode {
  static constexpr float kStart = 0x1p-8f;
  static constexpr float kTop = 126976.0f;  // (2 - 2^-4) 2^16; kStart is lost.
  static constexpr int kShift = 19;
  static constexpr int32_t kStartBits = 0x40000000;
  static constexpr int32_t kKneeBits = 0x41800000;  // 16
  // With these constants the line of the lower codes meets the upper one at the
  // knee.
  static constexpr int32_t kLower = kKneeBits / 4 * 3;
  static constexpr int32_t kLowerStart =
      kKneeBits - 4 * (kKneeBits - kStartBits);
};
static_assert(std::bit_cast<int32_t>(SignedCode::kStart) ==
              SignedCode::kStartBits);
static_assert(std::bit_cast<int32_t>(SquareCode::kStart) ==
              SquareCode::kLowerStart);

// With a smaller scale, kTop / scale would be infinite.
constexpr float kSmallestScale = 0x1p-110f;

// Returns the value with the largest bits of |x|, which are above those of
// infinity when there is a NaN.
HWY_INLINE float LargestMagnitude(const float* from, size_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(di);
  const size_t whole = count - count % lanes;
  HWY_UNROLL(4)
  for (size_t i = 0; i < whole; i += lanes) {
    largest =
        hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(d, from + i))));
  }
  const hn::CappedTag<float, 1> one;
  const hn::RebindToSigned<decltype(one)> one_i;
  auto most = hn::Set(one_i, hn::GetLane(hn::MaxOfLanes(di, largest)));
  for (size_t i = whole; i < count; ++i) {
    most = hn::Max(most, hn::BitCast(one_i, hn::Abs(hn::LoadU(one, from + i))));
  }
  return hn::GetLane(hn::BitCast(one, most));
}

HWY_INLINE void DecodeSigned(const uint8_t* codes, float scale, float* to,
                             size_t count) {
  using Code = SignedCode;
  const float unit = scale / Code::kTop;
  const auto* signed_codes = reinterpret_cast<const int8_t*>(codes);
  ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
    using D = decltype(d);
    const hn::RebindToSigned<D> di;
    const auto code =
        hn::PromoteTo(di, hn::LoadU(hn::Rebind<int8_t, D>(), signed_codes + i));
    // OrAnd is one instruction of AVX-512.
    const auto z = hn::BitCast(d, hn::OrAnd(hn::Set(di, Code::kStartBits),
                                            hn::ShiftLeft<Code::kShift>(code),
                                            hn::Set(di, 0x7F << Code::kShift)));
    const auto magnitude =
        hn::Mul(hn::Sub(z, hn::Set(d, Code::kStart)), hn::Set(d, unit));
    hn::StoreU(hn::OrAnd(magnitude, hn::BitCast(d, code), hn::SignBit(d)), d,
               to + i);
  });
}

HWY_INLINE void DecodeSquares(const uint8_t* codes, float scale, float* to,
                              size_t count) {
  using Code = SquareCode;
  const float unit = scale / Code::kTop;
  ForEachVector(count, [=](auto d, size_t i) HWY_ATTR {
    using D = decltype(d);
    const hn::RebindToSigned<D> di;
    const auto code =
        hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint8_t, D>(), codes + i));
    const auto upper = hn::Add(hn::ShiftLeft<Code::kShift>(code),
                               hn::Set(di, Code::kStartBits));
    const auto lower = hn::Add(hn::ShiftLeft<Code::kShift + 2>(code),
                               hn::Set(di, Code::kLowerStart));
    const auto z = hn::BitCast(d, hn::Min(upper, lower));
    hn::StoreU(hn::Mul(hn::Sub(z, hn::Set(d, Code::kStart)), hn::Set(d, unit)),
               d, to + i);
  });
}

#if HWY_TARGET != HWY_SCALAR
// Stores byte kByte of the lanes of four vectors.
template <int kByte, class V>
HWY_INLINE void StoreBytesOf(V v0, V v1, V v2, V v3, uint8_t* to) {
  const hn::DFromV<V> d32;
  const hn::Repartition<uint8_t, hn::DFromV<V>> d8;
  // The permutation below is a constant of the target.
  static_assert(!HWY_HAVE_SCALABLE);
  constexpr size_t kLanes = hn::MaxLanes(d32);
  constexpr size_t kBlocks = kLanes / 4;
  constexpr uint8_t b = kByte;
  constexpr uint8_t no = 0x80;
  // Within blocks of 128 bits, v0's bytes go to the first lane, v1's to the
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

// Sets to[i], for i < count, to byte kByte of lane i of code(d, i), a vector of
// uint32_t; d is as in ForEachVector.
template <int kByte, class Code>
HWY_INLINE void StoreBytes(size_t count, uint8_t* HWY_RESTRICT to,
                           const Code& code) {
  size_t whole = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  whole = count - count % (4 * lanes);
  for (size_t i = 0; i < whole; i += 4 * lanes) {
    StoreBytesOf<kByte>(code(d, i), code(d, i + lanes), code(d, i + 2 * lanes),
                        code(d, i + 3 * lanes), to + i);
  }
#endif
  const hn::CappedTag<float, 1> one;
  for (size_t i = whole; i < count; ++i) {
    to[i] = static_cast<uint8_t>(hn::GetLane(code(one, i)) >> 8 * kByte);
  }
}

// Adds 16 random bits to `code`, whose upper 8 bits are the code proper. Also
// adds half a unit below the random bits, so that a value which is exact but
// for an error in the last place keeps its code.
template <bool kSecond, class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> AddRandom(
    D d, hn::Vec<hn::RebindToUnsigned<D>> code, const uint16_t* words) {
  const hn::RebindToUnsigned<D> du;
  return hn::Add(hn::Add(code, LoadBits<kSecond, 8>(d, words)),
                 hn::Set(du, uint32_t{1} << 7));
}

// Encodes averages. `words` are random words of 16 bits.
template <bool kSecond>
HWY_INLINE void EncodeSigned(const float* from, float scale,
                             const uint16_t* words, uint8_t* codes,
                             size_t count) {
  using Code = SignedCode;
  const float factor = Code::kTop / scale;
  StoreBytes<3>(count, codes, [=](auto d, size_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    const auto x = hn::LoadU(d, from + i);
    const auto z = hn::Add(hn::Mul(hn::Abs(x), hn::Set(d, factor)),
                           hn::Set(d, Code::kStart));
    const auto code = AddRandom<kSecond>(
        d, hn::ShiftLeft<24 - Code::kShift>(hn::BitCast(du, z)), words + i);
    return hn::OrAnd(code, hn::BitCast(du, x),
                     hn::Set(du, uint32_t{0x80000000}));
  });
}

// Encodes squares. `words` are random words of 16 bits.
template <bool kSecond>
HWY_INLINE void EncodeSquares(const float* from, float scale,
                              const uint16_t* words, uint8_t* codes,
                              size_t count) {
  using Code = SquareCode;
  const float factor = Code::kTop / scale;
  StoreBytes<3>(count, codes, [=](auto d, size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const hn::RebindToUnsigned<decltype(d)> du;
    const auto x = hn::LoadU(d, from + i);
    const auto upper = hn::BitCast(
        di, hn::Add(hn::Mul(x, hn::Set(d, factor)), hn::Set(d, Code::kStart)));
    const auto lower =
        hn::Add(hn::ShiftRight<2>(upper), hn::Set(di, Code::kLower));
    const auto code =
        AddRandom<kSecond>(d,
                           hn::ShiftLeft<24 - Code::kShift>(
                               hn::BitCast(du, hn::Max(upper, lower))),
                           words + i);
    // Gives at least code 1 where x is at least 2^-125, comparing the bits of
    // floats, which have the order of the values.
    const auto least =
        hn::Min(hn::BitCast(du, x), hn::Set(du, uint32_t{1} << 24));
    return hn::Max(code, least);
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
      DecodeSquares(codes + i, scale, to + i, n);
    }
  }
}

// Returns the scale next to `largest` that decoding gives back for the largest
// code, so that values which are decoded and encoded again keep their codes and
// scales.
HWY_INLINE float StableScale(float largest, float top) {
  // `decoded` is at most a step in the last place away, and repeating this
  // changes nothing further: that holds for every mantissa and both values of
  // `top`.
  const float decoded = top * (largest / top);
  return std::isfinite(decoded) ? decoded : largest;
}

// Encodes a block whose scale is positive.
template <bool kSecond>
HWY_INLINE void EncodeScaled(StateKind kind, const float* from, float scale,
                             const uint16_t* words, uint8_t* codes,
                             size_t count) {
  if (kind == StateKind::kAverage) {
    EncodeSigned<kSecond>(from, scale, words, codes, count);
  } else {
    EncodeSquares<kSecond>(from, scale, words, codes, count);
  }
}

// Returns the scale of a block. REQUIRES: count <= kQ8Block.
HWY_INLINE float ScaleOfBlock(StateKind kind, const float* from, size_t count) {
  float scale = LargestMagnitude(from, count);
  if (!std::isfinite(scale)) return std::numeric_limits<float>::quiet_NaN();
  if (scale < kSmallestScale) {
    if (kind == StateKind::kAverage || scale == 0) return 0;
    scale = kSmallestScale;
  }
  return StableScale(
      scale, kind == StateKind::kAverage ? SignedCode::kTop : SquareCode::kTop);
}

// Encodes a block. `scale` comes from ScaleOfBlock. `words` has random words,
// in which `tensor` has its bits; NULL rounds to nearest.
// REQUIRES: count <= kQ8Block.
HWY_INLINE void EncodeBlock(StateKind kind, const float* from, float scale,
                            size_t count, uint32_t tensor,
                            const uint16_t* words, uint8_t* codes) {
  // A scale of 0 or NaN determines every element.
  if (!(scale > 0)) {
    std::fill_n(codes, count, uint8_t{0});
  } else if (words == nullptr) {
    EncodeScaled<false>(kind, from, scale, kNearestBits.data(), codes, count);
  } else if (IsFirstOfPair(tensor)) {
    EncodeScaled<false>(kind, from, scale, words, codes, count);
  } else {
    EncodeScaled<true>(kind, from, scale, words, codes, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_Q8_INL
