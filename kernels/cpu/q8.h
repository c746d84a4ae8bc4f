// SPDX-License-Identifier: Apache-2.0
//
// DType::kQ8: optimizer states in 8 bits. Blocks of 256 elements share a scale,
// the largest magnitude among them in fp32; an element is an 8-bit float
// relative to it. (Blocks: Dettmers et al., "8-bit Optimizers via Block-wise
// Quantization", ICLR 2022; the codes here need no table.) 1.016 bytes per
// element and state.
//
//   kAverage         sign, 4 bits exponent, 3 bits mantissa: 1.875 stands for
//                    the scale, 2^-17 is the smallest step
//   kSquareAverage,  no sign, 3 bits exponent, 5 bits mantissa, of the square
//   kSquareMaximum   root: 1.96875 stands for the scale, 2^-11 is the smallest
//                    step. Seven decades of squares have a code; in the upper
//                    four, neighbours are 3 to 6 percent apart.
//
// The root has more mantissa and less exponent because an average keeps the
// errors of its roundings for as long as it keeps gradients. Where those are
// noise, v has its expected value and a standard deviation of 16 percent of it,
// whatever beta2 is (the slower the average, the fewer steps cross a code); the
// root, 8. With a mantissa of 4 bits it would be 1.4 times as much. The maximum
// that amsgrad keeps finds the largest of these errors: after thousands of
// steps it is 30 percent above its value in fp32, and steps are 12 percent
// shorter.
//
// Rounding is stochastic: the expected value of a decoded element is what was
// encoded (of a square: the square's, not its root's). A maximum is rounded to
// nearest; kernels/formula/state_kind.h says why. Two exceptions:
//   - A positive square never gets code 0. It is a divisor: an element with an
//     average that is not 0 would move by average / eps. The smallest code
//     makes its step too short instead.
//   - A block of averages whose largest magnitude is below 2^-126 becomes 0.
//
// A block in which one element is an infinity or NaN has the scale NaN, and all
// its elements decode as NaN: they are seen, not mended.
//
// The same bits from every instruction set. Thread-safe; disjoint ranges may
// run at once.

#ifndef SHARD_KERNELS_CPU_Q8_H_
#define SHARD_KERNELS_CPU_Q8_H_

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "kernels/cpu/random.h"
#include "kernels/formula/state_kind.h"

namespace shard {

// codes[i] for i < count and scales[b] for each block of 256, the last of which
// may be partial. `random` gives the bits of its first_element + i in `tensor`;
// NULL: to nearest. REQUIRES: first_element is a multiple of 256; squares are
// not negative.
void EncodeQ8(StateKind kind, const float* from, size_t count,
              const RandomStream* random, uint32_t tensor, uint8_t* codes,
              float* scales);

// The way back. REQUIRES: `codes` is the first of a block.
void DecodeQ8(StateKind kind, const uint8_t* codes, const float* scales,
              float* to, size_t count);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_Q8_H_
