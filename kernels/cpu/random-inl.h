// SPDX-License-Identifier: Apache-2.0
//
// MakeRandomWords of random.h, to be inlined.

#include "kernels/cpu/random.h"

#if defined(SHARD_KERNELS_CPU_RANDOM_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_RANDOM_INL
#undef SHARD_KERNELS_CPU_RANDOM_INL
#else
#define SHARD_KERNELS_CPU_RANDOM_INL
#endif

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

// The keys of a stream's rounds. Each is the one before plus the constants of
// ars.h of Random123; the first is the stream's key.
class RandomKeys {
 public:
  static constexpr int kRounds = 5;

  HWY_INLINE explicit RandomKeys(const RandomStream& stream) {
    uint64_t low = stream.seed;
    uint64_t high = stream.param | uint64_t{stream.step} << 32;
    for (auto& key : keys_) {
      key[0] = low;
      key[1] = high;
      low += 0x9E3779B97F4A7C15u;
      high += 0xBB67AE8584CAA73Bu;
    }
  }

  // Returns the key of a round: 0, which is added before the first, to kRounds.
  HWY_INLINE const uint8_t* at(int round) const {
    return reinterpret_cast<const uint8_t*>(keys_[round]);
  }

 private:
  HWY_ALIGN uint64_t keys_[kRounds + 1][2];
};

// Makes the words of elements [begin, end) of the block that has `element`, for
// a pair of tensors; elements that share a counter with them get theirs, too.
// `bits` is the block's memory, and aligned.
#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void MakeRandomWords(const RandomKeys& keys, int64_t element,
                                uint32_t pair, size_t begin, size_t end,
                                uint16_t* HWY_RESTRICT bits) {
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
    std::memcpy(bits + 8 * i, state.data(), state.size());
  }
}

#else

HWY_INLINE void MakeRandomWords(const RandomKeys& keys, int64_t element,
                                uint32_t pair, size_t begin, size_t end,
                                uint16_t* HWY_RESTRICT bits) {
  const hn::Full128<uint8_t> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  // The lower five bits of the first counter are 0, so that the others differ
  // from it in those bits alone.
  static_assert(kRandomCounters == 32);
  // Made in registers: a load of memory that two stores wrote waits for both.
  const auto first = hn::InterleaveLower(
      d64, hn::Set(d64, FirstCounter(element)), hn::Set(d64, pair));
  const auto start = hn::Xor(hn::BitCast(d, first), hn::Load(d, keys.at(0)));
  HWY_ALIGN static constexpr auto kOffsets = [] {
    std::array<uint64_t, 2 * kRandomCounters> offsets = {};
    for (size_t i = 0; i < kRandomCounters; ++i) offsets[2 * i] = i;
    return offsets;
  }();
  HWY_UNROLL(4)
  for (size_t i = begin / 8; 8 * i < end; ++i) {
    auto state =
        hn::Xor(start, hn::BitCast(d, hn::Load(d64, kOffsets.data() + 2 * i)));
    HWY_UNROLL(4)
    for (int round = 1; round < RandomKeys::kRounds; ++round) {
      state = hn::AESRound(state, hn::Load(d, keys.at(round)));
    }
    state = hn::AESLastRound(state, hn::Load(d, keys.at(RandomKeys::kRounds)));
    hn::Store(hn::BitCast(d16, state), d16, bits + 8 * i);
  }
}

#endif

// Loads the 16 bits of each element into a lane of 32, times 2^kShift. kSecond:
// those of the second tensor of the pair.
template <bool kSecond, int kShift, class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> LoadBits(D, const uint16_t* words) {
  static_assert(kShift == 0 || kShift == 8);
  const hn::RebindToUnsigned<D> du;
  const auto bits =
      hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint16_t, D>(), words));
  if constexpr (!kSecond) return hn::ShiftLeft<kShift>(bits);
#if HWY_TARGET == HWY_SCALAR
  const uint32_t x = hn::GetLane(bits);
  return hn::Set(du, (x << 8 | x >> 8) % 65536 << kShift);
#else
  // Byte 2 is 0.
  constexpr uint8_t a = kShift == 0 ? 1 : 2;
  constexpr uint8_t b = kShift == 0 ? 0 : 1;
  constexpr uint8_t c = kShift == 0 ? 2 : 0;
  HWY_ALIGN static constexpr uint8_t kPlaces[16] = {
      a,     b,     c,     2,  a + 4,  b + 4,  c + 4,  6,
      a + 8, b + 8, c + 8, 10, a + 12, b + 12, c + 12, 14};
  const hn::Repartition<uint8_t, decltype(du)> d8;
  return hn::BitCast(du, hn::TableLookupBytes(hn::BitCast(d8, bits),
                                              hn::LoadDup128(d8, kPlaces)));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace shard
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_RANDOM_INL
