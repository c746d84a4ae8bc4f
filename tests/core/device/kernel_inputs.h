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
  std::array<double, 16> hypers = {};
  std::vector<const void*> sources;
  std::array<void*, kMaxStates> states = {};
  std::array<float*, kMaxStates> float_states = {};
  std::array<float*, kMaxStates> scales = {};
  std::vector<int64_t> shape;
  RandomStream random;

  void SetHypers(const std::vector<double>& values) {
    ASSERT_LE(values.size(), hypers.size());
    std::copy(values.begin(), values.end(), hypers.begin());
  }

  void Spoil() {
    hypers.fill(-1e30);
    std::fill(sources.begin(), sources.end(), nullptr);
    states.fill(nullptr);
    float_states.fill(nullptr);
    scales.fill(nullptr);
    std::fill(shape.begin(), shape.end(), -1);
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

inline void FusedLists(const FormulaCase& formula, Tensors* tensors,
                       Lists* lists) {
  lists->SetHypers(formula.hypers);
  for (const auto& grad : tensors->grads) {
    lists->sources.push_back(grad.data());
  }
  for (size_t s = 0; s < kMaxStates; ++s) {
    lists->states[s] = tensors->states[s].data();
    lists->scales[s] = tensors->scales[s].data();
  }
}

inline FusedStepArgs FusedArgs(DType param, DType state, Tensors* tensors,
                               Lists* lists) {
  FusedStepArgs args;
  args.gradients = {lists->sources.data(), lists->sources.size(), DType::kF32};
  args.gradient_scale = 0.25;
  args.clip_value = 0.3;
  args.param_dtype = param;
  args.param = param == DType::kF32
                   ? static_cast<void*>(tensors->param.data())
                   : static_cast<void*>(tensors->half_param.data());
  if (param == DType::kF16) args.master = tensors->param.data();
  args.stochastic_rounding = param == DType::kBF16;
  args.states = lists->states.data();
  args.state_dtype = state;
  // A caller without q8 states has no list of scales.
  args.scales = state == DType::kQ8 ? lists->scales.data() : nullptr;
  args.random = {17, 5, 3, 512};
  args.count = kCount;
  return args;
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_DEVICE_KERNEL_INPUTS_H_
