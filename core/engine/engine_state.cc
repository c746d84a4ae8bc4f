// SPDX-License-Identifier: Apache-2.0
//
// The engine's state dicts.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/agreement.h"
#include "core/comm/gather.h"
#include "core/engine/engine.h"
#include "core/engine/state/describe.h"
#include "core/engine/state/gather_state.h"
#include "core/engine/state/local_state.h"
#include "core/engine/transfer/ok_or_abort.h"
#include "core/model/names.h"

namespace shard {

namespace {

std::string StepKey(std::string_view fqn) {
  return StrCat(kStatePrefix, fqn, ".", kStepName);
}

std::string HyperKey(std::string_view fqn, std::string_view hyper) {
  return StrCat(kGroupPrefix, fqn, ".", hyper);
}

// Calls `visit(param, fqn)` for each trainable parameter that `entries` are of,
// with the name it has in their keys.
template <typename Visit>
void ForEachStepped(const Plan& plan, const std::vector<StateEntry>& entries,
                    const Visit& visit) {
  std::vector<bool> seen(plan.model().params().size());
  for (const StateEntry& entry : entries) {
    const auto param = static_cast<size_t>(entry.param);
    const auto& buffer =
        plan.buffers()[static_cast<size_t>(plan.places()[param].buffer)];
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

Status Engine::AddLocalState(const StateOptions& options, MemoryStore* store) {
  SHARD_RETURN_IF_ERROR(CheckBetweenSteps("state"));
  SHARD_RETURN_IF_ERROR(assembly_->compute().Synchronize(DeadlineOf(0)));
  SHARD_ASSIGN_OR_RETURN(const std::vector<StateEntry> entries,
                         ListStateEntries(plan(), options));
  for (const StateEntry& entry : entries) {
    MemoryStore::Tensor tensor;
    tensor.key = entry.key;
    tensor.type = ElementTypeOf(entry.dtype);
    tensor.role = entry.is_param() ? TensorRole::kParam : TensorRole::kState;
    tensor.shape = entry.shape;
    tensor.alias_of = entry.alias_of;
    tensor.codebook = CodebookOf(plan(), hypers_.optimizers(), entry);
    MemoryStore::Part part;
    if (entry.alias_of < 0) {
      const OwnedElements owned = OwnedBy(plan(), entry, comm_->rank());
      part.begin = owned.begin;
      part.numel = owned.numel;
      if (owned.numel > 0) {
        part.data = LocalData(plan(), memory(), entry, owned, comm_->rank());
      }
    }
    SHARD_RETURN_IF_ERROR(store->AddPart(std::move(tensor), part));
  }
  if (options.content == StateContent::kModel) return Status();
  const bool whole = options.submodules.empty();
  for (const auto& [key, value] : NumbersByKey(entries, whole)) {
    SHARD_RETURN_IF_ERROR(store->AddNumber(key, value));
  }
  return Status();
}

Status Engine::GatherState(
    const StatusOr<StateOptions>& options, int rank, double timeout,
    const std::function<Status(const StateEntry& entry, const std::byte* data)>&
        sink) {
  const WorkDeadline deadline = WorkDeadlineOf(timeout);
  Status local = options.status();
  if (local.ok()) local = CheckBetweenSteps("gather");
  std::vector<StateEntry> entries;
  if (local.ok()) {
    auto listed = ListStateEntries(plan(), *options);
    local = listed.status();
    if (listed.ok()) entries = *std::move(listed);
  }
  if (local.ok() && (rank < kAllRanks || rank >= comm_->world_size())) {
    local = InvalidArgument("rank ", rank, " is outside 0 to ",
                            comm_->world_size() - 1, " (-1: all)");
  }
  SHARD_RETURN_IF_ERROR(assembly_->units().EnterChange(
      Activity::kGatherState, local, deadline.Meeting()));
  // The tensors follow from the options.
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm_.get(), "what is gathered",
      [&](FactSink* facts) {
        facts->Add("", "rank", rank);
        DescribeState(plan().model(), *options, facts);
      },
      deadline.Meeting()));
  SHARD_RETURN_IF_ERROR(OkOrAbort(
      comm_.get(), assembly_->compute().Synchronize(deadline.Work())));
  return shard::GatherState(
      plan(), memory(), entries, rank, comm_.get(), device_.get(),
      &assembly_->compute(),
      [&](size_t entry, const std::byte* data) {
        return sink(entries[entry], data);
      },
      deadline.Work());
}

Status Engine::LoadState(const MemoryStore* store,
                         const StatusOr<LoadOptions>& options,
                         LoadReport* report) {
  constexpr const char* kPhase = "load: state dict";
  *report = {};
  report->step = -1;
  const WorkDeadline deadline =
      WorkDeadlineOf(options.ok() ? options->timeout : 0);
  SHARD_RETURN_IF_ERROR(EnterLoad(options, deadline));
  MemoryStore names;  // Rank 0's, on the other ranks.
  if (options->from_rank0) {
    SHARD_ASSIGN_OR_RETURN(
        const std::string text,
        BroadcastText(comm_.get(), kPhase,
                      comm_->rank() == 0 ? store->EncodeCatalog() : "",
                      deadline.Meeting()));
    Status local;
    if (comm_->rank() != 0) {
      local = names.AddCatalog(text);
      store = &names;
    }
    SHARD_RETURN_IF_ERROR(
        AgreeOnStatus(comm_.get(), kPhase, local, deadline.Meeting()));
  } else {
    SHARD_RETURN_IF_ERROR(CheckAgreement(
        comm_.get(), "the state dict",
        [&](FactSink* sink) {
          DescribeTensors(*store, sink);
          for (const auto& [key, value] : store->numbers()) {
            sink->Add("", StrCat("number '", key, "'"), value);
          }
        },
        deadline.Meeting()));
  }
  report->path = store->describe();
  SHARD_ASSIGN_OR_RETURN(const std::vector<StateEntry> entries,
                         ListStateEntries(plan(), options->state));
  // What may fail comes before memory is written.
  const auto numbers = ReadNumbersByKey(entries, *store, *options);
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm_.get(), kPhase, numbers.status(), deadline.Meeting()));
  SHARD_RETURN_IF_ERROR(
      LoadFrom(*store, entries, *options, deadline, &report->match).status());
  if (options->state.content == StateContent::kModel) return Status();
  TakeNumbersByKey(*numbers, options->state.submodules.empty());
  if (!numbers->steps.empty()) report->step = step_;
  return Status();
}

