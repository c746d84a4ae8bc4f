// SPDX-License-Identifier: Apache-2.0
//
// Reference: a formula in double, element by element, for tests to compare
// the kernels with. Include before any Highway header: see
// kernels/formula/target.h.

#ifndef SHARD_TESTS_KERNELS_FORMULA_REFERENCE_H_
#define SHARD_TESTS_KERNELS_FORMULA_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/formula/all.h"

namespace shard {

struct DoubleArithmetic {
  using V = double;
  V Set(double x) const { return x; }
  V Add(V x, V y) const { return x + y; }
  V Sub(V x, V y) const { return x - y; }
  V Mul(V x, V y) const { return x * y; }
  V Div(V x, V y) const { return x / y; }
  V MulAdd(V x, V y, V z) const { return x * y + z; }
  V Sqrt(V x) const { return std::sqrt(x); }
  // Returns NaN where either is NaN, unlike std::max.
  V Max(V x, V y) const { return std::isnan(x) || x > y ? x : y; }
  V Min(V x, V y) const { return std::isnan(x) || x < y ? x : y; }
  V IfPositive(V x, V yes, V no) const { return x > 0 ? yes : no; }
};

using HyperValues = std::vector<std::pair<std::string_view, double>>;

// Returns the defaults of F's hyperparameters, with those in `values` replaced.
// A name that F does not have changes nothing.
template <class F>
std::vector<double> HypersOf(const HyperValues& values = {}) {
  std::vector<double> hypers;
  for (const Hyper& hyper : F::kHypers) {
    double value = hyper.fallback;
    for (const auto& [name, other] : values) {
      if (name == hyper.name) value = other;
    }
    hypers.push_back(value);
  }
  return hypers;
}

template <class F, template <class> class Rule>
class Reference {
 public:
  Reference(const std::vector<float>& param, std::vector<double> hypers)
      : param_(param.begin(), param.end()),
        states_(param.size(), std::vector<double>(kMaxStates)),
        hypers_(std::move(hypers)) {}

  void Step(const std::vector<std::vector<float>>& sources, double scale,
            int64_t step) {
    const auto scalars = F::Prepare(hypers_.data(), step);
    const Rule<DoubleArithmetic> rule(DoubleArithmetic(), scalars);
    for (size_t i = 0; i < param_.size(); ++i) {
      double g = 0;
      for (const auto& source : sources) g += static_cast<double>(source[i]);
      rule.Update(g * scale * scalars.gradient_sign, param_[i],
                  states_[i].data());
    }
  }

  const std::vector<double>& param() const { return param_; }
  double state(size_t i, int s) const {
    return states_[i][static_cast<size_t>(s)];
  }

 private:
  std::vector<double> param_;
  std::vector<std::vector<double>> states_;
  std::vector<double> hypers_;
};

}  // namespace shard

#endif  // SHARD_TESTS_KERNELS_FORMULA_REFERENCE_H_
