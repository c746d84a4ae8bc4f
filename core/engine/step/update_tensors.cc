// SPDX-License-Identifier: Apache-2.0

#include <array>

#include "core/base/dtype.h"
#include "core/engine/step/update.h"
#include "core/engine/step/wide_param.h"
#include "core/optim/workspace.h"
#include "kernels/cpu/tensor_step.h"

namespace shard {

uint64_t UpdateTensors(const OwnedRange& range, const Optimizer& optimizer,
                       const UpdateInput& input, float* workspace,
                       Stream* stream) {
  const GradientSources gradients = range.gradients(input.reduced);
  std::array<float*, kMaxStates> states = {};
  uint64_t bytes = 0;
  for (const RangeSlice& slice : range.slices()) {
    const int64_t step = StepOf(slice, input);
    if (step == 0) continue;
    const auto ndim = static_cast<int>(slice.shape->size());
    // The workspace holds the gradient, the kernel's scratch and a copy of the
    // parameter.
    float* const grad = workspace;
    float* const scratch =
        grad + AlignWorkspace(static_cast<int64_t>(slice.count));
    float* const copy = workspace + WorkspaceNumel(optimizer.formula(),
                                                   slice.shape->data(), ndim);
    stream->SumGradients(gradients, slice.begin, slice.count, input.scale,
                         input.clip_value, grad);
    const WideParam param(range, slice, copy, stream);
    for (size_t s = 0; s < range.num_states(); ++s) {
      states[s] = static_cast<float*>(range.state(s, slice.state_begins[s]));
    }
    TensorStepArgs args;
    args.grad = grad;
    args.param = param.data();
    args.states = states.data();
    args.shape = slice.shape->data();
    args.ndim = ndim;
    args.scratch = scratch;
    stream->TensorStep(optimizer.formula(), optimizer.hypers().data(), step,
                       args);
    param.Publish(input, stream);
    bytes += slice.count * (gradients.count * DTypeSize(gradients.dtype) +
                            sizeof(float)) +
             TensorStepBytes(optimizer.formula(), slice.shape->data(), ndim) +
             param.extra_bytes();
  }
  return bytes;
}

}  // namespace shard
