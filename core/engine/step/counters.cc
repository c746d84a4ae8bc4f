// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/counters.h"

#include <algorithm>

namespace shard {

Status Counters::CheckStepCount() const {
  int64_t most = step_;
  for (const int64_t steps : param_steps_) most = std::max(most, steps);
  if (most < kMostSteps) return Status();
  return OutOfRange("step ", most + 1, " is out of range; allowed: 1 to ",
                    kMostSteps,
                    "; set_completed_steps sets a lower number of steps done");
}

void Counters::ChooseAll(const Plan& plan) {
  next_steps_.clear();
  if (param_steps_.empty()) return;
  Choose(plan, [](size_t /*position*/) { return true; });
}

void Counters::Count(bool skipped) {
  loss_scaler_.Update(skipped);
  if (skipped) return;
  ++step_;
  if (next_steps_.empty()) return;
  if (param_steps_.empty()) param_steps_.assign(next_steps_.size(), step_ - 1);
  for (size_t i = 0; i < next_steps_.size(); ++i) {
    if (next_steps_[i] != 0) param_steps_[i] = next_steps_[i];
  }
  const bool same =
      std::all_of(param_steps_.begin(), param_steps_.end(),
                  [this](int64_t steps) { return steps == step_; });
  if (same) param_steps_.clear();
}

Status Counters::SetStep(int64_t step) {
  if (step < 0 || step > kMostSteps) {
    return InvalidArgument("step ", step, " is out of range; allowed: 0 to ",
                           kMostSteps, ", the number of steps done");
  }
  step_ = step;
  param_steps_.clear();
  return Status();
}

void Counters::SpreadSteps(const Plan& plan) {
  if (param_steps_.empty()) param_steps_.assign(plan.NumStored(), step_);
}

void Counters::CollapseSteps(const Plan& plan) {
  const auto as_all = [&](size_t param) {
    const ParamPlace& place = plan.places()[param];
    if (place.buffer < 0 || !plan.buffer(place.buffer).trainable ||
        plan.model().params()[param].numel == 0) {
      return true;
    }
    return param_steps_[static_cast<size_t>(place.position)] == step_;
  };
  bool even = true;
  for (size_t p = 0; p < plan.places().size(); ++p) even &= as_all(p);
  if (even) param_steps_.clear();
}

void Counters::ContinueWith(const Plan& before, const Plan& after) {
  if (step_ == 0) return;
  const auto& was = before.model().params();
  const auto& is = after.model().params();
  for (size_t p = 0; p < is.size(); ++p) {
    if (after.places()[p].position < 0 || was[p].trainable ||
        !is[p].trainable) {
      continue;
    }
    SpreadSteps(after);
    SetParamStep(after, static_cast<ParamId>(p), 0);
  }
}

void Counters::Reset() {
  step_ = 0;
  param_steps_.clear();
}

}  // namespace shard
