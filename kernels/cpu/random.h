// SPDX-License-Identifier: Apache-2.0
//
// Random bits for stochastic rounding: ARS4x32-5 of Salmon, Moraes, Dror and
// Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11, five rounds of
// AES with keys that are added up instead of expanded. With these it passes
// TestU01's BigCrush, and most processors have an instruction for a round. A
// generator without a state: element i's bits depend on its key (seed, step,
// param, tensor) and on i, and on nothing else. Neither the instruction set,
// nor the rank or thread that asks, nor where a call begins can change them.
//
// Element i takes 16 bits:
//
//   counter  c0, c1 = low and high half of i / 8
//            c2 = the tensor's pair
//            c3 = 0
//   key      k0, k1 = low and high half of seed
//            k2 = param
//            k3 = step
//   bits     16 (i mod 8) and up of the 128
//
// Two tensors share a pair's bits, since these are a good part of the work of a
// step with narrow states: the second has the two bytes of the first in the
// other order. Which way a value is rounded hangs on the upper byte almost
// alone, so that the roundings of the two are as good as independent:
// rounding up both has the product of the probabilities to within 2^-9.
//
// Thread-safe.

#ifndef SHARD_KERNELS_CPU_RANDOM_H_
#define SHARD_KERNELS_CPU_RANDOM_H_

#include <cstddef>
#include <cstdint>

namespace shard {

struct RandomStream {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t param = 0;
  // The index in the parameter of a call's first element. REQUIRES: >= 0.
  int64_t first_element = 0;
};

// The tensors of a parameter that are rounded: itself, then state 0, 1, ...
inline constexpr uint32_t kParamTensor = 0;
constexpr uint32_t TensorOfState(int state) {
  return 1 + static_cast<uint32_t>(state);
}

// The pair of a tensor: the parameter has one for itself, states 0 and 1 the
// next, and so on.
constexpr uint32_t RandomPair(uint32_t tensor) { return (tensor + 1) / 2; }
constexpr bool IsFirstOfPair(uint32_t tensor) {
  return tensor == kParamTensor || tensor % 2 == 1;
}

// Elements whose bits are made together.
inline constexpr int64_t kRandomBlock = 256;

// bits[e] = the 16 bits of element first_element + e, 0 <= e < 256.
// REQUIRES: first_element is a multiple of 256; tensor < 31.
void RandomBits(const RandomStream& stream, uint32_t tensor, uint16_t* bits);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_RANDOM_H_
