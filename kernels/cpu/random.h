// SPDX-License-Identifier: Apache-2.0
//
// Random bits for stochastic rounding: ARS4x32-5 of Salmon, Moraes, Dror and
// Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11, which is five
// rounds of AES with keys that are added up instead of expanded. Five rounds
// pass TestU01's BigCrush, and most processors have an instruction for a round.
// The generator has no state: element i's bits depend on its key (seed, step,
// param, tensor) and on i, and on nothing else: neither on the instruction set,
// nor on the rank or thread, nor on where a call begins.
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
// Two tensors share a pair's bits, because making them is a good part of the
// work of a step with narrow states: the second tensor uses the two bytes of
// the first in the other order. The upper byte decides almost alone which way a
// value is rounded, so the roundings of the two are practically independent:
// the probability that both are rounded up is the product of the probabilities
// to within 2^-9.
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
  // The index of a call's first element in the parameter. REQUIRES: >= 0.
  int64_t first_element = 0;
};

// The number of a tensor that is rounded: the parameter, then state 0, 1, ...
inline constexpr uint32_t kParamTensor = 0;
constexpr uint32_t TensorOfState(int state) {
  return 1 + static_cast<uint32_t>(state);
}

// Returns the pair of a tensor: the parameter has pair 0 alone, states 0 and 1
// share pair 1, and so on.
constexpr uint32_t RandomPair(uint32_t tensor) { return (tensor + 1) / 2; }
constexpr bool IsFirstOfPair(uint32_t tensor) {
  return tensor == kParamTensor || tensor % 2 == 1;
}

// The number of elements whose bits are made together.
inline constexpr int64_t kRandomBlock = 256;

// The keys of a stream's rounds. Each is the one before plus the constants of
// ars.h of Random123; the first is the stream's key.
class RandomKeys {
 public:
  static constexpr int kRounds = 5;

  explicit RandomKeys(const RandomStream& stream) {
    uint64_t low = stream.seed;
    uint64_t high = stream.param | uint64_t{stream.step} << 32;
    for (auto& key : keys_) {
      key[0] = low;
      key[1] = high;
      low += 0x9E3779B97F4A7C15u;
      high += 0xBB67AE8584CAA73Bu;
    }
  }

  // Returns the 16 bytes of a round's key: 0, which is added before the first,
  // to kRounds.
  const uint8_t* at(int round) const {
    return reinterpret_cast<const uint8_t*>(keys_[round]);
  }

 private:
  alignas(16) uint64_t keys_[kRounds + 1][2];
};

// Makes the words of elements [begin, end) of the block that has `element`, for
// a pair of tensors; words[e] is that of the block's element e. Elements that
// share a vector of counters with them get theirs, too. REQUIRES: `words` has
// kRandomBlock elements; aligned to 64 bytes is fastest.
void MakeRandomWords(const RandomKeys& keys, int64_t element, uint32_t pair,
                     size_t begin, size_t end, uint16_t* words);

// Sets bits[e] to the 16 bits of element first_element + e, 0 <= e < 256.
// REQUIRES: first_element is a multiple of 256; tensor < 31.
void RandomBits(const RandomStream& stream, uint32_t tensor, uint16_t* bits);

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_RANDOM_H_
