// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/random.h"

// AVX3_DL is AVX-512 of processors since Ice Lake and Zen 4, which do a round
// of four counters in one instruction. The other kernels would gain nothing.
#define HWY_WANT_AVX3_DL

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/random.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <array>
#include <cstring>

#include "kernels/cpu/aes_round.h"

HWY_BEFORE_NAMESPACE();
namespace shard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The number of counters of a block; each gives the bits of eight elements.
constexpr size_t kRandomCounters = kRandomBlock / 8;

HWY_INLINE uint64_t FirstCounter(int64_t element) {
  return static_cast<uint64_t>(element) / kRandomBlock * kRandomCounters;
}

#if HWY_TARGET == HWY_SCALAR

void MakeRandomWords(const RandomKeys& keys, int64_t element, uint32_t pair,
                     size_t begin, size_t end, uint16_t* HWY_RESTRICT words) {
  for (size_t i = begin / 8; 8 * i < end; ++i) {
    const uint64_t counter[] = {FirstCounter(element) + i, pair};
    AesState state;
    std::memcpy(state.data(), counter, sizeof(counter));
    AesState key;
    std::memcpy(key.data(), keys.at(0), key.size());
    for (size_t b = 0; b < state.size(); ++b) state[b] ^= key[b];
    for (int round = 1; round <= RandomKeys::kRounds; ++round) {
      std::memcpy(key.data(), keys.at(round), key.size());
      state = AesRound(state, key, round == RandomKeys::kRounds);
    }
    std::memcpy(words + 8 * i, state.data(), state.size());
  }
}

#else

void MakeRandomWords(const RandomKeys& keys, int64_t element, uint32_t pair,
                     size_t begin, size_t end, uint16_t* HWY_RESTRICT words) {
#if HWY_TARGET == HWY_AVX3_DL
  const hn::ScalableTag<uint8_t> d;
#else
  // Other targets have a round for one counter at a time.
  const hn::Full128<uint8_t> d;
#endif
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  constexpr size_t kCounters = hn::MaxLanes(d) / 16;
  // The lower five bits of the first counter are 0, so that the others differ
  // from it in those bits alone.
  static_assert(kRandomCounters == 32 && kRandomCounters % kCounters == 0);
  // Made in registers: a load of memory that two stores wrote waits for both.
  const auto first = hn::InterleaveLower(
      d64, hn::Set(d64, FirstCounter(element)), hn::Set(d64, pair));
  const auto start =
      hn::Xor(hn::BitCast(d, first), hn::LoadDup128(d, keys.at(0)));
  HWY_ALIGN static constexpr auto kOffsets = [] {
    std::array<uint64_t, 2 * kRandomCounters> offsets = {};
    for (size_t i = 0; i < kRandomCounters; ++i) offsets[2 * i] = i;
    return offsets;
  }();
  HWY_UNROLL(4)
  for (size_t i = begin / 8 / kCounters * kCounters; 8 * i < end;
       i += kCounters) {
    auto state =
        hn::Xor(start, hn::BitCast(d, hn::Load(d64, kOffsets.data() + 2 * i)));
    HWY_UNROLL(4)
    for (int round = 1; round < RandomKeys::kRounds; ++round) {
      state = hn::AESRound(state, hn::LoadDup128(d, keys.at(round)));
    }
    state = hn::AESLastRound(state,
                             hn::LoadDup128(d, keys.at(RandomKeys::kRounds)));
    hn::StoreU(hn::BitCast(d16, state), d16, words + 8 * i);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard {

HWY_EXPORT(MakeRandomWords);

void MakeRandomWords(const RandomKeys& keys, int64_t element, uint32_t pair,
                     size_t begin, size_t end, uint16_t* words) {
  HWY_DYNAMIC_DISPATCH(MakeRandomWords)
  (keys, element, pair, begin, end, words);
}

void RandomBits(const RandomStream& stream, uint32_t tensor, uint16_t* bits) {
  HWY_ALIGN uint16_t words[kRandomBlock];
  MakeRandomWords(RandomKeys(stream), stream.first_element, RandomPair(tensor),
                  0, kRandomBlock, words);
  for (int64_t e = 0; e < kRandomBlock; ++e) {
    const auto low = static_cast<uint16_t>(words[e] >> 8);
    const auto high = static_cast<uint16_t>(words[e] << 8);
    bits[e] = IsFirstOfPair(tensor) ? words[e] : low | high;
  }
}

}  // namespace shard
#endif  // HWY_ONCE
