// SPDX-License-Identifier: Apache-2.0
//
// ExactSum: a sum of doubles that is never rounded, stored as one wide
// fixed-point number. Adding the same values in another order, or in other
// groups, gives the same sum, bit for bit, because addition of integers is
// associative and commutative.
//
// An ExactSum holds every sum of up to 2^64 magnitudes or squares of fp32
// values: their lowest bit is 2^-298, the square of the smallest denormal, and
// the sum is below 2^320. Such accumulators are Kulisch's (Kulisch and
// Miranker, "The Arithmetic of the Digital Computer", SIAM Review 28, 1986).
//
// Thread-compatible.

#ifndef SHARD_KERNELS_CPU_EXACT_SUM_H_
#define SHARD_KERNELS_CPU_EXACT_SUM_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace shard {

// The sum. All zeros is the empty sum. Equal sums have equal bytes, and the
// bytes may be sent to other machines of the same byte order.
struct ExactSum {
  static constexpr int kLowestExponent = -298;
  static constexpr size_t kNumWords = 10;

  // Two's complement, low word first; bit 0 of words[0] is 2^-298.
  uint64_t words[kNumWords];
};

// Adds `value`, which may be negative as long as the sum is not when it is
// read. REQUIRES: value is finite, a multiple of 2^-298, and below 2^341.
void AddExact(double value, ExactSum* sum);

// The functions below are constexpr, so that kernels of a GPU call them, too.

constexpr void MergeExact(const ExactSum& other, ExactSum* sum) {
  uint64_t carry = 0;
  for (size_t i = 0; i < ExactSum::kNumWords; ++i) {
    const uint64_t before = sum->words[i];
    const uint64_t after = before + other.words[i] + carry;
    carry = after < before || (carry != 0 && after == before) ? 1 : 0;
    sum->words[i] = after;
  }
}

// Returns the double nearest to the sum, ties to even. REQUIRES: the sum is not
// negative.
constexpr double RoundExact(const ExactSum& sum) {
  // The leading 64 bits, and the exponent of their lowest. The bits below only
  // decide ties, so one bit stands for all of them.
  uint64_t leading = 0;
  uint64_t below = 0;
  int exponent = ExactSum::kLowestExponent;
  for (size_t i = ExactSum::kNumWords; i-- > 0;) {
    if (leading == 0) {
      leading = sum.words[i];
      exponent = ExactSum::kLowestExponent + 64 * static_cast<int>(i);
      continue;
    }
    uint64_t next = sum.words[i];
    for (; leading >> 63 == 0; next <<= 1, --exponent) {
      leading = leading << 1 | next >> 63;
    }
    below |= next;
  }
  if (leading == 0) return 0;
  if (below != 0) leading |= 1;
  // Exact: the sum's exponents are those of normal doubles.
  return static_cast<double>(leading) *
         std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_EXACT_SUM_H_
