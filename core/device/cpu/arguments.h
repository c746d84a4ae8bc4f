// SPDX-License-Identifier: Apache-2.0
//
// Copies of kernel arguments that point to the caller's stack, for a kernel
// that runs after the call has returned: lists of pointers and of numbers. The
// tensors to which the pointers point are not copied.

#ifndef SHARD_CORE_DEVICE_CPU_ARGUMENTS_H_
#define SHARD_CORE_DEVICE_CPU_ARGUMENTS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cpu/fused_step.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/tensor_step.h"
#include "kernels/formula/all.h"
#include "kernels/formula/registry.h"

namespace shard::cpu {

struct FormulaSize {
  size_t hypers;
  size_t states;
};

constexpr FormulaSize kFormulaSizes[] = {
#define SHARD_FORMULA_SIZE(Name) \
  {std::size(Name::kHypers), static_cast<size_t>(Name::kNumStates)},
    SHARD_FORMULAS(SHARD_FORMULA_SIZE)
#undef SHARD_FORMULA_SIZE
};

constexpr const FormulaSize& SizeOf(Formula formula) {
  return kFormulaSizes[static_cast<size_t>(formula)];
}

constexpr size_t kMaxHypers =
    std::max_element(std::begin(kFormulaSizes), std::end(kFormulaSizes),
                     [](const auto& a, const auto& b) {
                       return a.hypers < b.hypers;
                     }) -> hypers;

class HypersCopy {
 public:
  HypersCopy(Formula formula, const double* hypers) {
    std::copy_n(hypers, SizeOf(formula).hypers, values_.begin());
  }
  const double* get() const { return values_.data(); }

 private:
  std::array<double, kMaxHypers> values_ = {};
};

class SourcesCopy {
 public:
  explicit SourcesCopy(const GradientSources& sources)
      : data_(sources.data, sources.data + sources.count),
        dtype_(sources.dtype) {}
  GradientSources get() const { return {data_.data(), data_.size(), dtype_}; }

 private:
  std::vector<const void*> data_;
  DType dtype_;
};

class RandomCopy {
 public:
  explicit RandomCopy(const RandomStream* random) {
    if (random != nullptr) random_ = *random;
  }
  const RandomStream* get() const { return random_ ? &*random_ : nullptr; }

 private:
  std::optional<RandomStream> random_;
};

class FusedStepCopy {
 public:
  FusedStepCopy(Formula formula, const FusedStepArgs& args)
      : args_(args), sources_(args.gradients) {
    const size_t states = SizeOf(formula).states;
    std::copy_n(args.states, states, states_.begin());
    if (args.state_dtype == DType::kQ8) {
      std::copy_n(args.scales, states, scales_.begin());
    }
  }
  FusedStepArgs get() const {
    FusedStepArgs args = args_;
    args.gradients = sources_.get();
    args.states = states_.data();
    args.scales = scales_.data();
    return args;
  }

 private:
  FusedStepArgs args_;
  SourcesCopy sources_;
  std::array<void*, kMaxStates> states_ = {};
  std::array<float*, kMaxStates> scales_ = {};
};

class TensorStepCopy {
 public:
  TensorStepCopy(Formula formula, const TensorStepArgs& args)
      : args_(args), shape_(args.shape, args.shape + args.ndim) {
    std::copy_n(args.states, SizeOf(formula).states, states_.begin());
  }
  TensorStepArgs get() const {
    TensorStepArgs args = args_;
    args.states = states_.data();
    args.shape = shape_.data();
    return args;
  }

 private:
  TensorStepArgs args_;
  std::vector<int64_t> shape_;
  std::array<float*, kMaxStates> states_ = {};
};

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_ARGUMENTS_H_
