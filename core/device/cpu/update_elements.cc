// SPDX-License-Identifier: Apache-2.0

#include <array>

#include "core/base/dtype.h"
#include "core/base/element_type.h"
#include "core/device/cpu/update.h"
#include "kernels/cpu/fused_step.h"

namespace shard::cpu {

void UpdateElements(const RangeUpdate& update) {
  const UpdateRange& range = update.range;
  const StepBlock& block = update.block;
  std::array<void*, kMaxStates> states = {};
  std::array<float*, kMaxStates> scales = {};

  FusedStepArgs args;
  args.gradients = update.gradients;
  args.gradient_scale = block.scale;
  args.clip_value = block.clip_value;
  args.param_dtype = range.param_dtype;
  args.states = states.data();
  args.scales = scales.data();
  args.state_dtype = range.state_dtype;
  args.stochastic_rounding = range.stochastic_rounding;
  args.random.seed = block.seed;
  args.random.step = block.random_step;

  const size_t param_size = DTypeSize(range.param_dtype);
  const size_t state_size = DTypeSize(range.state_dtype);
  ForEachRun(
      update.list, range, block,
      [&](size_t begin, size_t count, uint32_t row, const UpdateSlice& first) {
        args.gradients_begin = begin;
        args.param =
            static_cast<unsigned char*>(range.param) + begin * param_size;
        if (range.master != nullptr) args.master = range.master + begin;
        for (size_t s = 0; s < range.num_states; ++s) {
          states[s] =
              static_cast<unsigned char*>(range.states[s]) + begin * state_size;
          if (IsQuantized(range.state_dtype)) {
            scales[s] = range.scales[s] + begin / static_cast<size_t>(kQ8Block);
          }
        }
        args.random.param = first.position;
        args.random.first_element = first.param_begin;
        args.count = count;
        FusedStep(range.formula, block.rows()[row].scalars.data(), args);
      });
}

}  // namespace shard::cpu
