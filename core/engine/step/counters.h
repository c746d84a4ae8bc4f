// SPDX-License-Identifier: Apache-2.0
//
// Counters: the number of completed steps of the training and of each
// parameter, and the scale of the loss.
//
// Invariant: parameters have counts of their own only while these differ from
// step(), as after some parameters were skipped, frozen or added.
//
// Pure bookkeeping. Thread-compatible.

#ifndef SHARD_CORE_ENGINE_STEP_COUNTERS_H_
#define SHARD_CORE_ENGINE_STEP_COUNTERS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/base/status.h"
#include "core/flat/plan.h"
#include "core/optim/loss_scaler.h"

namespace shard {

class Counters {
 public:
  // The largest number of a step: beyond it the random bits of stochastic
  // rounding would repeat.
  static constexpr int64_t kMostSteps =
      std::numeric_limits<uint32_t>::max() - int64_t{1};

  explicit Counters(const LossScaler& loss_scaler)
      : loss_scaler_(loss_scaler) {}

  // Returns the number of completed steps, skipped ones left out.
  int64_t step() const { return step_; }
  // Returns the steps of each parameter, by ParamPlace::position. Empty: step()
  // for all.
  const std::vector<int64_t>& param_steps() const { return param_steps_; }
  const LossScaler& loss_scaler() const { return loss_scaler_; }
  LossScaler& loss_scaler() { return loss_scaler_; }

  // Returns kOutOfRange unless every parameter can do another step.
  Status CheckStepCount() const;

  // Choose the parameters whose next step Count counts: all stored ones, or
  // those for which `takes_part(position)` holds.
  void ChooseAll(const Plan& plan);
  template <typename TakesPart>
  void Choose(const Plan& plan, TakesPart takes_part) {
    next_steps_.resize(plan.NumStored());
    // So that Count allocates nothing.
    param_steps_.reserve(next_steps_.size());
    for (size_t i = 0; i < next_steps_.size(); ++i) {
      next_steps_[i] = takes_part(i) ? NextOf(i) : 0;
    }
  }
  // Returns the choice in the form of StepInput::param_steps.
  const int64_t* next_steps() const {
    return next_steps_.empty() ? nullptr : next_steps_.data();
  }
  // Counts the step of the chosen parameters. A skipped step changes the loss
  // scale alone.
  void Count(bool skipped);

  // Sets the number of completed steps of all parameters. kInvalidArgument
  // outside 0 to kMostSteps.
  Status SetStep(int64_t step);
  // Sets step() alone; param_steps() stay.
  void RestoreStep(int64_t step) { step_ = step; }
  // Sets the steps of one stored parameter. Call SpreadSteps before the first
  // of these calls, and CollapseSteps after the last.
  void SpreadSteps(const Plan& plan);
  void SetParamStep(const Plan& plan, ParamId param, int64_t step) {
    param_steps_[static_cast<size_t>(plan.place(param).position)] = step;
  }
  void CollapseSteps(const Plan& plan);
  // Continues with another plan: parameters that `after` trains and `before`
  // does not count from 0.
  void ContinueWith(const Plan& before, const Plan& after);
  // Sets all step counts to 0. The loss scale stays.
  void Reset();

 private:
  int64_t NextOf(size_t position) const {
    return 1 + (param_steps_.empty() ? step_ : param_steps_[position]);
  }

  LossScaler loss_scaler_;
  int64_t step_ = 0;
  std::vector<int64_t> param_steps_;
  // The step number of each parameter during a step; 0: the parameter is not
  // stepped. Empty: step_ + 1 for all.
  std::vector<int64_t> next_steps_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_COUNTERS_H_
