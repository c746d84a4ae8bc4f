// SPDX-License-Identifier: Apache-2.0
//
// RandomBits of random.h, to be inlined.

#include "kernels/cpu/random.h"

#if defined(SHARD_KERNELS_CPU_RANDOM_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_RANDOM_INL
#undef SHARD_KERNELS_CPU_RANDOM_INL
#else
#define SHARD_KERNELS_CPU_RANDOM_INL
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A lane of 64 bits holds a word of 32 in its lower half, since the product of
// two words has 64. The upper half may hold anything: MultiplyWords does not
// read it, and xor does not move it down. The scalar target has one lane, which
// cannot be seen as two of 32 bits.
template <class D>
HWY_INLINE hn::Vec<D> MultiplyWords(D d, hn::Vec<D> x, uint32_t y) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, (hn::GetLane(x) & 0xFFFFFFFFu) * y);
#else
  const hn::Repartition<uint32_t, D> d32;
  return hn::MulEven(hn::BitCast(d32, x), hn::Set(d32, y));
#endif
}

// The low word of a lane first.
template <class D>
HWY_INLINE void StoreWords(D d, hn::Vec<D> x, uint32_t* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  to[0] = static_cast<uint32_t>(hn::GetLane(x));
  to[1] = static_cast<uint32_t>(hn::GetLane(x) >> 32);
#else
  const hn::Repartition<uint32_t, D> d32;
  hn::StoreU(hn::BitCast(d32, x), d32, to);
#endif
}

// A vector of Philox's counters, of which `first` is a lane's first word, and
// what the rounds make of them.
template <class D>
struct Philox {
  HWY_INLINE Philox(D d, const RandomStream& stream, uint32_t tensor,
                    uint64_t first, size_t i)
      : x0(hn::Iota(d, (first & 0xFFFFFFFFu) + i)),
        x1(hn::Set(d, (first >> 32) | (uint64_t{tensor} << 28))),
        x2(hn::Set(d, uint64_t{stream.param})),
        x3(hn::Set(d, uint64_t{stream.step})) {}

  HWY_INLINE void Round(D d, hn::Vec<D> key0, hn::Vec<D> key1) {
    const auto product0 = MultiplyWords(d, x0, 0xD2511F53u);
    const auto product1 = MultiplyWords(d, x2, 0xCD9E8D57u);
    x0 = hn::Xor3(hn::ShiftRight<32>(product1), x1, key0);
    x1 = product1;
    x2 = hn::Xor3(hn::ShiftRight<32>(product0), x3, key1);
    x3 = product0;
  }

  // The bits of counters i and up of a block.
  HWY_INLINE void Store(D d, size_t i, uint32_t* HWY_RESTRICT bits) const {
    const auto low_word = hn::Set(d, uint64_t{0xFFFFFFFFu});
    const auto low_halves = hn::Set(d, uint64_t{0x0000FFFF0000FFFFu});
    const auto words01 = hn::Or(hn::And(x0, low_word), hn::ShiftLeft<32>(x1));
    const auto words23 = hn::Or(hn::And(x2, low_word), hn::ShiftLeft<32>(x3));
    StoreWords(d, hn::And(words01, low_halves), bits + 2 * i);
    StoreWords(d, hn::And(hn::ShiftRight<16>(words01), low_halves),
               bits + 64 + 2 * i);
    StoreWords(d, hn::And(words23, low_halves), bits + 128 + 2 * i);
    StoreWords(d, hn::And(hn::ShiftRight<16>(words23), low_halves),
               bits + 192 + 2 * i);
  }

  hn::Vec<D> x0, x1, x2, x3;
};

HWY_INLINE void MakeRandomBits(const RandomStream& stream, uint32_t tensor,
                               uint32_t* HWY_RESTRICT bits) {
  constexpr int kRounds = 10;
  const hn::CappedTag<uint64_t, 8> d;
  using Counters = Philox<hn::CappedTag<uint64_t, 8>>;
  const size_t lanes = hn::Lanes(d);
  // The lower five bits are 0: a block's 32 counters carry nowhere.
  const auto first =
      static_cast<uint64_t>(stream.first_element / kRandomBlock * 32);
  // A round waits for the one before, so four vectors take turns.
  for (size_t i = 0; i < 32; i += 4 * lanes) {
    Counters a(d, stream, tensor, first, i);
    Counters b(d, stream, tensor, first, i + lanes);
    Counters c(d, stream, tensor, first, i + 2 * lanes);
    Counters e(d, stream, tensor, first, i + 3 * lanes);
    auto key0 = static_cast<uint32_t>(stream.seed);
    auto key1 = static_cast<uint32_t>(stream.seed >> 32);
    for (int round = 0; round < kRounds; ++round) {
      const auto k0 = hn::Set(d, uint64_t{key0});
      const auto k1 = hn::Set(d, uint64_t{key1});
      a.Round(d, k0, k1);
      b.Round(d, k0, k1);
      c.Round(d, k0, k1);
      e.Round(d, k0, k1);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    a.Store(d, i, bits);
    b.Store(d, i + lanes, bits);
    c.Store(d, i + 2 * lanes, bits);
    e.Store(d, i + 3 * lanes, bits);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_RANDOM_INL
