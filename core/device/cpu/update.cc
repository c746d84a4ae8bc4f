// SPDX-License-Identifier: Apache-2.0

#include "core/device/cpu/update.h"

namespace shard::cpu {

void Update(const UpdateList& list, size_t range, const StepBlock& block,
            const GradientSources* gradients, const Blas* blas) {
  if (block.skipped) return;
  const UpdateRange& given = list.ranges[range];
  const RangeUpdate update = {list, given, block,
                              gradients == nullptr
                                  ? list.GradientsOf(given, block.has_norm)
                                  : *gradients};
  if (!given.is_tensor) {
    UpdateElements(update);
  } else if (given.formula == Formula::kMuon) {
    UpdateMatrices(update, *blas);
  } else {
    UpdateTensors(update);
  }
}

}  // namespace shard::cpu
