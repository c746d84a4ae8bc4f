// SPDX-License-Identifier: Apache-2.0
//
// Problem: a parameter of some precision, with all arguments of a fused step of
// it, for tests.

#ifndef SHARD_TESTS_KERNELS_CPU_PRECISION_H_
#define SHARD_TESTS_KERNELS_CPU_PRECISION_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/fused_step.h"
#include "kernels/cpu/target.h"
#include "kernels/formula/registry.h"
#include "kernels/formula/scalars.h"

namespace shard {

inline constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

inline std::vector<float> Random(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// A tensor of any dtype that is aligned to its elements and no further.
class Tensor {
 public:
  Tensor(DType dtype, size_t count)
      : dtype_(dtype),
        count_(count),
        bytes_(count * DTypeSize(dtype) + 4),
        offset_(4),
        scales_((count + 255) / 256) {}

  Tensor(DType dtype, const std::vector<float>& values)
      : Tensor(dtype, values.size()) {
    Narrow(dtype, values.data(), data(), values.size(), nullptr);
  }

  void* data() { return bytes_.data() + offset_; }
  void* at(size_t i) { return bytes_.data() + offset_ + i * DTypeSize(dtype_); }
  float* scales() { return scales_.data(); }
  std::vector<float> values() const {
    std::vector<float> wide(count_);
    Widen(dtype_, bytes_.data() + offset_, wide.data(), count_);
    return wide;
  }
  bool operator==(const Tensor& other) const = default;

 private:
  DType dtype_;
  size_t count_;
  std::vector<uint8_t> bytes_;
  size_t offset_;
  std::vector<float> scales_;
};

struct Way {
  DType param = DType::kF32;
  DType gradient = DType::kF32;
  bool master = false;
  DType state = DType::kF32;
  bool stochastic = false;
  size_t num_sources = 1;
  double clip_value = std::numeric_limits<double>::infinity();
  uint64_t seed = 1;
  int64_t first_element = 0;
};

// A parameter with its master, its states and the options of its step.
struct Problem {
  Problem(const Way& w, size_t size)
      : way(w),
        count(size),
        param(w.param, Random(size, 1)),
        master(param.values()) {
    for (int k = 0; k < kMaxStates; ++k) states.emplace_back(w.state, size);
  }

  // Steps elements [begin, begin + n) with these gradients.
  void Step(Formula formula, const std::vector<double>& hypers, int64_t step,
            std::vector<Tensor>& sources, size_t begin, size_t n) {
    std::vector<const void*> data;
    for (Tensor& source : sources) data.push_back(source.at(begin));
    std::vector<void*> state_data;
    std::vector<float*> scales;
    for (Tensor& state : states) {
      state_data.push_back(state.at(begin));
      scales.push_back(state.scales() + begin / 256);
    }
    FusedStepArgs args;
    args.gradients = {data.data(), data.size(), way.gradient};
    args.gradient_scale = 1.0 / static_cast<double>(sources.size());
    args.clip_value = way.clip_value;
    args.param = param.at(begin);
    args.param_dtype = way.param;
    if (way.master) args.master = master.data() + begin;
    args.stochastic_rounding = way.stochastic;
    args.states = state_data.data();
    args.state_dtype = way.state;
    args.scales = scales.data();
    args.random = {way.seed, static_cast<uint32_t>(step), 3,
                   way.first_element + static_cast<int64_t>(begin)};
    args.count = n;
    FusedStep(formula, FormulaScalars(formula, hypers.data(), step).data(),
              args);
  }

  std::vector<Tensor> Sources(int64_t step) const {
    std::vector<Tensor> sources;
    for (size_t w = 0; w < way.num_sources; ++w) {
      sources.emplace_back(way.gradient,
                           Random(count, static_cast<uint32_t>(100 * step) +
                                             static_cast<uint32_t>(w)));
    }
    return sources;
  }

  bool operator==(const Problem& other) const {
    return param == other.param && master == other.master &&
           states == other.states;
  }

  Way way;
  size_t count;
  Tensor param;
  std::vector<float> master;
  std::vector<Tensor> states;
};

inline std::string Describe(const Way& s) {
  return std::string("parameter ") + DTypeName(s.param) + ", gradient " +
         DTypeName(s.gradient) + ", state " + DTypeName(s.state) +
         (s.master ? ", master" : "") + ", sources " +
         std::to_string(s.num_sources) + ", " + KernelTargetName();
}

// Returns the ways of AdamW that round any tensor.
inline std::vector<Way> AllWays() {
  std::vector<Way> ways;
  for (const DType state : {DType::kF32, DType::kBF16, DType::kQ8}) {
    for (const DType param : kDTypes) {
      for (const bool master : {false, true}) {
        Way way;
        way.param = param;
        way.gradient = param;
        way.master = master;
        way.state = state;
        way.num_sources = 2;
        ways.push_back(way);
      }
    }
    Way way;
    way.param = DType::kBF16;
    way.stochastic = true;
    way.state = state;
    ways.push_back(way);
  }
  return ways;
}
}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_CPU_PRECISION_H_
