// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/casts.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/q8.h"
#include "kernels/cuda/random.h"
#include "kernels/cuda/tile.h"

namespace shard::cuda {

namespace {

struct CastLane {
  float x[kPerLane];
  LaneWords words;
};

// Returns whether fours of a tensor's elements are aligned, where its element
// `first` is the first of one.
SHARD_DEVICE bool HasFours(const void* tensor, int64_t first, int size) {
  return (AddressOf(tensor) +
          static_cast<uint64_t>(first) * static_cast<uint64_t>(size)) %
             (4 * static_cast<uint64_t>(size)) ==
         0;
}

// Returns the bytes of an element of f32, bf16 or f16.
SHARD_DEVICE int SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// The tiles of `count` elements, the first of which is element `offset` of its
// tile.
class CastTiles {
 public:
  SHARD_DEVICE CastTiles(int64_t offset, uint64_t count)
      : offset_(offset), count_(static_cast<int64_t>(count)) {}

  // Returns the first tile's first element, from the tensors' first.
  SHARD_DEVICE int64_t first() const { return -offset_; }

  SHARD_DEVICE uint64_t num_tiles() const {
    return count_ == 0
               ? 0
               : static_cast<uint64_t>((offset_ + count_ + kTile - 1) / kTile);
  }

  SHARD_DEVICE Tile At(uint64_t index, bool aligned) const {
    Tile tile;
    tile.first = static_cast<int64_t>(index) * kTile - offset_;
    const int64_t left = count_ - tile.first;
    tile.begin = tile.first < 0 ? static_cast<int>(-tile.first) : 0;
    tile.end = left < kTile ? static_cast<int>(left) : kTile;
    tile.whole = aligned && tile.begin == 0 && tile.end == kTile;
    return tile;
  }

 private:
  int64_t offset_;
  int64_t count_;
};

// Returns the place of a float in its four.
SHARD_DEVICE int64_t PlaceInFour(const float* tensor) {
  return static_cast<int64_t>(AddressOf(tensor) / sizeof(float) % 4);
}

// Sums a tile of the sources, in their order.
template <DType kDType>
SHARD_DEVICE void SumTile(const Sources& sources, int64_t begin,
                          const Tile& tile, int lane, float* to) {
  constexpr int kSize = kDType == DType::kF32 ? 4 : 2;
  Widen(kDType, LoadRaw(kDType, At(sources[0], begin, kSize), tile, lane), to);
  for (uint32_t w = 1; w < sources.count; ++w) {
    float other[kPerLane];
    Widen(kDType, LoadRaw(kDType, At(sources[w], begin, kSize), tile, lane),
          other);
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) to[k] += other[k];
  }
}

// Adds the tile of each rank's block, in the order of ranks.
template <DType kDType>
SHARD_DEVICE void SumTileOfRanks(const SumBlocksArgs& args, const Tile& tile,
                                 int lane, float* to) {
  constexpr int kSize = kDType == DType::kF32 ? 4 : 2;
  const auto count = static_cast<int64_t>(args.count);
  const void* peer = args.peers;
  bool is_first = true;
  for (int32_t i = 0; i < args.ranks; ++i) {
    const bool is_own = i == args.own_index;
    const void* const block = is_own ? args.own : peer;
    if (!is_own) peer = At(peer, count, kSize);
    if (block == nullptr) continue;
    float other[kPerLane];
    Widen(kDType, LoadRaw(kDType, block, tile, lane), other);
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) {
      to[k] = is_first ? other[k] : to[k] + other[k];
    }
    is_first = false;
  }
  if (args.own != nullptr) return;
  // The block that is missing has zeros, and -0 + 0 is 0.
  SHARD_UNROLL
  for (int k = 0; k < kPerLane; ++k) to[k] = is_first ? 0.0f : to[k] + 0.0f;
}

SHARD_DEVICE void WidenTile(DType dtype, const void* from, const Tile& tile,
                            int lane, float* to) {
  Widen(dtype, LoadRaw(dtype, from, tile, lane), to);
}

}  // namespace

SHARD_KERNEL(shard_sum_gradients, SumGradientsArgs) {
  const CastTiles tiles(PlaceInFour(args.out), args.count);
  const DType dtype = args.sources.dtype;
  const auto begin = static_cast<int64_t>(args.begin);
  bool aligned = true;
  for (uint32_t w = 0; w < args.sources.count; ++w) {
    aligned = aligned &&
              HasFours(args.sources[w], begin + tiles.first(), SizeOf(dtype));
  }
  ForEachOnWarp(launch, tiles.num_tiles(), [&](uint64_t i) {
    const Tile tile = tiles.At(i, aligned);
    ForEachLane([&](int lane) {
      float x[kPerLane];
      if (dtype == DType::kF32) {
        SumTile<DType::kF32>(args.sources, begin, tile, lane, x);
      } else if (dtype == DType::kBF16) {
        SumTile<DType::kBF16>(args.sources, begin, tile, lane, x);
      } else {
        SumTile<DType::kF16>(args.sources, begin, tile, lane, x);
      }
      SHARD_UNROLL
      for (int k = 0; k < kPerLane; ++k) {
        float g = x[k] * args.scale;
        g = g > args.clip_value ? args.clip_value : g;
        x[k] = g < -args.clip_value ? -args.clip_value : g;
      }
      StoreRaw(Narrow(DType::kF32, x), DType::kF32, args.out, tile, lane);
    });
  });
}

