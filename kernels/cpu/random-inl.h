// SPDX-License-Identifier: Apache-2.0
//
// Loads the words of random.h as lanes of a vector.

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
