// SPDX-License-Identifier: Apache-2.0
//
// The expected results of training: sgd, adam and adamw on one rank, in double.
// Initial values and gradients are small multiples of a power of two, so that
// bf16 and f16 hold them and all of their sums exactly. An engine's results
// then differ only by the rounding of fp32 updates, and by that of a narrow
// parameter to its dtype.

#ifndef SHARD_TESTS_CORE_ENGINE_EXACT_REFERENCE_H_
#define SHARD_TESTS_CORE_ENGINE_EXACT_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/optim/groups.h"
#include "core/optim/optimizer.h"
#include "tests/core/device/guard_memory.h"

namespace shard {

inline uint64_t Mix(uint64_t x) {  // The finalizer of splitmix64.
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Returns an initial value in [-1, 1], of 7 bits.
inline float ExactInitial(ParamId param, int64_t i) {
  const uint64_t bits =
      Mix(Mix(static_cast<uint64_t>(param)) ^ static_cast<uint64_t>(i));
  return static_cast<float>(static_cast<int>(bits % 129) - 64) / 64;
}

// Returns a gradient in [-3/8, 3/8], a multiple of 2^-5: sums of 20 stay within
// 8 bits.
inline float ExactGrad(int step, int pass, int rank, ParamId param, int64_t i) {
  const auto key = static_cast<uint64_t>(((step * 8 + pass) * 16 + rank)) << 32;
  const uint64_t bits =
      Mix(Mix(key + static_cast<uint64_t>(param)) ^ static_cast<uint64_t>(i));
  return static_cast<float>(static_cast<int>(bits % 25) - 12) / 32;
}

using DoubleTensors = std::vector<std::vector<double>>;  // By ParamId.

// Runs sgd, adam and adamw as in torch, in double.
class ExactReference {
 public:
  explicit ExactReference(const Plan& plan) : plan_(plan) {
    const auto& params = plan.model().params();
    states_.resize(params.size());
    values_.resize(params.size());
    for (size_t p = 0; p < params.size(); ++p) {
      const auto numel = static_cast<size_t>(params[p].numel);
      for (size_t i = 0; i < numel; ++i) {
        values_[p].push_back(
            ExactInitial(static_cast<ParamId>(p), static_cast<int64_t>(i)));
      }
      states_[p].m.resize(numel);
      states_[p].v.resize(numel);
      states_[p].largest.resize(numel);
    }
    for (const GroupOptions& group : plan.options().groups) {
      optimizers_.push_back(*Optimizer::Parse(group.optimizer));
    }
  }

  const DoubleTensors& values() const { return values_; }
  Optimizer& optimizer(size_t group) { return optimizers_[group]; }
  double norm() const { return norm_; }  // The norm of the last step.
  // Returns "", or how an element of a state differs.
  std::string DifferenceOf(std::string_view name, ParamId param, int64_t i,
                           float value) const;

  // Makes a step. `sums` holds the sum of all ranks' gradients of each
  // parameter; it is empty for a parameter that makes no step.
  void Step(const DoubleTensors& sums, double divisor, double max_norm) {
    double square = 0;
    for (const auto& sum : sums) {
      for (const double g : sum) square += g * g;
    }
    norm_ = std::sqrt(square) / divisor;
    double scale = 1 / divisor;
    if (max_norm > 0) scale *= std::min(1.0, max_norm / (norm_ + 1e-6));
    for (size_t p = 0; p < sums.size(); ++p) {
      if (!sums[p].empty()) StepParam(p, sums[p], scale);
    }
  }

 private:
  struct State {
    std::vector<double> m;
    std::vector<double> v;
    std::vector<double> largest;  // The largest |m| of all steps.
    int steps = 0;
  };

  void StepParam(size_t p, const std::vector<double>& sum, double scale) {
    State& state = states_[p];
    const int t = ++state.steps;
    const Optimizer& optimizer =
        optimizers_[static_cast<size_t>(plan_.model().params()[p].group)];
    const auto get = [&](const char* key) { return *optimizer.Get(key); };
    const bool sgd = optimizer.Get("dampening").ok();
    const bool decoupled = optimizer.formula() == Formula::kAdamW;
    const double lr = get("lr");
    const double decay = get("weight_decay");
    const double momentum = sgd ? get("momentum") : 0;
    const double beta1 = sgd ? 0 : get("beta1");
    const double beta2 = sgd ? 0 : get("beta2");
    const double eps = sgd ? 0 : get("eps");
    for (size_t i = 0; i < sum.size(); ++i) {
      double& value = values_[p][i];
      double g = sum[i] * scale;
      if (decoupled) {
        value *= 1 - lr * decay;
      } else {
        g += decay * value;
      }
      if (sgd) {
        state.m[i] = t == 1 ? g : momentum * state.m[i] + g;
        state.largest[i] = std::max(state.largest[i], std::abs(state.m[i]));
        value -= lr * (momentum > 0 ? state.m[i] : g);
        continue;
      }
      state.m[i] = beta1 * state.m[i] + (1 - beta1) * g;
      state.largest[i] = std::max(state.largest[i], std::abs(state.m[i]));
      state.v[i] = beta2 * state.v[i] + (1 - beta2) * g * g;
      const double denominator =
          std::sqrt(state.v[i]) / std::sqrt(1 - std::pow(beta2, t)) + eps;
      value -= lr / (1 - std::pow(beta1, t)) * state.m[i] / denominator;
    }
  }

  const Plan& plan_;
  std::vector<Optimizer> optimizers_;
  std::vector<State> states_;
  DoubleTensors values_;
  double norm_ = 0;
};

// Tolerance: some five fp32 operations per step lose 2^-24 each. The tolerance
// of an average is relative to the largest value that the average ever had. The
// tolerance of an average of squares, where nothing cancels, is relative to its
// own value, so that small values are compared as strictly as large ones. A
// master weight is compared as an fp32 parameter.
inline std::string ExactReference::DifferenceOf(std::string_view name,
                                                ParamId param, int64_t i,
                                                float value) const {
  const auto p = static_cast<size_t>(param);
  const auto at = static_cast<size_t>(i);
  double expected = values_[p][at];
  double allowed = (1 + std::abs(expected)) / (1 << 17);
  if (name == "exp_avg_sq") {
    expected = states_[p].v[at];
    allowed = expected / (1 << 19);
  } else if (name != kMasterState) {
    expected = states_[p].m[at];
    allowed = states_[p].largest[at] / (1 << 19);
  }
  const double error = std::abs(value - expected);
  if (error <= allowed) return "";
  return StrCat("element ", i, " of ", name, " of parameter ", param, " is ",
                value, ", not ", expected, " (off by ", error, ", allowed ",
                allowed, ")");
}

// Returns "", or how this rank's states differ from the reference's.
inline std::string StateDifference(const Engine& engine,
                                   const ExactReference& reference) {
  const int rank = engine.plan().RangeOf(engine.comm()->rank());
  for (const EngineBuffer& buffer : engine.memory().buffers()) {
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      const StateTensor& tensor = buffer.plan->states[s].tensor;
      if (tensor.dtype != DType::kF32) continue;
      const FlatLayout& layout = buffer.plan->StateLayout(s);
      const auto* const data =
          testing::KernelView(reinterpret_cast<const float*>(buffer.states[s]));
      for (const SlotSlice& slice : layout.SlicesOf(rank)) {
        const float* const values =
            data + (slice.flat_begin - rank * layout.shard_numel());
        for (int64_t i = 0; i < slice.numel; ++i) {
          const std::string difference = reference.DifferenceOf(
              tensor.name, slice.param, slice.param_begin + i, values[i]);
          if (!difference.empty()) return difference;
        }
      }
    }
  }
  return "";
}

// Returns "", or how `values`, read from a tensor of `dtype`, differ from
// `expected`. A few fp32 operations per step lose less than 2^-17 of values up
// to 4 in some tens of steps; storing adds half a last digit, 2^-9 of bf16 or
// 2^-12 of f16.
inline std::string DifferenceOf(DType dtype, const std::vector<float>& values,
                                const std::vector<double>& expected) {
  if (values.size() != expected.size()) return "another number of elements";
  const double digit = dtype == DType::kBF16  ? 1.0 / 256
                       : dtype == DType::kF16 ? 1.0 / 2048
                                              : 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(values[i] - expected[i]);
    const double allowed =
        (1 + std::abs(expected[i])) / (1 << 17) + digit * std::abs(expected[i]);
    if (error <= allowed) continue;
    return StrCat("element ", i, " of ", values.size(), " is ", values[i],
                  ", not ", expected[i], " (off by ", error, ", allowed ",
                  allowed, ")");
  }
  return "";
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_EXACT_REFERENCE_H_
