// SPDX-License-Identifier: Apache-2.0

#include <array>
#include <span>

#include "core/device/cpu/update.h"
#include "core/device/cpu/wide_param.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/tensor_step.h"

namespace shard::cpu {

void UpdateTensors(const RangeUpdate& update) {
  const UpdateRange& range = update.range;
  const StepBlock& block = update.block;
  const std::span<const UpdateSlice> slices = update.list.SlicesOf(range);
  float* const workspace = update.list.workspace;
  std::array<float*, kMaxStates> states = {};
  for (size_t i = 0; i < slices.size(); ++i) {
    const UpdateSlice& slice = slices[i];
    const uint32_t row = block.RowOf(range.group, slice.position);
    if (row == kNotStepped) continue;
    const TensorSlice& tensor = update.list.tensors[range.first_tensor + i];
    SumGradients(update.gradients, slice.begin, slice.count, block.scale,
                 block.clip_value, workspace);
    const WideParam param(range, slice, workspace + tensor.copy);
    for (size_t s = 0; s < range.num_states; ++s) {
      states[s] = static_cast<float*>(range.states[s]) + tensor.state_begins[s];
    }
    TensorStepArgs args;
    args.grad = workspace;
    args.param = param.data();
    args.states = states.data();
    args.shape = update.list.ShapeOf(tensor).data();
    args.ndim = tensor.ndim;
    args.scratch = workspace + tensor.stride;
    TensorStep(range.formula, block.rows()[row].scalars.data(), args);
    param.Publish(block);
  }
}

}  // namespace shard::cpu
