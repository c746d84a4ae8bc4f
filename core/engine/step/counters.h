// SPDX-License-Identifier: Apache-2.0
//
// Counters: how far training is: the steps that were done, which of them each
// parameter did, and the scale of the loss.
//
// Invariant: parameters have counts of their own only while these differ from
// step(), as they do once some were skipped, frozen or added.
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
  // Beyond, the random bits of rounding would repeat: no step is taken there.
  static constexpr int64_t kMostSteps =
      std::numeric_limits<uint32_t>::max() - int64_t{1};

  explicit Counters(const LossScaler& loss_scaler)
      : loss_scaler_(loss_scaler) {}

  // Completed steps, without those that were skipped.
  int64_t step() const { return step_; }
  // By Plan::positions(): the steps of each parameter. Empty: step() for all.
  const std::vector<int64_t>& param_steps() const { return param_steps_; }
  const LossScaler& loss_scaler() const { return loss_scaler_; }
  LossScaler& loss_scaler() { return loss_scaler_; }

  // kOutOfRange unless every parameter can do another step.
  Status CheckStepCount() const;

  // Chooses what Count will count: every stored parameter does its next step;
  // or those do for which `takes_part(position)` holds.
  void ChooseAll(const Plan& plan);
  template <typename TakesPart>
  void Choose(const Plan& plan, TakesPart takes_part) {
    next_steps_.resize(plan.NumStored());
    for (size_t i = 0; i < next_steps_.size(); ++i) {
      next_steps_[i] = takes_part(i) ? NextOf(i) : 0;
    }
  }
  // The choice, as UpdateInput::param_steps has it.
  const int64_t* next_steps() const {
    return next_steps_.empty() ? nullptr : next_steps_.data();
  }
  // Counts the step that was chosen for. A skipped one changes the scale alone.
  void Count(bool skipped);

  // Sets the steps done, by all parameters. kInvalidArgument outside 0 to
  // kMostSteps.
  Status SetStep(int64_t step);
  // Sets the steps done as far as step() tells them; param_steps() stay.
  void RestoreStep(int64_t step) { step_ = step; }
  // Sets the steps of one stored parameter. SpreadSteps comes before any of
  // these calls, and CollapseSteps after the last.
  void SpreadSteps(const Plan& plan);
  void SetParamStep(const Plan& plan, ParamId param, int64_t step) {
    param_steps_[static_cast<size_t>(
        plan.positions()[static_cast<size_t>(param)])] = step;
  }
  void CollapseSteps(const Plan& plan);
  // Parameters that `after` trains and `before` does not count from 0.
  void ContinueWith(const Plan& before, const Plan& after);
  // No steps are done. The scale stays.
  void Reset();

 private:
  int64_t NextOf(size_t position) const {
    return 1 + (param_steps_.empty() ? step_ : param_steps_[position]);
  }

  LossScaler loss_scaler_;
  int64_t step_ = 0;
  std::vector<int64_t> param_steps_;
  // Of the step in progress; 0: it does none. Empty: step_ + 1 for all.
  std::vector<int64_t> next_steps_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_COUNTERS_H_
