// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/arithmetic.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/element_tiles.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/random.h"
#include "kernels/cuda/square_sums.h"
#include "kernels/cuda/update_tensors.h"
#include "kernels/formula/all.h"

namespace shard::cuda {

namespace {

using LambTiles = ElementTiles<Lamb>;
using LambRule = formula::LambRule<Arithmetic>;

// Updates the moments of a tile, and returns the squares of p and u.
SHARD_DEVICE SquareSums LambMoments(const LambTiles& tiles,
                                    const ParamTile& at) {
  Warp<ElementLane> warp;
  tiles.LoadTile(at.tile, &warp);
  const Lamb::Scalars& scalars = tiles.ScalarsOf(at.row);
  const LambRule rule(Arithmetic(), scalars);
  const float factor = tiles.FactorOf(scalars.gradient_sign);
  warp.Each([&](int lane, ElementLane& v) {
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) {
      float states[] = {v.states[0][k], v.states[1][k]};
      const float u = rule.Update(v.gradient[k] * factor, v.param[k], states);
      v.states[0][k] = states[0];
      v.states[1][k] = states[1];
      // The gradient is not read again. Zeros that no parameter has may give
      // 0 / 0.
      v.gradient[k] = at.tile.Has(ElementOf(lane, k)) ? u : 0.0f;
    }
  });
  tiles.StoreStates(at, &warp);
  return {
      SumTileSquares([](const ElementLane& v) { return v.param; }, &warp),
      SumTileSquares([](const ElementLane& v) { return v.gradient; }, &warp)};
}

// Updates the parameters of a tile, from the moments that LambMoments left.
SHARD_DEVICE void LambApply(const LambTiles& tiles, const ParamTile& at,
                            float step_size) {
  Warp<ElementLane> warp;
  tiles.LoadWithoutGradient(at.tile, &warp);
  const LambRule rule(Arithmetic(), tiles.ScalarsOf(at.row));
  warp.Each([&](int, ElementLane& v) {
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) {
      const float states[] = {v.states[0][k], v.states[1][k]};
      const float u = rule.UpdateAgain(v.param[k], states);
      v.param[k] = rule.Apply(v.param[k], u, step_size);
    }
  });
  tiles.StoreParam(at, &warp);
}

}  // namespace

SHARD_KERNEL(shard_lamb_moments, UpdateTensorsArgs) {
  const StepBlock block = *args.block;
  if (block.drops_updates()) return;
  const AesTable table(false);
  const LambTiles tiles(args.range, block, *args.block, table);
  ForEachOnWarp(launch, tiles.count(), [&](uint64_t i) {
    const ParamTile at = tiles.TileAt(i);
    if (at.row == kNotStepped) return;
    StoreSums(LambMoments(tiles, at), args.squares.tiles + i);
  });
}

SHARD_KERNEL(shard_lamb_apply, UpdateTensorsArgs) {
  const StepBlock block = *args.block;
  if (block.drops_updates()) return;
  const AesTable table(args.range.needs_random);
  const LambTiles tiles(args.range, block, *args.block, table);
  // Most tiles of a warp are of the parameter of the tile before.
  uint32_t slice = ~0u;
  float step_size = 0;
  ForEachOnWarp(launch, tiles.count(), [&](uint64_t i) {
    const ParamTile at = tiles.TileAt(i);
    if (at.row == kNotStepped) return;
    if (at.slice != slice) {
      slice = at.slice;
      const SquareSums sums = SumsOfSlice(args, slice);
      step_size = static_cast<float>(Lamb::StepSizeWith(
          DeviceMath(), tiles.ScalarsOf(at.row), sums.param, sums.update));
    }
    LambApply(tiles, at, step_size);
  });
}

}  // namespace shard::cuda
