// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/element_range.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "kernels/cuda/tile.h"

namespace shard::cuda {

namespace {

// Returns the number of tiles of the slices before, and of `slice`.
uint32_t EndTile(const ElementSlice& slice) {
  const auto offset = static_cast<uint64_t>(slice.param_begin % kTile);
  return slice.first_tile +
         static_cast<uint32_t>((offset + slice.count + kTile - 1) / kTile);
}

}  // namespace

std::vector<ElementSlice> ElementSlices(const UpdateList& list,
                                        const UpdateRange& range) {
  std::vector<ElementSlice> slices;
  slices.reserve(range.num_slices);
  for (const UpdateSlice& slice : list.SlicesOf(range)) {
    const uint32_t first_tile = slices.empty() ? 0 : EndTile(slices.back());
    slices.push_back({slice.begin, slice.count, slice.param_begin,
                      slice.position, first_tile});
  }
  return slices;
}

ElementRange ElementRangeOf(const UpdateList& list, const UpdateRange& range,
                            const std::vector<ElementSlice>& made,
                            const ElementSlice* slices,
                            const void* const* sources) {
  const GradientSources gradients = list.GradientsOf(range, false);
  ElementRange given = {};
  ReadGradients(gradients,
                sources == nullptr ? nullptr : sources + range.first_source,
                &given);
  if (range.keeps_sum) given.kept_sum = range.own_grads;
  given.param_dtype = range.param_dtype;
  given.state_dtype = range.state_dtype;
  given.param = range.param;
  given.master = range.master;
  // The kernels of Adafactor find states by the matrices of slices.
  const bool by_element = range.formula != Formula::kAdafactor;
  for (size_t s = 0; s < range.num_states && by_element; ++s) {
    given.states[s] = range.states[s];
    given.scales[s] = range.scales[s];
  }
  given.stochastic_rounding =
      range.stochastic_rounding && range.master == nullptr;
  given.needs_random =
      given.stochastic_rounding || range.state_dtype != DType::kF32;
  given.count = range.count;
  given.group = range.group;
  given.by_param = range.is_tensor || range.ByParam();
  given.num_slices = static_cast<uint32_t>(made.size());
  given.num_tiles = made.empty() ? 0 : EndTile(made.back());
  given.slices = slices;
  return given;
}

uint64_t TilesOf(const ElementRange& range) {
  return std::max<uint64_t>(range.num_tiles, (range.count + kTile - 1) / kTile);
}

void ReadGradients(const GradientSources& gradients, const void* const* table,
                   ElementRange* range) {
  range->sources =
      SourcesOf(gradients.data, gradients.count, gradients.dtype, table);
  range->kept_sum = nullptr;
}

}  // namespace shard::cuda
