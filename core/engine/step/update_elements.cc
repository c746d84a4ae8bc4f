// SPDX-License-Identifier: Apache-2.0

#include <array>

#include "core/base/dtype.h"
#include "core/base/element_type.h"
#include "core/engine/step/update.h"
#include "kernels/cpu/fused_step.h"

namespace shard {

namespace {

// Returns the bytes read and written per element, scales left out.
uint64_t ElementBytes(const OwnedRange& range, size_t num_sources) {
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

uint64_t UpdateElements(const OwnedRange& range, const Optimizer& optimizer,
                        const UpdateInput& input, Stream* stream) {
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

  const auto run = [&](size_t begin, size_t count, int64_t step) {
    args.gradients = gradients;
    args.gradients_begin = begin;
    args.param = range.param(begin);
    args.master = range.master(begin);
    for (size_t s = 0; s < num_states; ++s) {
      states[s] = range.state(s, begin);
      if (IsQuantized(args.state_dtype)) scales[s] = range.scale(s, begin);
    }
    args.count = count;
    stream->FusedStep(optimizer.formula(), optimizer.hypers().data(), step,
                      args);
  };
  const uint64_t element_bytes = ElementBytes(range, gradients.count);
  // Random bits and blocks are numbered by the parameter's element.
  const bool by_slice =
      args.state_dtype != DType::kF32 || args.stochastic_rounding;
  if (!by_slice && input.param_steps == nullptr) {
    // Padding is updated too; nobody reads its values.
    run(0, range.count(), input.step);
    return range.count() * element_bytes;
  }
  uint64_t elements = 0;
  const std::vector<RangeSlice>& slices = range.slices();
  size_t last = 0;
  for (size_t first = 0; first < slices.size(); first = last) {
    const int64_t step = StepOf(slices[first], input);
    last = first + 1;
    // Adjacent slices with the same step number are updated in one run, with
    // the padding between them.
    while (!by_slice && last < slices.size() &&
           StepOf(slices[last], input) == step) {
      ++last;
    }
    if (step == 0) continue;
    const size_t begin = slices[first].begin;
    const size_t count =
        slices[last - 1].begin + slices[last - 1].count - begin;
    args.random.param = slices[first].position;
    args.random.first_element = slices[first].param_begin;
    run(begin, count, step);
    elements += count;
  }
  return elements * element_bytes;
}

}  // namespace shard
