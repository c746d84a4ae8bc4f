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
HWY_INLINE void StoreWords(D d, hn::Vec<D> x, uint16_t* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  const uint64_t words = hn::GetLane(x);
  for (int i = 0; i < 4; ++i) to[i] = static_cast<uint16_t>(words >> 16 * i);
#else
  const hn::Repartition<uint16_t, D> d16;
  hn::StoreU(hn::BitCast(d16, x), d16, to);
#endif
}

// A vector of Philox's counters, of which `first` is the first lane's first
// word, and what the rounds make of them.
template <class D>
struct Philox {
  HWY_INLINE Philox(D d, const RandomStream& stream, uint32_t pair,
                    uint64_t first)
      : x0(hn::Add(hn::Iota(d, 0), hn::Set(d, first & 0xFFFFFFFFu))),
        x1(hn::Set(d, (first >> 32) | (uint64_t{pair} << 28))),
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

  HWY_INLINE void Store(D d, uint16_t* HWY_RESTRICT bits) const {
    const auto low_word = hn::Set(d, uint64_t{0xFFFFFFFFu});
    StoreWords(d, hn::Or(hn::And(x0, low_word), hn::ShiftLeft<32>(x1)), bits);
    StoreWords(d, hn::Or(hn::And(x2, low_word), hn::ShiftLeft<32>(x3)),
               bits + kRandomBlock / 2);
  }

  hn::Vec<D> x0, x1, x2, x3;
};

// The keys of all rounds, each as a vector in memory: rounds read them as
// operands, and registers are for the counters.
class RandomKeys {
 public:
  static constexpr int kRounds = 7;

  HWY_INLINE explicit RandomKeys(uint64_t seed) {
    const hn::CappedTag<uint64_t, 8> d;
    auto key0 = static_cast<uint32_t>(seed);
    auto key1 = static_cast<uint32_t>(seed >> 32);
    for (auto& key : keys_) {
      hn::Store(hn::Set(d, uint64_t{key0}), d, key[0]);
      hn::Store(hn::Set(d, uint64_t{key1}), d, key[1]);
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
  }

  // Of half 0 or 1 of a round's key.
  HWY_INLINE const uint64_t* at(int round, int half) const {
    return keys_[round][half];
  }

 private:
  HWY_ALIGN uint64_t keys_[kRounds][2][8];
};

// The words of a pair of tensors for the block of stream.first_element.
HWY_INLINE void MakeRandomWords(const RandomKeys& keys,
                                const RandomStream& stream, uint32_t pair,
                                uint16_t* HWY_RESTRICT bits) {
  constexpr size_t kCounters = 32;
  const hn::CappedTag<uint64_t, 8> d;
  using Counters = Philox<hn::CappedTag<uint64_t, 8>>;
  const size_t lanes = hn::Lanes(d);
  // The lower five bits are 0: a block's counters carry nowhere.
  const uint64_t first =
      static_cast<uint64_t>(stream.first_element) / kRandomBlock * kCounters;
  // A round waits for the one before, so two vectors take turns. Three do not
  // fit 16 registers.
  for (size_t i = 0; i < kCounters; i += 2 * lanes) {
    Counters a(d, stream, pair, first + i);
    Counters b(d, stream, pair, first + i + lanes);
    HWY_UNROLL(7)
    for (int round = 0; round < RandomKeys::kRounds; ++round) {
      const auto key0 = hn::Load(d, keys.at(round, 0));
      const auto key1 = hn::Load(d, keys.at(round, 1));
      a.Round(d, key0, key1);
      b.Round(d, key0, key1);
    }
    a.Store(d, bits + 4 * i);
    b.Store(d, bits + 4 * (i + lanes));
  }
}

// The bits of the second tensor of a pair, made of those of the first.
HWY_INLINE void SwapBytes(const uint16_t* from, uint16_t* to) {
  const hn::CappedTag<uint16_t, 32> d;
  for (size_t i = 0; i < kRandomBlock; i += hn::Lanes(d)) {
    const auto x = hn::Load(d, from + i);
    hn::Store(hn::Or(hn::ShiftLeft<8>(x), hn::ShiftRight<8>(x)), d, to + i);
  }
}

// bits[e] for all of the block of stream.first_element. `bits` is aligned.
HWY_INLINE void MakeRandomBits(const RandomKeys& keys,
                               const RandomStream& stream, uint32_t tensor,
                               uint16_t* HWY_RESTRICT bits) {
  MakeRandomWords(keys, stream, RandomPair(tensor), bits);
  if (!IsFirstOfPair(tensor)) SwapBytes(bits, bits);
}

// 16 bits for each lane of 32.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> LoadBits(D, const uint16_t* bits) {
  return hn::PromoteTo(hn::RebindToUnsigned<D>(),
                       hn::LoadU(hn::Rebind<uint16_t, D>(), bits));
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_RANDOM_INL
