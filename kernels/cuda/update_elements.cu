// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/arithmetic.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/element_tiles.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/update_elements.h"
#include "kernels/formula/all.h"

namespace shard::cuda {

namespace {

template <class F, template <class> class RuleOf>
SHARD_DEVICE void UpdateTile(const ElementTiles<F>& tiles, uint32_t index) {
  const ParamTile at = tiles.TileAt(index);
  if (at.row == kNotStepped) return;
  Warp<ElementLane> warp;
  tiles.LoadTile(at.tile, &warp);
  const auto& scalars = tiles.ScalarsOf(at.row);
  const RuleOf<Arithmetic> rule(Arithmetic(), scalars);
  const float factor = tiles.FactorOf(scalars.gradient_sign);
  warp.Each([&](int, ElementLane& v) {
    SHARD_UNROLL
    for (int k = 0; k < kPerLane; ++k) {
      float states[kMaxStates];
      SHARD_UNROLL
      for (int s = 0; s < F::kNumStates; ++s) states[s] = v.states[s][k];
      rule.Update(v.gradient[k] * factor, v.param[k], states);
      SHARD_UNROLL
      for (int s = 0; s < F::kNumStates; ++s) v.states[s][k] = states[s];
    }
  });
  tiles.StoreParam(at, &warp);
  tiles.StoreStates(at, &warp);
}

template <class F, template <class> class Rule>
SHARD_DEVICE void UpdateElements(const UpdateElementsArgs& args,
                                 const Launch& launch) {
  const StepBlock& block = BlockCopy(args.block);
  if (block.drops_updates()) return;
  // An ended meeting updates nothing.
  const bool updates = args.meetings == nullptr || MeetPeers(args.meetings);
  const AesTable table(args.range.needs_random);
  uint32_t begun = 0;
  for (uint32_t r = 0; updates && r <= args.num_more; ++r) {
    const ElementTiles<F> tiles(
        BlockCopy(r == 0 ? &args.range : &args.more[r - 1]), block, *args.block,
        table);
    const auto count = static_cast<uint32_t>(tiles.count());
    // A range begins with the warps that the one before has left idle.
    ForEachOnWarp(launch, begun, count,
                  [&](uint32_t tile) { UpdateTile<F, Rule>(tiles, tile); });
    begun += count;
  }
  if (args.meetings != nullptr) LeavePeers(args.meetings);
}

}  // namespace

#define SHARD_UPDATE_KERNEL(Name)                            \
  SHARD_KERNEL(shard_update_##Name, UpdateElementsArgs) {    \
    UpdateElements<Name, formula::Name##Rule>(args, launch); \
  }
SHARD_ELEMENT_FORMULAS(SHARD_UPDATE_KERNEL)
#undef SHARD_UPDATE_KERNEL

}  // namespace shard::cuda
