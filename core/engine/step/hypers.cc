// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/hypers.h"

#include <cstddef>
#include <utility>

#include "core/base/strings.h"
#include "core/flat/fingerprint.h"

namespace shard {

StatusOr<Hypers> Hypers::Create(const Plan& plan) {
  Hypers hypers;
  for (const GroupOptions& group : plan.options().groups) {
    SHARD_ASSIGN_OR_RETURN(Optimizer optimizer,
                           Optimizer::Parse(group.optimizer));
    hypers.optimizers_.push_back(std::move(optimizer));
  }
  return hypers;
}

Status Hypers::CheckGroup(GroupId group) const {
  if (group >= 0 && static_cast<size_t>(group) < optimizers_.size()) {
    return Status();
  }
  return InvalidArgument("param group ", group,
                         " does not exist; the plan has ", optimizers_.size(),
                         ", from 0");
}

Status Hypers::Set(GroupId group, std::string_view key, double value) {
  if (group != kAllGroups) {
    SHARD_RETURN_IF_ERROR(CheckGroup(group));
    return optimizers_[static_cast<size_t>(group)].Set(key, value);
  }
  std::vector<Optimizer> changed = optimizers_;
  Status unknown;
  bool known = false;
  for (Optimizer& optimizer : changed) {
    const Status status = optimizer.Set(key, value);
    if (status.code() == StatusCode::kNotFound) {
      unknown = status;
      continue;
    }
    SHARD_RETURN_IF_ERROR(status);
    known = true;
  }
  if (!known) return unknown;
  optimizers_.swap(changed);
  return Status();
}

StatusOr<double> Hypers::Get(GroupId group, std::string_view key) const {
  SHARD_RETURN_IF_ERROR(CheckGroup(group));
  return optimizers_[static_cast<size_t>(group)].Get(key);
}

StatusOr<std::string> Hypers::Text(GroupId group) const {
  SHARD_RETURN_IF_ERROR(CheckGroup(group));
  return optimizers_[static_cast<size_t>(group)].ToString();
}

std::string Hypers::ToString() const {
  std::string text;
  for (const Optimizer& optimizer : optimizers_) {
    StrAppend(&text, text.empty() ? "" : "; ", optimizer.ToString());
  }
  return text;
}

void Hypers::Describe(FactSink* sink) const {
  for (size_t g = 0; g < optimizers_.size(); ++g) {
    sink->AddSpec(StrCat("param group ", g), "optimizer",
                  optimizers_[g].ToString());
  }
}

std::vector<double> Hypers::Values() const {
  std::vector<double> values;
  for (const Optimizer& optimizer : optimizers_) {
    values.insert(values.end(), optimizer.hypers().begin(),
                  optimizer.hypers().end());
  }
  return values;
}

void Hypers::SetValues(const double* values) {
  for (Optimizer& optimizer : optimizers_) {
    optimizer.SetHypers(values);
    values += optimizer.hypers().size();
  }
}

Status Hypers::Restore(GroupId group, std::string_view text) {
  SHARD_RETURN_IF_ERROR(CheckGroup(group));
  SHARD_ASSIGN_OR_RETURN(const Optimizer stored, Optimizer::Parse(text));
  return optimizers_[static_cast<size_t>(group)].RestoreNumbers(stored);
}

double Hypers::Fingerprint52() const {
  Fingerprint fingerprint;
  for (const Optimizer& optimizer : optimizers_) {
    const std::vector<double>& hypers = optimizer.hypers();
    fingerprint.AddBytes(hypers.data(), hypers.size() * sizeof(double));
  }
  return static_cast<double>(fingerprint.Finish() >> 12);
}

}  // namespace shard
