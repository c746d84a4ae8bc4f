// SPDX-License-Identifier: Apache-2.0
//
// Tensors, hyperparameters and lists to call kernels with.

#ifndef SHARD_TESTS_CORE_DEVICE_KERNEL_INPUTS_H_
#define SHARD_TESTS_CORE_DEVICE_KERNEL_INPUTS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/device/step_block.h"
#include "core/device/update_list.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/fused_step.h"
#include "kernels/cpu/q8.h"
#include "kernels/formula/all.h"

namespace shard::testing {

inline constexpr double kNoClip = std::numeric_limits<double>::infinity();

// The number of elements of most tensors: no multiple of 16, and the last block
// of 256 is partial.
inline constexpr size_t kCount = 5000;

struct FormulaCase {
  Formula formula;
  std::string name;
  std::vector<double> hypers;
  size_t num_states;
};

template <class F>
FormulaCase CaseOf(Formula formula, const char* name) {
  FormulaCase made = {formula, name, {}, static_cast<size_t>(F::kNumStates)};
  // Flags are set. Most are off by default, and a flag that was not copied
  // would be off as well.
  for (const Hyper& hyper : F::kHypers) {
    made.hypers.push_back(hyper.flag ? 1 : hyper.fallback);
  }
  return made;
}

// Returns values in [-1, 1), without a pattern.
inline std::vector<float> Values(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525 + 1013904223;
    value = static_cast<float>(seed >> 8) / (1 << 23) - 1;
  }
  return values;
}

inline std::vector<float> Magnitudes(size_t count, uint32_t seed) {
  std::vector<float> values = Values(count, seed);
  for (float& value : values) value = value < 0 ? -value : value;
  return values;
}

// The lists that a caller has on its stack, and loses when it returns.
struct Lists {
  std::vector<const void*> sources;
  RandomStream random;

  GradientSources gradients() const {
    return {sources.data(), sources.size(), DType::kF32};
  }
  void Spoil() {
    std::fill(sources.begin(), sources.end(), nullptr);
    random = {~uint64_t{0}, ~uint32_t{0}, ~uint32_t{0}, 1024};
  }
};

// The tensors of a fused step.
struct Tensors {
  std::vector<std::vector<float>> grads;
  std::vector<float> param;
  std::vector<uint16_t> half_param;
  std::array<std::vector<unsigned char>, kMaxStates> states;
  std::array<std::vector<float>, kMaxStates> scales;

  bool operator==(const Tensors&) const = default;
};

inline Tensors FusedTensors(DType param, DType state) {
  Tensors made;
  for (uint32_t w = 0; w < 3; ++w) made.grads.push_back(Values(kCount, w));
  made.param = Values(kCount, 10);
  if (param != DType::kF32) {
    made.half_param.resize(kCount);
    Narrow(param, made.param.data(), made.half_param.data(), kCount, nullptr);
  }
  for (size_t s = 0; s < kMaxStates; ++s) {
    // Zeros are a valid state of each dtype.
    made.states[s].resize(kCount * DTypeSize(state));
    made.scales[s].resize(kCount / kQ8Block + 1);
  }
  return made;
}

// Where the parameter of the tensors begins in the block of its random bits.
inline constexpr int64_t kParamBegin = 512;
inline constexpr uint32_t kPosition = 3;

// The block of step `step`, which does not skip it, and its one row.
struct Latched {
  Latched(const FormulaCase& formula, int64_t step)
      : row{step, {formula.formula, formula.hypers.data(), step}} {
    block.gradient_scale = block.scale = 0.25;
    block.clip_value = 0.3;
    block.seed = 17;
    block.random_step = 5;
    block.SetRows(&row, nullptr);
  }
  Latched(const Latched&) = delete;
  Latched& operator=(const Latched&) = delete;

  StepRow row;
  StepBlock block = {};
};

// Returns a list of the tensors as one range with one parameter.
inline UpdateList ListOf(const FormulaCase& formula, DType param, DType state,
                         Tensors* tensors) {
  UpdateList list;
  UpdateRange& range = list.ranges.emplace_back();
  range.formula = formula.formula;
  range.count = kCount;
  for (const auto& grad : tensors->grads) list.sources.push_back(grad.data());
  range.num_sources = list.sources.size();
  range.source_dtype = DType::kF32;
  range.own_grads = tensors->grads[0].data();
  range.param_dtype = param;
  range.param = param == DType::kF32
                    ? static_cast<void*>(tensors->param.data())
                    : static_cast<void*>(tensors->half_param.data());
  if (param == DType::kF16) range.master = tensors->param.data();
  range.stochastic_rounding = param == DType::kBF16;
  range.state_dtype = state;
  range.num_states = formula.num_states;
  for (size_t s = 0; s < formula.num_states; ++s) {
    range.states[s] = tensors->states[s].data();
    range.scales[s] = tensors->scales[s].data();
  }
  range.num_slices = 1;
  list.slices.push_back({0, kCount, kParamBegin, kPosition});
  return list;
}

// Returns the arguments of the kernel that updates the same.
inline FusedStepArgs ArgsOf(const UpdateList& list, const StepBlock& block) {
  const UpdateRange& range = list.ranges[0];
  FusedStepArgs args;
  args.gradients = list.GradientsOf(range, false);
  args.gradient_scale = block.scale;
  args.clip_value = block.clip_value;
  args.param_dtype = range.param_dtype;
  args.param = range.param;
  args.master = range.master;
  args.stochastic_rounding = range.stochastic_rounding;
  args.states = range.states.data();
  args.state_dtype = range.state_dtype;
  args.scales = range.scales.data();
  args.random = {block.seed, block.random_step, kPosition, kParamBegin};
  args.count = range.count;
  return args;
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_DEVICE_KERNEL_INPUTS_H_
