// SPDX-License-Identifier: Apache-2.0

#include "core/engine/state/engine_numbers.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/base/strings.h"
#include "core/model/names.h"
#include "core/observe/observer.h"

namespace shard {

namespace {

std::string StepKey(std::string_view fqn) {
  return StrCat(kStatePrefix, fqn, ".", kStepName);
}

std::string HyperKey(std::string_view fqn, std::string_view hyper) {
  return StrCat(kGroupPrefix, fqn, ".", hyper);
}

// Calls `visit(param, fqn)` for each trainable parameter that has entries, with
// its name in their keys.
template <typename Visit>
void ForEachStepped(const Plan& plan, const std::vector<StateEntry>& entries,
                    const Visit& visit) {
  std::vector<bool> seen(plan.model().params().size());
  for (const StateEntry& entry : entries) {
    if (entry.is_host_tensor()) continue;
    const auto param = static_cast<size_t>(entry.param);
    const auto& buffer = plan.buffer(plan.places()[param].buffer);
    if (seen[param] || !buffer.trainable) continue;
    seen[param] = true;
    std::string_view fqn = entry.key;
    if (!entry.is_param()) {
      const std::string& state =
          buffer.states[static_cast<size_t>(entry.state)].tensor.name;
      fqn.remove_prefix(kStatePrefix.size());
      fqn.remove_suffix(state.size() + 1);
    }
    visit(entry.param, fqn);
  }
}

}  // namespace

Status CheckSteps(const Manifest& manifest) {
  int64_t most = manifest.step();
  for (size_t t = 0; t < manifest.num_tensors(); ++t) {
    most = std::max(most, manifest.tensor_step(t));
  }
  if (most <= Counters::kMostSteps) return Status();
  return OutOfRange("step ", most, " is out of range; allowed: 0 to ",
                    Counters::kMostSteps);
}

TrainingNumbers EngineNumbers::Now() const {
  TrainingNumbers numbers;
  numbers.step = counters_->step();
  numbers.param_steps = counters_->param_steps();
  const LossScaler& scaler = counters_->loss_scaler();
  if (scaler.dynamic()) numbers.loss_scale = scaler.state();
  for (const Optimizer& optimizer : hypers_->optimizers()) {
    numbers.groups.push_back(optimizer.ToString());
  }
  return numbers;
}

void EngineNumbers::Restore(const StateOptions& options,
                            const std::vector<StateEntry>& entries,
                            const std::vector<EntryMatch>& matches,
                            const Manifest& manifest) {
  counters_->SpreadSteps(plan_);
  // A load of some modules takes only their own steps.
  if (options.submodules.empty()) counters_->RestoreStep(manifest.step());
  RestoreParams(entries, matches, manifest);
  counters_->CollapseSteps(plan_);
  if (!options.submodules.empty()) return;
  LossScaler::State scale = counters_->loss_scaler().state();
  for (size_t s = 0; s < manifest.num_scalars(); ++s) {
    const ScalarInfo scalar = manifest.scalar(s);
    scale.Take(scalar.name, scalar.value);
  }
  RestoreLossScale(scale);
}

void EngineNumbers::RestoreParams(const std::vector<StateEntry>& entries,
                                  const std::vector<EntryMatch>& matches,
                                  const Manifest& manifest) {
  std::vector<bool> restored(hypers_->optimizers().size());
  for (size_t e = 0; e < entries.size(); ++e) {
    if (matches[e].kind == EntryMatch::Kind::kNone) continue;
    if (entries[e].is_host_tensor()) continue;
    const auto param = static_cast<size_t>(entries[e].param);
    const ParamPlace& place = plan_.places()[param];
    const FlatBufferPlan& buffer = plan_.buffer(place.buffer);
    if (!buffer.trainable) continue;
    const size_t tensor = matches[e].tensor;
    // A count belongs to the states that it was counted with, where there are
    // any but master weights.
    const size_t own = buffer.states.size() - (buffer.has_masters ? 1 : 0);
    const auto state = static_cast<size_t>(entries[e].state);
    if (own == 0 || (!entries[e].is_param() && state < own)) {
      counters_->SetParamStep(
          plan_, entries[e].param,
          manifest.trainable(tensor) ? manifest.tensor_step(tensor) : 0);
    }
    const auto group = static_cast<size_t>(buffer.group);
    const int32_t stored = manifest.group(tensor);
    if (restored[group] || stored < 0) continue;
    restored[group] = true;
    const Status status = hypers_->Restore(
        buffer.group, manifest.group_optimizer(static_cast<size_t>(stored)));
    if (!status.ok() && comm_->rank() == 0) {
      comm_->observer()->Log(EventId::kCheckpointWarning, "param group ", group,
                             " keeps its hyperparameters: ", status.message());
    }
  }
}

void EngineNumbers::RestoreLossScale(const LossScaler::State& scale) {
  const Status restored = counters_->loss_scaler().Restore(scale);
  if (restored.ok()) return;
  // A scale that fits is restored without its count of good steps.
  const bool fits = counters_->loss_scaler().Restore({scale.scale, 0}).ok();
  if (comm_->rank() != 0) return;
  comm_->observer()->Log(EventId::kCheckpointWarning,
                         fits
                             ? "the good steps of the loss scale count from 0: "
                             : "the engine keeps its loss scale: ",
                         restored.message());
}

std::map<std::string, double> EngineNumbers::ByKey(
    const std::vector<StateEntry>& entries, bool whole) const {
  std::map<std::string, double> numbers;
  const TrainingNumbers now = Now();
  if (whole && now.loss_scale) {
    numbers[std::string(kLossScaleKey)] = now.loss_scale->scale;
    numbers[std::string(kGoodStepsKey)] =
        static_cast<double>(now.loss_scale->good_steps);
  }
  ForEachStepped(plan_, entries, [&](ParamId param, std::string_view fqn) {
    numbers[StepKey(fqn)] = static_cast<double>(now.StepOf(plan_, param));
    const GroupId group =
        plan_.model().params()[static_cast<size_t>(param)].group;
    for (const auto& [key, value] :
         hypers_->optimizers()[static_cast<size_t>(group)].Numbers()) {
      numbers[HyperKey(fqn, key)] = value;
    }
  });
  return numbers;
}

StatusOr<EngineNumbers::Keyed> EngineNumbers::ReadByKey(
    const std::vector<StateEntry>& entries, const MemoryStore& store,
    const StateOptions& options, const LoadRules& rules) const {
  SHARD_ASSIGN_OR_RETURN(const auto names, ListParamNames(plan_, options));
  std::map<std::string, double> numbers;
  for (const auto& [key, value] : store.numbers()) {
    std::string clean = CleanStateKey(key, rules.strip_leading_module);
    // A key that is written in this form already takes precedence.
    if (clean == key) {
      numbers.insert_or_assign(std::move(clean), value);
    } else {
      numbers.emplace(std::move(clean), value);
    }
  }
  // Looks the number up under any name of the parameter, as its tensors are.
  const auto find = [&](ParamId param, const auto& key_of) {
    auto found = numbers.end();
    for (const std::string& name : names[static_cast<size_t>(param)]) {
      if (found == numbers.end()) found = numbers.find(key_of(name));
    }
    return found;
  };
  Keyed read;
  read.loss_scale = counters_->loss_scaler().state();
  for (const auto& [key, value] : numbers) read.loss_scale.Take(key, value);
  Status wrong;
  ForEachStepped(plan_, entries, [&](ParamId param, std::string_view) {
    ++read.stepped;
    const auto step = find(param, StepKey);
    if (step != numbers.end()) {
      const double value = step->second;
      if (value >= 0 && value <= static_cast<double>(Counters::kMostSteps) &&
          value == std::floor(value)) {
        read.steps[param] = static_cast<int64_t>(value);
      } else if (wrong.ok()) {
        wrong = InvalidArgument("'", step->first, "' is ", value,
                                "; allowed: 0 to ", Counters::kMostSteps,
                                ", a number of steps");
      }
    }
    const GroupId group =
        plan_.model().params()[static_cast<size_t>(param)].group;
    for (const auto& [key, value] :
         hypers_->optimizers()[static_cast<size_t>(group)].Numbers()) {
      const auto stored = find(param, [&key = key](const std::string& name) {
        return HyperKey(name, key);
      });
      if (stored == numbers.end() || stored->second == value) continue;
      read.hypers.push_back({group, key, stored->second});
    }
  });
  if (!wrong.ok()) return wrong;
  return read;
}

void EngineNumbers::RestoreByKey(const Keyed& numbers, bool whole) {
  for (const Keyed::Hyper& hyper : numbers.hypers) {
    const Status set = hypers_->Set(hyper.group, hyper.key, hyper.value);
    if (!set.ok() && comm_->rank() == 0) {
      comm_->observer()->Log(EventId::kCheckpointWarning, "param group ",
                             hyper.group, " keeps its ", hyper.key, ": ",
                             set.message());
    }
  }
  // A load of some modules keeps the run's own loss scale.
  if (whole) RestoreLossScale(numbers.loss_scale);
  if (numbers.steps.empty()) return;
  counters_->SpreadSteps(plan_);
  int64_t most = 0;
  for (const auto& [param, step] : numbers.steps) {
    most = std::max(most, step);
    counters_->SetParamStep(plan_, param, step);
  }
  // The run's own step count stays where a state dict has steps of only some
  // parameters.
  if (whole && numbers.steps.size() == numbers.stepped) {
    counters_->RestoreStep(most);
  }
  counters_->CollapseSteps(plan_);
}

}  // namespace shard
