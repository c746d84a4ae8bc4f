// SPDX-License-Identifier: Apache-2.0
//
// The engine's state dicts.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/gather.h"
#include "core/engine/engine.h"
#include "core/engine/gather_state.h"
#include "core/engine/local_state.h"
#include "core/flat/fingerprint.h"
#include "core/model/names.h"

namespace shard {

namespace {

std::string StepKey(std::string_view fqn) {
  return StrCat(kStatePrefix, fqn, ".step");
}

std::string HyperKey(std::string_view fqn, std::string_view hyper) {
  return StrCat("param_groups.", fqn, ".", hyper);
}

// Calls `visit(param, fqn)` for each parameter that has states among
// `entries`, with the name it has in their keys.
template <typename Visit>
void ForEachStepped(const Plan& plan, const std::vector<StateEntry>& entries,
                    const Visit& visit) {
  ParamId last = -1;
  for (const StateEntry& entry : entries) {
    if (entry.is_param() || entry.param == last) continue;
    last = entry.param;
    const auto& buffer = plan.buffers()[static_cast<size_t>(
        plan.places()[static_cast<size_t>(entry.param)].buffer)];
    const std::string& state =
        buffer.states[static_cast<size_t>(entry.state)].tensor.name;
    const size_t prefix = kStatePrefix.size();
    visit(entry.param,
          std::string_view(entry.key).substr(
              prefix, entry.key.size() - prefix - state.size() - 1));
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
  for (const auto& [key, value] : NumbersByKey(entries)) {
    SHARD_RETURN_IF_ERROR(store->AddNumber(key, value));
  }
  return Status();
}

Status Engine::GatherState(
    const StatusOr<StateOptions>& options, int rank, double timeout,
    const std::function<Status(const StateEntry& entry, const std::byte* data)>&
        sink) {
  const Deadline deadline = DeadlineOf(timeout);
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
  SHARD_RETURN_IF_ERROR(
      assembly_->units().EnterChange(Activity::kGatherState, local, deadline));
  Fingerprint fingerprint;
  fingerprint.Add(rank);
  for (const StateEntry& entry : entries) fingerprint.AddString(entry.key);
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm_.get(), "what is gathered", fingerprint.Finish(),
      StrCat(entries.size(), " tensors to rank ", rank), deadline));
  SHARD_RETURN_IF_ERROR(assembly_->compute().Synchronize(deadline));
  return shard::GatherState(
      plan(), memory(), entries, rank, comm_.get(), device_.get(),
      &assembly_->compute(),
      [&](size_t entry, const std::byte* data) {
        return sink(entries[entry], data);
      },
      deadline);
}

Status Engine::LoadState(const MemoryStore* store,
                         const StatusOr<LoadOptions>& options,
                         LoadReport* report) {
  constexpr const char* kPhase = "load: state dict";
  *report = {};
  report->step = -1;
  const Deadline deadline = DeadlineOf(options.ok() ? options->timeout : 0);
  SHARD_RETURN_IF_ERROR(EnterLoad(options, deadline));
  std::string text = store == nullptr ? "" : store->ToText();
  MemoryStore names;  // Rank 0's, on the other ranks.
  if (options->from_rank0) {
    SHARD_ASSIGN_OR_RETURN(text,
                           BroadcastText(comm_.get(), kPhase, text, deadline));
    if (comm_->rank() != 0) {
      SHARD_RETURN_IF_ERROR(names.AddFromText(text));
      store = &names;
    }
  } else {
    Fingerprint fingerprint;
    fingerprint.AddString(text);
    SHARD_RETURN_IF_ERROR(
        CheckAgreement(comm_.get(), "the state dict (keys, shapes, numbers)",
                       fingerprint.Finish(),
                       StrCat(store->num_tensors(), " tensors"), deadline));
  }
  report->path = store->describe();
  SHARD_ASSIGN_OR_RETURN(const std::vector<StateEntry> entries,
                         ListStateEntries(plan(), options->state));
  SHARD_RETURN_IF_ERROR(
      LoadFrom(*store, entries, *options, deadline, &report->match).status());
  if (options->state.content == StateContent::kModel) return Status();
  SHARD_RETURN_IF_ERROR(TakeNumbersByKey(entries, *store));
  report->step = step_;
  return Status();
}

std::map<std::string, double> Engine::NumbersByKey(
    const std::vector<StateEntry>& entries) const {
  std::map<std::string, double> numbers;
  const TrainingNumbers now = Numbers();
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

Status Engine::TakeNumbersByKey(const std::vector<StateEntry>& entries,
                                const MemoryStore& store) {
  // What is not told stays.
  const auto& numbers = store.numbers();
  std::map<ParamId, int64_t> steps;
  ForEachStepped(plan(), entries, [&](ParamId param, std::string_view fqn) {
    const auto step = numbers.find(StepKey(fqn));
    if (step != numbers.end()) {
      steps[param] = static_cast<int64_t>(std::llround(step->second));
    }
    const GroupId group =
        plan().model().params()[static_cast<size_t>(param)].group;
    for (const auto& [key, value] :
         hypers_.optimizers()[static_cast<size_t>(group)].Numbers()) {
      const auto stored = numbers.find(HyperKey(fqn, key));
      if (stored == numbers.end() || stored->second == value) continue;
      const Status set = hypers_.Set(group, key, stored->second);
      if (!set.ok() && comm_->rank() == 0) {
        comm_->logger().Log(LogLevel::kWarning, stored->first,
                            " is left as it is: ", set.message());
      }
    }
  });
  if (steps.empty()) return Status();
  int64_t most = 0;
  for (const auto& [param, step] : steps) most = std::max(most, step);
  SHARD_RETURN_IF_ERROR(SetStep(most));
  for (const auto& [param, step] : steps) SetParamStep(param, step);
  return Status();
}

}  // namespace shard
