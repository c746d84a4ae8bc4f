// SPDX-License-Identifier: Apache-2.0
//
// StepModel: the steps of an engine on one rank, in double: AdamW, with dynamic
// loss scaling or none.

#ifndef SHARD_TESTS_CORE_ENGINE_STEP_MODEL_H_
#define SHARD_TESTS_CORE_ENGINE_STEP_MODEL_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/model/model.h"
#include "kernels/formula/all.h"
#include "tests/core/engine/exact_reference.h"

namespace shard::testing {

inline constexpr int kModelRanks = 2;

// The calls and gradients of one step, the same on all ranks.
struct StepScript {
  std::vector<ParamId> freeze;
  std::vector<ParamId> thaw;
  double lr = 0;          // 0: unchanged.
  double loss_scale = 0;  // 0: unchanged.
  double max_grad_norm = 0;
  double norm_type = 0;
  bool skip_nonfinite = false;
  // By rank and ParamId: whether the rank has a gradient.
  std::vector<std::vector<bool>> has;
  // The parameter whose last element is bad on this rank, or on all (-1).
  ParamId bad = -1;
  int bad_rank = 0;
  float bad_value = 0;

  bool Has(int rank, size_t param) const {
    return has[static_cast<size_t>(rank)][param];
  }
  bool IsBad(int rank, size_t param) const {
    return static_cast<ParamId>(param) == bad &&
           (bad_rank < 0 || bad_rank == rank);
  }
  float Grad(int step, int rank, size_t param, size_t i, size_t numel) const {
    if (IsBad(rank, param) && i + 1 == numel) return bad_value;
    return ExactGrad(step, 1, rank, static_cast<ParamId>(param),
                     static_cast<int64_t>(i));
  }
};

// The results of a step.
struct StepResult {
  int64_t step;
  bool skipped;
  double grad_norm;
  double step_loss_scale;  // Of the gradients of the step.
  double loss_scale;       // Of the next step.
  int64_t growth_tracker;
  DoubleTensors params;
};

class StepModel {
 public:
  StepModel(const Model& model, std::vector<double> hypers, bool scales)
      : hypers_(std::move(hypers)), scales_(scales) {
    for (size_t p = 0; p < model.params().size(); ++p) {
      Param& param = params_.emplace_back();
      const auto numel = static_cast<size_t>(model.params()[p].numel);
      param.m.resize(numel);
      param.v.resize(numel);
      for (size_t i = 0; i < numel; ++i) {
        param.values.push_back(
            ExactInitial(static_cast<ParamId>(p), static_cast<int64_t>(i)));
      }
    }
  }

  static constexpr double kFirstScale = 8;
  static constexpr double kMost = 64;
  static constexpr int64_t kInterval = 3;
  static constexpr const char* kScaling =
      "dynamic?init_scale=8&growth_interval=3&min_scale=1&max_scale=64";

  StepResult Step(int number, const StepScript& event) {
    Change(event);
    const double step_scale = scale_;
    const DoubleTensors sums = SumsOf(number, event);
    const bool needs_norm =
        event.max_grad_norm > 0 || event.skip_nonfinite || scales_;
    const double norm = needs_norm ? NormOf(sums, event.norm_type) : -1;
    const bool skipped = needs_norm && !std::isfinite(norm);
    double coefficient = 1.0 / kModelRanks;
    if (event.max_grad_norm > 0) {
      coefficient *= std::min(1.0, event.max_grad_norm / (norm + 1e-6));
    }
    if (!skipped) {
      ++step_;
      for (size_t p = 0; p < params_.size(); ++p) {
        if (!sums[p].empty()) Update(sums[p], coefficient, &params_[p]);
      }
    }
    if (scales_) CountScale(skipped);
    StepResult result = {step_, skipped, norm, step_scale, scale_, good_, {}};
    for (const Param& param : params_) result.params.push_back(param.values);
    return result;
  }

 private:
  struct Param {
    std::vector<double> values, m, v;
    int64_t steps = 0;
    bool trainable = true;
  };

  void Change(const StepScript& event) {
    for (const ParamId p : event.freeze) {
      params_[static_cast<size_t>(p)].trainable = false;
    }
    for (const ParamId p : event.thaw) {
      Param& param = params_[static_cast<size_t>(p)];
      param.trainable = true;
      param.steps = 0;
      std::fill(param.m.begin(), param.m.end(), 0);
      std::fill(param.v.begin(), param.v.end(), 0);
    }
    if (event.lr > 0) hypers_[AdamW::kLr] = event.lr;
    if (event.loss_scale > 0) {
      scale_ = event.loss_scale;
      good_ = 0;
    }
  }

  // Returns the sums of gradients; empty for parameters that are not stepped.
  DoubleTensors SumsOf(int number, const StepScript& event) const {
    DoubleTensors sums(params_.size());
    for (size_t p = 0; p < params_.size(); ++p) {
      if (!params_[p].trainable) continue;
      const size_t numel = params_[p].values.size();
      for (int rank = 0; rank < kModelRanks; ++rank) {
        if (!event.Has(rank, p)) continue;
        sums[p].resize(numel);
        for (size_t i = 0; i < numel; ++i) {
          sums[p][i] += event.Grad(number, rank, p, i, numel);
        }
      }
    }
    return sums;
  }

  // Returns the norm of the sums, which are fp32, over the number of ranks.
  static double NormOf(const DoubleTensors& sums, double type) {
    double largest = 0;
    double total = 0;
    const double p = type == 0 ? 2 : type;
    for (const auto& sum : sums) {
      for (const double value : sum) {
        const double g =
            std::abs(static_cast<double>(static_cast<float>(value)));
        if (std::isnan(g)) return g;
        largest = std::max(largest, g);
        if (!std::isinf(p)) total += std::pow(g, p);
      }
    }
    const bool is_largest = std::isinf(p) || !std::isfinite(largest);
    return (is_largest ? largest : std::pow(total, 1 / p)) / kModelRanks;
  }

  void Update(const std::vector<double>& sum, double coefficient,
              Param* param) const {
    const auto t = static_cast<double>(++param->steps);
    const double beta1 = hypers_[AdamW::kBeta1];
    const double beta2 = hypers_[AdamW::kBeta2];
    const double lr = hypers_[AdamW::kLr];
    const double correction1 = 1 - std::pow(beta1, t);
    const double correction2 = 1 - std::pow(beta2, t);
    for (size_t i = 0; i < sum.size(); ++i) {
      const double g = sum[i] * coefficient;
      param->m[i] = beta1 * param->m[i] + (1 - beta1) * g;
      param->v[i] = beta2 * param->v[i] + (1 - beta2) * g * g;
      const double root = std::sqrt(param->v[i] / correction2);
      param->values[i] *= 1 - lr * hypers_[AdamW::kWeightDecay];
      param->values[i] -=
          lr * (param->m[i] / correction1) / (root + hypers_[AdamW::kEps]);
    }
  }

  void CountScale(bool skipped) {
    if (skipped) {
      scale_ = std::max(1.0, scale_ / 2);
      good_ = 0;
    } else if (++good_ == kInterval) {
      scale_ = std::min(kMost, scale_ * 2);
      good_ = 0;
    }
  }

  std::vector<double> hypers_;
  const bool scales_;
  std::vector<Param> params_;
  int64_t step_ = 0;
  double scale_ = kFirstScale;
  int64_t good_ = 0;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_ENGINE_STEP_MODEL_H_
