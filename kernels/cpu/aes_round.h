// SPDX-License-Identifier: Apache-2.0
//
// AesRound: one round of the Advanced Encryption Standard (FIPS 197) in plain
// code, for the SIMD target that has no vectors.
//
// Thread-safe. Not for secrets: its time depends on the data.

#ifndef SHARD_KERNELS_CPU_AES_ROUND_H_
#define SHARD_KERNELS_CPU_AES_ROUND_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace shard {

// The state column by column, as the bytes of a vector are.
using AesState = std::array<uint8_t, 16>;

// Returns the product with x in the field of 2^8 elements of FIPS 197.
constexpr uint8_t AesTimesX(uint8_t a) {
  return static_cast<uint8_t>(a << 1 ^ (a >> 7) * 0x1B);
}

// The S-box of every byte: its inverse in that field (0 for 0), followed by an
// affine map of its bits.
inline constexpr std::array<uint8_t, 256> kAesSBox = [] {
  std::array<uint8_t, 256> box = {};
  box[0] = 0x63;
  // Visits every p = 3^i and its inverse q, because 3 generates the field.
  uint8_t p = 1;
  uint8_t q = 1;
  do {
    p = static_cast<uint8_t>(p ^ AesTimesX(p));
    q = static_cast<uint8_t>(q ^ q << 1);
    q = static_cast<uint8_t>(q ^ q << 2);
    q = static_cast<uint8_t>(q ^ q << 4);
    if ((q & 0x80) != 0) q = static_cast<uint8_t>(q ^ 0x09);
    box[p] = static_cast<uint8_t>(q ^ std::rotl(q, 1) ^ std::rotl(q, 2) ^
                                  std::rotl(q, 3) ^ std::rotl(q, 4) ^ 0x63);
  } while (p != 1);
  return box;
}();

// Applies SubBytes, ShiftRows, MixColumns (but in a last round) and
// AddRoundKey.
inline AesState AesRound(const AesState& state, const AesState& key,
                         bool last) {
  AesState result;
  for (size_t column = 0; column < 4; ++column) {
    uint8_t a[4];
    for (size_t row = 0; row < 4; ++row) {
      a[row] = kAesSBox[state[(column + row) % 4 * 4 + row]];
    }
    const auto all = static_cast<uint8_t>(a[0] ^ a[1] ^ a[2] ^ a[3]);
    for (size_t row = 0; row < 4; ++row) {
      uint8_t mixed = a[row];
      if (!last) {
        mixed ^= static_cast<uint8_t>(
            all ^ AesTimesX(static_cast<uint8_t>(a[row] ^ a[(row + 1) % 4])));
      }
      result[column * 4 + row] =
          static_cast<uint8_t>(mixed ^ key[column * 4 + row]);
    }
  }
  return result;
}

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_AES_ROUND_H_
