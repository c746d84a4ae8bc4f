// SPDX-License-Identifier: Apache-2.0
//
// Tiles: 256 adjacent elements, those that share random bits and the scale of
// 8-bit states, on one warp. A lane has eight elements: four of each half, so
// that the lanes of a warp read and write whole lines at once.
//
// A tile in which not all elements are stepped, or whose tensors are not
// aligned, is read and written element by element.

#ifndef SHARD_KERNELS_CUDA_TILE_H_
#define SHARD_KERNELS_CUDA_TILE_H_

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/device.h"

namespace shard::cuda {

inline constexpr int kTile = 256;
inline constexpr int kPerLane = kTile / kLanes;

// Returns the element of the tile that is the lane's i-th.
SHARD_DEVICE constexpr int ElementOf(int lane, int i) {
  return i / 4 * (kTile / 2) + lane * 4 + i % 4;
}

struct Tile {
  // Where the tensors have the tile's first element, which may lie before their
  // own first.
  int64_t first;
  // The elements that are stepped: [begin, end) of the tile.
  int begin;
  int end;
  // All 256, and each lane's fours are aligned.
  bool whole;

  SHARD_DEVICE bool Has(int element) const {
    return begin <= element && element < end;
  }
};

// A lane's elements of one tensor, as they are stored: f32 a word each, bf16
// and f16 two to a word, and codes of 8 bits four to a word.
struct Raw {
  uint32_t w[kPerLane];
};

SHARD_DEVICE uintptr_t AddressOf(const void* tensor) {
  return reinterpret_cast<uintptr_t>(tensor);
}

SHARD_DEVICE const void* At(const void* tensor, int64_t i, int size) {
  return static_cast<const char*>(tensor) + i * size;
}
SHARD_DEVICE void* At(void* tensor, int64_t i, int size) {
  return static_cast<char*>(tensor) + i * size;
}

// Loads the lane's elements; those that the tile does not have are 0.
template <Use kUse = Use::kAgain>
SHARD_DEVICE Raw LoadRaw(DType dtype, const void* tensor, const Tile& tile,
                         int lane) {
  Raw raw = {};
  if (tile.whole) {
    SHARD_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t i = tile.first + ElementOf(lane, 4 * half);
      if (dtype == DType::kF32) {
        const auto four = Load<Words4, kUse>(At(tensor, i, 4));
        SHARD_UNROLL
        for (int k = 0; k < 4; ++k) raw.w[4 * half + k] = four.w[k];
      } else if (dtype == DType::kQ8) {
        raw.w[half] = Load<uint32_t>(At(tensor, i, 1));
      } else {
        const auto two = Load<Words2, kUse>(At(tensor, i, 2));
        raw.w[2 * half] = two.w[0];
        raw.w[2 * half + 1] = two.w[1];
      }
    }
    return raw;
  }
  SHARD_UNROLL
  for (int k = 0; k < kPerLane; ++k) {
    const int element = ElementOf(lane, k);
    if (!tile.Has(element)) continue;
    const int64_t i = tile.first + element;
    if (dtype == DType::kF32) {
      raw.w[k] = Load<uint32_t>(At(tensor, i, 4));
    } else if (dtype == DType::kQ8) {
      raw.w[k / 4] |= uint32_t{Load<uint8_t>(At(tensor, i, 1))} << k % 4 * 8;
    } else {
      raw.w[k / 2] |= uint32_t{Load<uint16_t>(At(tensor, i, 2))} << k % 2 * 16;
    }
  }
  return raw;
}

template <Use kUse = Use::kAgain>
SHARD_DEVICE void StoreRaw(const Raw& raw, DType dtype, void* tensor,
                           const Tile& tile, int lane) {
  if (tile.whole) {
    SHARD_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t i = tile.first + ElementOf(lane, 4 * half);
      if (dtype == DType::kF32) {
        Words4 four;
        SHARD_UNROLL
        for (int k = 0; k < 4; ++k) four.w[k] = raw.w[4 * half + k];
        Store<kUse>(four, At(tensor, i, 4));
      } else if (dtype == DType::kQ8) {
        Store(raw.w[half], At(tensor, i, 1));
      } else {
        Store<kUse>(Words2{raw.w[2 * half], raw.w[2 * half + 1]},
                    At(tensor, i, 2));
      }
    }
    return;
  }
  SHARD_UNROLL
  for (int k = 0; k < kPerLane; ++k) {
    const int element = ElementOf(lane, k);
    if (!tile.Has(element)) continue;
    const int64_t i = tile.first + element;
    if (dtype == DType::kF32) {
      Store(raw.w[k], At(tensor, i, 4));
    } else if (dtype == DType::kQ8) {
      Store(static_cast<uint8_t>(raw.w[k / 4] >> k % 4 * 8), At(tensor, i, 1));
    } else {
      Store(static_cast<uint16_t>(raw.w[k / 2] >> k % 2 * 16),
            At(tensor, i, 2));
    }
  }
}

// Returns the k-th of the lane's elements of 16 bits.
SHARD_DEVICE uint32_t HalfOf(const Raw& raw, int k) {
  return raw.w[k / 2] >> k % 2 * 16 & 0xFFFF;
}

// Converts f32, bf16 or f16 to floats.
SHARD_DEVICE void Widen(DType dtype, const Raw& raw, float* to) {
  SHARD_UNROLL
  for (int k = 0; k < kPerLane; ++k) {
    if (dtype == DType::kF32) {
      to[k] = FloatOf(raw.w[k]);
    } else if (dtype == DType::kBF16) {
      to[k] = FloatOf(HalfOf(raw, k) << 16);
    } else {
      to[k] = FromF16(HalfOf(raw, k));
    }
  }
}

// Rounds floats to f32, bf16 or f16, to nearest.
SHARD_DEVICE Raw Narrow(DType dtype, const float* from) {
  Raw raw = {};
  SHARD_UNROLL
  for (int k = 0; k < kPerLane; ++k) {
    if (dtype == DType::kF32) {
      raw.w[k] = BitsOf(from[k]);
    } else {
      const uint32_t half =
          dtype == DType::kBF16 ? ToBf16(from[k]) : ToF16(from[k]);
      raw.w[k / 2] |= half << k % 2 * 16;
    }
  }
  return raw;
}

}  // namespace shard::cuda

#endif  // SHARD_KERNELS_CUDA_TILE_H_
