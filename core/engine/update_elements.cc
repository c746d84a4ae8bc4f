// SPDX-License-Identifier: Apache-2.0

#include <array>

#include "core/base/dtype.h"
#include "core/engine/update.h"
#include "kernels/cpu/fused_step.h"

namespace shard {

namespace {

// Bytes read and written per element, scales left out.
uint64_t ElementBytes(const Range& range, size_t num_sources) {
  const FlatBufferPlan& plan = range.plan();
  uint64_t bytes = num_sources * DTypeSize(plan.grad_dtype);
  // A parameter with a master copy is only written.
  bytes += plan.has_masters ? DTypeSize(plan.dtype) + 2 * sizeof(float)
                            : 2 * DTypeSize(plan.dtype);
  for (size_t s = 0; s < range.num_states(); ++s) {
    bytes += 2 * DTypeSize(plan.states[s].tensor.dtype);
  }
  return bytes;
}

}  // namespace

uint64_t UpdateElements(const Range& range, const Optimizer& optimizer,
                        const UpdateInput& input) {
  const FlatBufferPlan& plan = range.plan();
  const GradientSources gradients = range.gradients(input.reduced);
  const size_t num_states = range.num_states();
  std::array<void*, kMaxStates> states = {};
  std::array<float*, kMaxStates> scales = {};

  FusedStepArgs args;
  args.gradient_scale = input.scale;
  args.clip_value = input.clip_value;
  args.param_dtype = plan.dtype;
  args.states = states.data();
  args.scales = scales.data();
  args.state_dtype =
      num_states == 0 ? DType::kF32 : plan.states[0].tensor.dtype;
  args.stochastic_rounding =
      plan.dtype == DType::kBF16 && input.masters == Masters::kNoneStochastic;
  args.random.seed = input.seed;
  args.random.step = static_cast<uint32_t>(input.step);

  const auto run = [&](size_t begin, size_t count) {
    args.gradients = gradients;
    args.gradients_begin = begin;
    args.param = range.param(begin);
    args.master = range.master(begin);
    for (size_t s = 0; s < num_states; ++s) {
      states[s] = range.state(s, begin);
      if (args.state_dtype == DType::kQ8) scales[s] = range.scale(s, begin);
    }
    args.count = count;
    FusedStep(optimizer.formula(), optimizer.hypers().data(), input.step, args);
  };
  if (args.state_dtype == DType::kF32 && !args.stochastic_rounding) {
    // Padding goes along; what becomes of it is not read.
    run(0, range.count());
  } else {
    // Random bits, and blocks, go by the element of the parameter.
    for (const RangeSlice& slice : range.slices()) {
      args.random.param = slice.position;
      args.random.first_element = slice.param_begin;
      run(slice.begin, slice.count);
    }
  }
  return range.count() * ElementBytes(range, gradients.count);
}

}  // namespace shard
