// SPDX-License-Identifier: Apache-2.0
//
// AdamW on one rank in double: a training run to compare the engine's with.

#ifndef SHARD_TESTS_CORE_ENGINE_ADAMW_REFERENCE_H_
#define SHARD_TESTS_CORE_ENGINE_ADAMW_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/formula/all.h"

namespace shard::testing {

// Does operations in the order that the formula's header gives.
class AdamWReference {
 public:
  // Parameters by index, each with its elements.
  using Tensors = std::vector<std::vector<double>>;

  AdamWReference(std::vector<double> hypers, const Tensors& params)
      : hypers_(std::move(hypers)) {
    for (const auto& values : params) {
      params_.emplace_back();
      for (const double value : values) params_.back().push_back({value, 0, 0});
    }
  }

  // Takes the step of that number with these gradients. Clips them where
  // `max_norm` is positive. Returns the global norm.
  double Step(int step, const Tensors& grads, double max_norm) {
    double squares = 0;
    for (const auto& grad : grads) {
      for (const double g : grad) squares += g * g;
    }
    const double norm = std::sqrt(squares);
    const double coefficient =
        max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
    for (size_t p = 0; p < params_.size(); ++p) {
      for (size_t i = 0; i < params_[p].size(); ++i) {
        Update(step, grads[p][i] * coefficient, &params_[p][i]);
      }
    }
    return norm;
  }

  double param(size_t p, size_t i) const { return params_[p][i].p; }

 private:
  struct Element {
    double p, m, v;
  };

  void Update(int step, double g, Element* e) const {
    const double beta1 = hypers_[AdamW::kBeta1];
    const double beta2 = hypers_[AdamW::kBeta2];
    const double lr = hypers_[AdamW::kLr];
    e->m = beta1 * e->m + (1 - beta1) * g;
    e->v = beta2 * e->v + (1 - beta2) * g * g;
    const double denominator =
        std::sqrt(e->v / (1 - std::pow(beta2, step))) + hypers_[AdamW::kEps];
    e->p *= 1 - lr * hypers_[AdamW::kWeightDecay];
    e->p -= lr * (e->m / (1 - std::pow(beta1, step))) / denominator;
  }

  const std::vector<double> hypers_;
  std::vector<std::vector<Element>> params_;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_ENGINE_ADAMW_REFERENCE_H_