std::map<std::string, double> Engine::NumbersByKey(
    const std::vector<StateEntry>& entries, bool whole) const {
  std::map<std::string, double> numbers;
  const TrainingNumbers now = Numbers();
  if (whole && now.loss_scale) {
    numbers[std::string(kLossScaleKey)] = now.loss_scale->scale;
    numbers[std::string(kGoodStepsKey)] =
        static_cast<double>(now.loss_scale->good_steps);
  }
  ForEachStepped(plan(), entries, [&](ParamId param, std::string_view fqn) {
    numbers[StepKey(fqn)] = static_cast<double>(now.StepOf(plan(), param));
    const GroupId group =
        plan().model().params()[static_cast<size_t>(param)].group;
    for (const auto& [key, value] :
         hypers_.optimizers()[static_cast<size_t>(group)].Numbers()) {
      numbers[HyperKey(fqn, key)] = value;
    }
  });
  return numbers;
}

StatusOr<Engine::KeyedNumbers> Engine::ReadNumbersByKey(
    const std::vector<StateEntry>& entries, const MemoryStore& store,
    const LoadOptions& options) const {
  SHARD_ASSIGN_OR_RETURN(const auto names,
                         ListParamNames(plan(), options.state));
  std::map<std::string, double> numbers;
  for (const auto& [key, value] : store.numbers()) {
    std::string clean = CleanStateKey(key, options.rules.strip_leading_module);
    // The one that is written like this already comes first.
    if (clean == key) {
      numbers.insert_or_assign(std::move(clean), value);
    } else {
      numbers.emplace(std::move(clean), value);
    }
  }
  // Under any name of the parameter, as its tensors are found.
  const auto find = [&](ParamId param, const auto& key_of) {
    auto found = numbers.end();
    for (const std::string& name : names[static_cast<size_t>(param)]) {
      if (found == numbers.end()) found = numbers.find(key_of(name));
    }
    return found;
  };
  KeyedNumbers read;
  read.loss_scale = loss_scaler_.state();
  for (const auto& [key, value] : numbers) read.loss_scale.Take(key, value);
  Status wrong;
  ForEachStepped(plan(), entries, [&](ParamId param, std::string_view) {
    ++read.stepped;
    const auto step = find(param, StepKey);
    if (step != numbers.end()) {
      const double value = step->second;
      if (value >= 0 && value <= static_cast<double>(kMostSteps) &&
          value == std::floor(value)) {
        read.steps[param] = static_cast<int64_t>(value);
      } else if (wrong.ok()) {
        wrong = InvalidArgument("'", step->first, "' is ", value,
                                "; allowed: 0 to ", kMostSteps,
                                ", a number of steps");
      }
    }
    const GroupId group =
        plan().model().params()[static_cast<size_t>(param)].group;
    for (const auto& [key, value] :
         hypers_.optimizers()[static_cast<size_t>(group)].Numbers()) {
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

void Engine::TakeNumbersByKey(const KeyedNumbers& numbers, bool whole) {
  for (const KeyedNumbers::Hyper& hyper : numbers.hypers) {
    const Status set = hypers_.Set(hyper.group, hyper.key, hyper.value);
    if (!set.ok() && comm_->rank() == 0) {
      comm_->logger().Log(LogLevel::kWarning, "param group ", hyper.group,
                          " keeps its ", hyper.key, ": ", set.message());
    }
  }
  // Of some modules, the run's own goes on.
  if (whole) RestoreLossScale(numbers.loss_scale);
  if (numbers.steps.empty()) return;
  if (param_steps_.empty()) param_steps_.assign(plan().NumStored(), step_);
  int64_t most = 0;
  for (const auto& [param, step] : numbers.steps) {
    most = std::max(most, step);
    param_steps_[static_cast<size_t>(
        plan().positions()[static_cast<size_t>(param)])] = step;
  }
  // The run's own count goes on where only some parameters are told of.
  if (whole && numbers.steps.size() == numbers.stepped) step_ = most;
  CollapseParamSteps();
}

}  // namespace shard
