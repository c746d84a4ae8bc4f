// SPDX-License-Identifier: Apache-2.0
//
// The random bits of kernels/cpu/random.h for the elements of a tile. A lane
// makes one counter of a block and swaps half of it with its neighbour, so each
// counter is made once.
//
// A round is one look-up for each byte, in a table of words. On a GPU the table
// lies in shared memory 32 times, once for each bank, so that lanes never wait
// for each other there.

#ifndef SHARD_KERNELS_CUDA_RANDOM_H_
#define SHARD_KERNELS_CUDA_RANDOM_H_

#include <cstdint>

#include "kernels/cpu/aes_round.h"
#include "kernels/cpu/random.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/tile.h"

namespace shard::cuda {

// By byte: the column that SubBytes and MixColumns make of a byte in row 0.
// Byte 1 is the byte's S-box.
struct AesColumns {
  uint32_t columns[256];
};

constexpr AesColumns MakeAesColumns() {
  AesColumns table = {};
  for (int i = 0; i < 256; ++i) {
    const uint32_t one = kAesSBox[static_cast<size_t>(i)];
    const uint32_t two = AesTimesX(static_cast<uint8_t>(one));
    table.columns[i] = two | one << 8 | one << 16 | (two ^ one) << 24;
  }
  return table;
}

SHARD_DEVICE_TABLE AesColumns kAesColumns = MakeAesColumns();

// The table, as a warp reads it.
class AesTable {
 public:
  // The bytes of shared memory that a launch needs where `used` is true, else
  // 0.
  static constexpr uint32_t kSharedBytes = 256 * kLanes * sizeof(uint32_t);

  // All threads of a block make the table together, before any of them returns.
  SHARD_DEVICE explicit AesTable([[maybe_unused]] bool used) {
#ifdef __CUDACC__
    if (!used) return;
    extern __shared__ uint32_t shard_aes_table[];
    for (uint32_t i = threadIdx.x; i < 256 * kLanes; i += blockDim.x) {
      shard_aes_table[i] = kAesColumns.columns[i / kLanes];
    }
    __syncthreads();
    mine_ = shard_aes_table + threadIdx.x % kLanes;
#endif
  }

  SHARD_DEVICE uint32_t operator[](uint32_t byte) const {
#ifdef __CUDACC__
    return mine_[byte * kLanes];
#else
    return kAesColumns.columns[byte];
#endif
  }

 private:
#ifdef __CUDACC__
  const uint32_t* mine_;
#endif
};

SHARD_DEVICE uint32_t RotateLeft(uint32_t x, int bits) {
  return x << bits | x >> (32 - bits);
}

// A counter and its 128 random bits.
struct RandomWords {
  uint64_t low;
  uint64_t high;
};

// Encrypts a counter with the keys of RandomKeys.
SHARD_DEVICE RandomWords MakeWords(const AesTable& table,
                                   const RandomStream& stream,
                                   RandomWords counter) {
  uint64_t key_low = stream.seed;
  uint64_t key_high = stream.param | uint64_t{stream.step} << 32;
  uint64_t low = counter.low ^ key_low;
  uint64_t high = counter.high ^ key_high;
  SHARD_UNROLL
  for (int round = 1; round <= RandomKeys::kRounds; ++round) {
    key_low += 0x9E3779B97F4A7C15u;
    key_high += 0xBB67AE8584CAA73Bu;
    const uint32_t in[4] = {
        static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
        static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
    uint32_t out[4];
    SHARD_UNROLL
    for (int c = 0; c < 4; ++c) {
      uint32_t column = 0;
      SHARD_UNROLL
      for (int row = 0; row < 4; ++row) {
        const uint32_t entry = table[in[(c + row) % 4] >> 8 * row & 0xFF];
        if (round == RandomKeys::kRounds) {
          column |= (entry >> 8 & 0xFF) << 8 * row;
        } else {
          column ^= row == 0 ? entry : RotateLeft(entry, 8 * row);
        }
      }
      out[c] = column;
    }
    low = (out[0] | uint64_t{out[1]} << 32) ^ key_low;
    high = (out[2] | uint64_t{out[3]} << 32) ^ key_high;
  }
  return {low, high};
}

// The random bits of a lane's elements: 16 each.
struct LaneWords {
  uint64_t first_half;
  uint64_t second_half;

  // Returns those of the k-th element for the first or second tensor of the
  // pair.
  SHARD_DEVICE uint32_t Of(int k, bool first) const {
    const auto word = static_cast<uint32_t>(
        (k < 4 ? first_half : second_half) >> k % 4 * 16 & 0xFFFF);
    return first ? word : (word << 8 | word >> 8) & 0xFFFF;
  }
};

// Makes the words of a tile for a pair of tensors. `stream.first_element` is
// the tile's first element. `words(value)` is the place in a lane's value.
template <class T, class Words>
SHARD_DEVICE void MakeTileWords(const AesTable& table,
                                const RandomStream& stream, uint32_t pair,
                                const Words& words, Warp<T>* warp) {
  constexpr int kCounters = kTile / 8;
  const uint64_t first =
      static_cast<uint64_t>(stream.first_element) / kTile * kCounters;
  // An even lane has the lower half of two counters, and its neighbour the
  // upper: i and i + 16. The even lane makes the first of them.
  warp->Each([&](int lane, T& value) {
    const int i = lane / 2 + lane % 2 * (kCounters / 2);
    const RandomWords made = MakeWords(
        table, stream, {first + static_cast<uint64_t>(i), uint64_t{pair}});
    words(value) = {made.low, made.high};
  });
  warp->ExchangePairs(
      [&](int lane, T& value) {
        const LaneWords& own = words(value);
        return lane % 2 == 0 ? own.second_half : own.first_half;
      },
      [&](int lane, T& value, uint64_t given) {
        LaneWords& own = words(value);
        own = lane % 2 == 0 ? LaneWords{own.first_half, given}
                            : LaneWords{given, own.second_half};
      });
}

// Rounds floats to bf16 with the words of the first or second tensor of a pair.
SHARD_DEVICE Raw NarrowStochastically(uint32_t tensor, const LaneWords& words,
                                      const float* from) {
  Raw raw = {};
  SHARD_UNROLL
  for (int k = 0; k < kPerLane; ++k) {
    raw.w[k / 2] |= ToBf16(from[k], words.Of(k, IsFirstOfPair(tensor)))
                    << k % 2 * 16;
  }
  return raw;
}

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_RANDOM_H_
