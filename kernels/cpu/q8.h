// SPDX-License-Identifier: Apache-2.0
//
// DType::kQ8: optimizer states in 8 bits. Blocks of 256 elements share a scale,
// the largest magnitude among them in fp32; an element is an 8-bit float
// relative to it. (Blocks: Dettmers et al., "8-bit Optimizers via Block-wise
// Quantization", ICLR 2022; the codes here need no table.) 1.016 bytes per
// element and state.
//
//   kAverage         sign, and 7 bits that count the values of a float with 3
//                    bits of mantissa from 2 up, less 2: steps are 2e-6 of the
//                    scale around 0, and grow to an eighth of the value
//   kSquareAverage,  no sign. The upper 208 codes count the values of a float
//   kSquareMaximum   with 4 bits of mantissa: over 13 powers of two (four
//                    decades) neighbours are 3 to 6 percent apart. The lower 48
//                    have 2 bits: over another 9 powers of two neighbours are
//                    12 to 27 percent apart. Around 0 steps are 8e-9 of the
//                    scale.
//
// The values between two neighbouring codes lie on one straight piece, so
// random bits that are added below the code round without bias: without a root,
// a table or a comparison.
//
// Squares have more mantissa and no sign, because an average keeps the errors
// of its roundings for as long as it keeps gradients. Where gradients are
// noise, v has its expected value and a standard deviation of 13 percent of it
// in the upper four decades, and of 32 percent below, for every beta2 (the
// slower the average, the fewer steps cross a code). The maximum that amsgrad
// keeps finds the largest of these errors: after 4000 steps of noise it is 18
// percent above its value in fp32 (38 below the upper decades), and steps are 8
// percent shorter.
//
// Rounding is stochastic: the expected value of a decoded element is the
// encoded one. A maximum is rounded to nearest, for the reason in
// kernels/formula/state_kind.h. Exceptions:
//   - A positive square from 2^-125 up never gets code 0. It is a divisor: an
//     element with an average that is not 0 would move by average / eps. The
//     smallest code makes its step too short instead.
//   - A block of averages whose largest magnitude is below 2^-110 becomes 0. A
//     block of squares then has 2^-110 as its scale.
//
// The scale is the largest magnitude to a unit in the last place, chosen so
// that values which are decoded and encoded again keep their codes and scales,
// from 2^-109 up.
//
// A block in which one element is an infinity or NaN has the scale NaN, and all
// its elements decode as NaN, so that such values stay visible.
//
// Every instruction set gives the same bits. Thread-safe; disjoint ranges may
// run at once.

#ifndef SHARD_KERNELS_CPU_Q8_H_
#define SHARD_KERNELS_CPU_Q8_H_

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "kernels/cpu/random.h"
#include "kernels/formula/state_kind.h"

namespace shard {

// Sets codes[i] for i < count and scales[b] for each block of 256, the last of
// which may be partial. Rounds with the bits of `random` for its first_element
// + i in `tensor`; NULL rounds to nearest. REQUIRES: first_element is a
// multiple of 256; squares are not negative.
void EncodeQ8(StateKind kind, const float* from, size_t count,
              const RandomStream* random, uint32_t tensor, uint8_t* codes,
              float* scales);

// Converts codes back to fp32. REQUIRES: `codes` is the first of a block.
void DecodeQ8(StateKind kind, const uint8_t* codes, const float* scales,
              float* to, size_t count);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_Q8_H_
