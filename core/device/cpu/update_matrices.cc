// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <span>

#include "core/device/cpu/update.h"
#include "core/device/cpu/wide_param.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/muon_step.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/formula/muon.h"

namespace shard::cpu {

namespace {

// The slices of a batch, by their index in the range.
struct MuonSlices {
  std::array<size_t, kBatchedAtOnce> index;
  size_t count = 0;
};

// Takes the next slices of one shape that are stepped, from `*next` on. Equal
// shapes are adjacent.
MuonSlices TakeBatch(const RangeUpdate& update, size_t* next) {
  const UpdateRange& range = update.range;
  const std::span<const UpdateSlice> slices = update.list.SlicesOf(range);
  MuonSlices taken;
  std::span<const int64_t> shape;
  for (; *next < slices.size(); ++*next) {
    if (update.block.RowOf(range.group, slices[*next].position) ==
        kNotStepped) {
      continue;
    }
    const TensorSlice& tensor = update.list.tensors[range.first_tensor + *next];
    const std::span<const int64_t> own = update.list.ShapeOf(tensor);
    if (taken.count == 0) {
      shape = own;
    } else if (taken.count == tensor.batch ||
               !std::equal(own.begin(), own.end(), shape.begin())) {
      break;
    }
    taken.index[taken.count++] = *next;
  }
  return taken;
}

}  // namespace

void UpdateMatrices(const RangeUpdate& update, const Blas& blas) {
  const UpdateRange& range = update.range;
  const StepBlock& block = update.block;
  const std::span<const UpdateSlice> slices = update.list.SlicesOf(range);
  float* const workspace = update.list.workspace;
  auto* const momentum = static_cast<float*>(range.states[0]);
  size_t next = 0;
  for (;;) {
    const MuonSlices batch = TakeBatch(update, &next);
    if (batch.count == 0) return;
    const auto tensor_of = [&](size_t i) -> const TensorSlice& {
      return update.list.tensors[range.first_tensor + batch.index[i]];
    };
    const TensorSlice& first = tensor_of(0);
    const std::span<const int64_t> shape = update.list.ShapeOf(first);
    // Rows differ in nothing but the number of steps, which Muon does not read.
    const auto& scalars =
        block.rows()[block.RowOf(range.group, slices[batch.index[0]].position)]
            .scalars.as<Muon>();
    const auto direction_of = [&](size_t i) {
      return workspace + i * first.stride;
    };
    for (size_t i = 0; i < batch.count; ++i) {
      const UpdateSlice& slice = slices[batch.index[i]];
      SumGradients(update.gradients, slice.begin, slice.count, block.scale,
                   block.clip_value, direction_of(i));
      MuonMomentum(&scalars, direction_of(i),
                   momentum + tensor_of(i).state_begins[0], slice.count);
    }
    Orthogonalize(blas,
                  {workspace, static_cast<int64_t>(batch.count), shape[0],
                   shape[1], static_cast<int64_t>(first.stride)},
                  scalars.ns_steps, scalars.eps,
                  workspace + first.batch * first.stride);
    for (size_t i = 0; i < batch.count; ++i) {
      const UpdateSlice& slice = slices[batch.index[i]];
      const WideParam param(range, slice, workspace + first.copy);
      MuonApply(&scalars, shape[0], shape[1], direction_of(i), param.data(),
                slice.count);
      param.Publish(block);
    }
  }
}

}  // namespace shard::cpu