SHARD_KERNEL(shard_sum_blocks, SumBlocksArgs) {
  const CastTiles tiles(0, args.count);
  const int size = SizeOf(args.dtype);
  const bool aligned = HasFours(args.own, 0, size) &&
                       HasFours(args.peers, 0, size) &&
                       HasFours(args.recv, 0, SizeOf(args.recv_dtype)) &&
                       (args.count % 4 == 0 || args.ranks <= 2);
  ForEachOnWarp(launch, tiles.num_tiles(), [&](uint64_t i) {
    const Tile tile = tiles.At(i, aligned);
    ForEachLane([&](int lane) {
      float x[kPerLane];
      if (args.dtype == DType::kF32) {
        SumTileOfRanks<DType::kF32>(args, tile, lane, x);
      } else if (args.dtype == DType::kBF16) {
        SumTileOfRanks<DType::kBF16>(args, tile, lane, x);
      } else {
        SumTileOfRanks<DType::kF16>(args, tile, lane, x);
      }
      if (args.add) {
        float old[kPerLane];
        WidenTile(args.recv_dtype, args.recv, tile, lane, old);
        SHARD_UNROLL
        for (int k = 0; k < kPerLane; ++k) x[k] = old[k] + x[k];
      }
      StoreRaw(Narrow(args.recv_dtype, x), args.recv_dtype, args.recv, tile,
               lane);
    });
  });
}

SHARD_KERNEL(shard_widen, WidenArgs) {
  const CastTiles tiles(PlaceInFour(args.to), args.count);
  const bool aligned = HasFours(args.from, tiles.first(), SizeOf(args.dtype));
  ForEachOnWarp(launch, tiles.num_tiles(), [&](uint64_t i) {
    const Tile tile = tiles.At(i, aligned);
    ForEachLane([&](int lane) {
      float x[kPerLane];
      WidenTile(args.dtype, args.from, tile, lane, x);
      StoreRaw(Narrow(DType::kF32, x), DType::kF32, args.to, tile, lane);
    });
  });
}

SHARD_KERNEL(shard_narrow, NarrowArgs) {
  const AesTable table(args.stochastic);
  // Tiles are the blocks of random bits.
  const int64_t offset = args.stochastic ? args.random.first_element % kTile
                                         : PlaceInFour(args.from);
  const CastTiles tiles(offset, args.count);
  const bool aligned = HasFours(args.from, tiles.first(), 4) &&
                       HasFours(args.to, tiles.first(), SizeOf(args.dtype));
  ForEachOnWarp(launch, tiles.num_tiles(), [&](uint64_t i) {
    const Tile tile = tiles.At(i, aligned);
    Warp<CastLane> warp;
    warp.Each([&](int lane, CastLane& v) {
      WidenTile(DType::kF32, args.from, tile, lane, v.x);
    });
    if (!args.stochastic) {
      warp.Each([&](int lane, CastLane& v) {
        StoreRaw(Narrow(args.dtype, v.x), args.dtype, args.to, tile, lane);
      });
      return;
    }
    RandomStream random = args.random;
    random.first_element += tile.first;
    MakeTileWords(
        table, random, RandomPair(kParamTensor),
        [](CastLane& v) -> LaneWords& { return v.words; }, &warp);
    warp.Each([&](int lane, CastLane& v) {
      StoreRaw(NarrowStochastically(kParamTensor, v.words, v.x), DType::kBF16,
               args.to, tile, lane);
    });
  });
}

SHARD_KERNEL(shard_encode_q8, EncodeQ8Args) {
  const AesTable table(args.stochastic);
  const CastTiles tiles(0, args.count);
  const bool aligned = HasFours(args.from, 0, 4) && HasFours(args.codes, 0, 1);
  ForEachOnWarp(launch, tiles.num_tiles(), [&](uint64_t i) {
    constexpr uint32_t kMiddle = 1u << 15;
    const Tile tile = tiles.At(i, aligned);
    Warp<CastLane> warp;
    warp.Each([&](int lane, CastLane& v) {
      WidenTile(DType::kF32, args.from, tile, lane, v.x);
    });
    if (args.stochastic) {
      RandomStream random = args.random;
      random.first_element += tile.first;
      MakeTileWords(
          table, random, RandomPair(args.tensor),
          [](CastLane& v) -> LaneWords& { return v.words; }, &warp);
    }
    // Elements that the tile does not have are 0.
    const float scale =
        ScaleOfBlock(args.kind, warp.Max([&](int, const CastLane& v) {
          uint32_t most = 0;
          SHARD_UNROLL
          for (int k = 0; k < kPerLane; ++k) {
            const uint32_t bits = BitsOf(v.x[k]) & 0x7FFFFFFF;
            if (bits > most) most = bits;
          }
          return most;
        }));
    warp.Each([&](int lane, CastLane& v) {
      if (lane == 0) args.scales[i] = scale;
      const Raw codes = EncodeQ8(args.kind, v.x, scale, [&](int k) {
        return args.stochastic ? v.words.Of(k, IsFirstOfPair(args.tensor))
                               : kMiddle;
      });
      StoreRaw(codes, DType::kQ8, args.codes, tile, lane);
    });
  });
}

}  // namespace shard::cuda
