// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/arithmetic.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/element_tiles.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/muon.h"
#include "kernels/cuda/random.h"
#include "kernels/cuda/square_sums.h"
#include "kernels/cuda/tile.h"
#include "kernels/formula/all.h"

namespace shard::cuda {

namespace {

// Gradients, states and parameters are larger than a GPU's L2 cache, and leave
// it to directions and x, which the next launch reads.
using MuonTiles = ElementTiles<Muon, Use::kOnce>;

// The order of tiles. A launch that reads what the one before has written
// begins with what was written last: that is still in the L2 cache.
enum class Order { kForward, kBackward };

// A tile of a matrix, in the memory of directions or of x.
struct BatchTile {
  Tile tile;
  uint64_t offset;  // Bytes from the first matrix to the tile's matrix.

  SHARD_DEVICE BatchTile(const MuonArgs& args, const ParamTile& at)
      : tile(at.tile), offset(at.slice * args.stride) {
    tile.first -=
        static_cast<int64_t>(args.tensors.range.slices[at.slice].begin);
    // Matrices and tiles are aligned there.
    tile.whole = tile.begin == 0 && tile.end == kTile;
  }

  SHARD_DEVICE const void* In(const void* matrices) const {
    return static_cast<const char*>(matrices) + offset;
  }
  SHARD_DEVICE void* In(void* matrices) const {
    return static_cast<char*>(matrices) + offset;
  }
};

// Calls body(tiles, tile, i) for each tile that is stepped; i is its number.
template <Order kOrder, class Body>
SHARD_DEVICE void ForEachTile(const MuonArgs& args, const Launch& launch,
                              const AesTable& table, const Body& body) {
  const StepBlock block = *args.tensors.block;
  if (block.drops_updates()) return;
  const MuonTiles tiles(args.tensors.range, block, *args.tensors.block, table);
  const uint64_t count = tiles.count();
  ForEachOnWarp(launch, count, [&](uint64_t turn) {
    const uint64_t i = kOrder == Order::kForward ? turn : count - 1 - turn;
    const ParamTile at = tiles.TileAt(i);
    if (at.row != kNotStepped) body(tiles, at, i);
  });
}

// Updates the momentum of a tile, and returns the squares of its direction.
SHARD_DEVICE SquareSums Direct(const MuonArgs& args, const MuonTiles& tiles,
                               const ParamTile& at) {
  Warp<ElementLane> warp;
  tiles.LoadGradientAndStates(at.tile, &warp);
  const formula::MuonMomentumRule<Arithmetic> rule(
      Arithmetic(), tiles.ScalarsOf(at.row).momentum);
  const float factor = tiles.FactorOf(1.0);
  const BatchTile to(args, at);
  warp.Each([&](int lane, ElementLane& v) {
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) {
      v.gradient[k] = rule.Direction(v.gradient[k] * factor, v.states[0][k]);
    }
    StoreRaw(Narrow(DType::kF32, v.gradient), DType::kF32,
             to.In(args.directions), to.tile, lane);
  });
  tiles.StoreStates(at, &warp);
  return {0, SumTileSquares([](const ElementLane& v) { return v.gradient; },
                            &warp)};
}

SHARD_DEVICE void Normalize(const MuonArgs& args, const ParamTile& at,
                            float factor) {
  const BatchTile in(args, at);
  const void* const directions = in.In(args.directions);
  // Lines of which x takes the place are needed again.
  const bool in_place = directions == in.In(args.x);
  ForEachLane([&](int lane) {
    float x[kPerLane];
    Widen(DType::kF32,
          in_place
              ? LoadRaw(DType::kF32, directions, in.tile, lane)
              : LoadRaw<Use::kOnce>(DType::kF32, directions, in.tile, lane),
          x);
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) x[k] *= factor;
    StoreRaw(Narrow(args.x_dtype, x), args.x_dtype, in.In(args.x), in.tile,
             lane);
  });
}

SHARD_DEVICE void Apply(const MuonArgs& args, const MuonTiles& tiles,
                        const ParamTile& at) {
  Warp<ElementLane> warp;
  tiles.LoadParam(at.tile, &warp);
  const Muon::Scalars& scalars = tiles.ScalarsOf(at.row);
  const formula::MuonApplyRule<Arithmetic> rule(
      Arithmetic(),
      Muon::ApplyWith(scalars, args.adjustments[scalars.adjustment]));
  const BatchTile from(args, at);
  warp.Each([&](int lane, ElementLane& v) {
    float x[kPerLane];
    Widen(args.x_dtype,
          LoadRaw<Use::kOnce>(args.x_dtype, from.In(args.x), from.tile, lane),
          x);
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) rule.Update(x[k], v.param[k]);
  });
  tiles.StoreParam(at, &warp);
}

}  // namespace

SHARD_KERNEL(shard_muon_momentum, MuonArgs) {
  const AesTable none(false);
  ForEachTile<Order::kForward>(
      args, launch, none,
      [&](const MuonTiles& tiles, const ParamTile& at, uint64_t i) {
        StoreSums(Direct(args, tiles, at), args.tensors.squares.tiles + i);
      });
}

SHARD_KERNEL(shard_muon_normalize, MuonArgs) {
  const AesTable none(false);
  // Most tiles of a warp are of the matrix of the tile before.
  uint32_t slice = ~0u;
  float factor = 0;
  ForEachTile<Order::kBackward>(
      args, launch, none,
      [&](const MuonTiles& tiles, const ParamTile& at, uint64_t) {
        if (at.slice != slice) {
          slice = at.slice;
          factor = Muon::FactorOf(Sqrt(SumsOfSlice(args.tensors, slice).update),
                                  tiles.ScalarsOf(at.row).eps);
        }
        Normalize(args, at, factor);
      });
}

SHARD_KERNEL(shard_muon_apply, MuonArgs) {
  const AesTable table(args.tensors.range.needs_random);
  ForEachTile<Order::kBackward>(args, launch, table,
                                [&](const MuonTiles& tiles, const ParamTile& at,
                                    uint64_t) { Apply(args, tiles, at); });
}

}  // namespace shard::cuda
