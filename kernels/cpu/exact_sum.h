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

void MergeExact(const ExactSum& other, ExactSum* sum);

// Returns the double nearest to the sum, ties to even. REQUIRES: the sum is not
// negative.
double RoundExact(const ExactSum& sum);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_EXACT_SUM_H_
