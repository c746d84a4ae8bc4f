// SPDX-License-Identifier: Apache-2.0
//
// Norms of gradients whose bits depend on the values alone: neither on their
// order, nor on how they are split over ranks, threads and tiles, nor on the
// instruction set. So a run on 2 ranks clips exactly as the same run on 8.
//
//   kOne  sum |x|        kTwo  sqrt(sum x x)
//   kInf  max |x|        kP    r (sum (|x| / r)^p)^(1/p),  r = max |x|
//
// Why the bits are the same: the terms |x| and x x of an fp32 value are exact
// in double, and their sum is kept exactly (exact_sum.h), so the order of
// addition has no effect. The sum is rounded once, when the norm is read: kOne
// is the double nearest to the true norm, kTwo the root of the double nearest
// to the true sum. A term of kP is a function of x, p and r alone, rounded to a
// multiple of 2^-78 before it is added; the sum of those terms is exact as
// well. Maxima are always exact.
//
// Why the sum is fast: adding each term to a wide number would be slow.
// Instead, up to n = 2^12 values that lie in cache are added up in a few
// doubles without any loss, and those doubles are added to the wide number. A
// first pass finds the largest and the smallest exponent, so all terms are
// below 2^M and multiples of 2^Q. Let u = 2^(M + 13 - 52). A double a starts at
// 1.5 * 2^13 * 2^M and takes each term x in turn:
//
//   t = a + x
//   x = x - (t - a)
//   a = t
//
// n terms do not take a out of its binade, where doubles are u apart. So t - a
// is x rounded to a multiple of u, both differences are exact, a is the exact
// sum of the rounded terms, and each term leaves a remainder |x| <= u / 2.
//
// The remainders are split the same way, or, once n u / 2 <= 2^53 2^Q, added up
// plainly: multiples of 2^Q of that size are doubles. This splitting is that of
// Rump, Ogita and Oishi, "Accurate Floating-Point Summation", SIAM J. Sci.
// Comput. 31, 2008, and of the reproducible sums of Demmel and Nguyen,
// "Parallel Reproducible Summation", IEEE Trans. Computers 64, 2015; those drop
// low bits by fixed rules, while this sum drops none.
//
// Bytes per value: reads 4 from memory, and again from cache. In blocks whose
// magnitudes lie within a factor of 2^16, as those of most gradients, squares
// take two doubles; within 2^36 three, within 2^56 four; wider ones take a pass
// for every 2^56.
//
// Values are summed under the default rounding to nearest. kP uses Highway's
// exp and log, whose last bits differ between targets: its bits also depend on
// the instruction set. For kP, all ranks of a job must therefore have the same
// one.
//
// Thread-safe; a NormSum is thread-compatible.

#ifndef SHARD_KERNELS_CPU_NORM_H_
#define SHARD_KERNELS_CPU_NORM_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cpu/exact_sum.h"

namespace shard {

enum class NormType { kOne, kTwo, kP, kInf };

// The norm of the values seen so far, before it is finished; all zeros when
// there were none. 88 bytes, which may be sent to other ranks. Equal finite
// values give equal bytes.
struct NormSum {
  ExactSum terms;  // Unused for kInf.
  // The bits of the largest |x| as fp32, which are ordered as magnitudes are;
  // above those of infinity when there was a NaN.
  uint64_t largest_bits;
};
static_assert(std::is_trivially_copyable_v<NormSum>);
static_assert(sizeof(NormSum) == sizeof(uint64_t) * (ExactSum::kNumWords + 1));

// Adds values[0 .. count) to `sum`. `p` and `reference` are read for kP only:
// the reference is the kInf norm of all values of every rank, so that terms
// neither overflow nor vanish. REQUIRES: type and p, and for kP the reference,
// are the same in all calls for one sum; 0 < p < infinity; for kP no finite
// |value| is above the reference.
void AddToNorm(NormType type, double p, double reference, const float* values,
               size_t count, NormSum* sum);

// Merges two sums, as if the values of `other` had been added to `sum`.
constexpr void MergeNorm(const NormSum& other, NormSum* sum) {
  MergeExact(other.terms, &sum->terms);
  sum->largest_bits = std::max(sum->largest_bits, other.largest_bits);
}

// Returns the norm of all values added; 0 when there were none. NaN when a
// value was NaN, else infinity when one was infinite: both are recorded, and
// never the effect of an overflow. Finite values have a finite norm, except for
// kP with a p so close to 0 that count^(1/p) is not finite.
double FinishNorm(NormType type, double p, double reference,
                  const NormSum& sum);

// FinishNorm for the host and for kernels of a GPU: `math` has the functions
// Sqrt(x) and Power(x, y), of doubles.
template <class Math>
constexpr double FinishNormWith(const Math& math, NormType type, double p,
                                double reference, const NormSum& sum) {
  constexpr uint64_t kInfinityBits = 0x7F800000;
  if (sum.largest_bits > kInfinityBits) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (sum.largest_bits == kInfinityBits) {
    return std::numeric_limits<double>::infinity();
  }
  switch (type) {
    case NormType::kOne:
      return RoundExact(sum.terms);
    case NormType::kTwo:
      return math.Sqrt(RoundExact(sum.terms));
    case NormType::kP:
      return reference * math.Power(RoundExact(sum.terms), 1 / p);
    case NormType::kInf:
      break;
  }
  return std::bit_cast<float>(static_cast<uint32_t>(sum.largest_bits));
}

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_NORM_H_
