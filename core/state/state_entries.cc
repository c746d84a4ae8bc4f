// SPDX-License-Identifier: Apache-2.0

#include "core/state/state_entries.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

#include "core/base/element_type.h"
#include "core/base/strings.h"
#include "core/model/names.h"
#include "core/model/walk.h"

namespace shard {

namespace {

int64_t NumBlocks(int64_t numel) { return (numel + kQ8Block - 1) / kQ8Block; }

// The place of a parameter in the layout of an entry: slots list the same
// parameters in the same order in all layouts of a buffer.
struct Place {
  const FlatLayout* layout;
  int64_t offset;
  int64_t numel;
};

// REQUIRES: a stored parameter that is not empty.
Place PlaceOf(const Plan& plan, ParamId param, int32_t state) {
  const ParamPlace& place = plan.place(param);
  const FlatBufferPlan& buffer = plan.buffer(place.buffer);
  if (state < 0) {
    return {&buffer.layout, place.offset,
            plan.model().params()[static_cast<size_t>(param)].numel};
  }
  const FlatLayout& layout = buffer.StateLayout(static_cast<size_t>(state));
  const Slot& slot = layout.slots()[buffer.layout.SlotAt(place.offset)];
  return {&layout, slot.offset, slot.numel};
}

class EntryLister {
 public:
  EntryLister(const Plan& plan, const StateOptions& options)
      : plan_(plan),
        model_(plan.model()),
        options_(options),
        first_(model_.params().size(), -1) {
    if (options.strip_prefix) {
      const std::string fqn = model_.ModuleFqn(options.submodules.front());
      strip_ = fqn.empty() ? 0 : fqn.size() + 1;
    }
  }

  std::vector<StateEntry> List() {
    ListParams();
    if (options_.content != StateContent::kOptimizer) ListHostTensors();
    if (options_.content != StateContent::kModel) ListStates();
    return std::move(entries_);
  }

 private:
  void ListParams() {
    WalkSelected([](ModuleId) {},
                 [this](int32_t reference) { AddName(reference); });
  }

  void ListHostTensors() {
    if (model_.host_tensors().empty()) return;
    WalkSelected(
        [this](ModuleId at) {
          const Model::Module& module =
              model_.modules()[static_cast<size_t>(at)];
          for (const HostTensorId id : module.host_tensors) AddHostTensor(id);
        },
        [](int32_t) {});
  }

  // Calls `enter(ModuleId)` for the selected modules that are not ignored, and
  // `visit(int32_t reference)` for the names in them.
  template <typename Enter, typename Visit>
  void WalkSelected(const Enter& enter, const Visit& visit) const {
    int depth = -1;  // The depth of the submodule that the walk is in.
    WalkModel(
        model_,
        [&](ModuleId at, int at_depth) {
          if (depth >= 0 && at_depth <= depth) depth = -1;
          if (depth < 0 && IsSelected(at)) depth = at_depth;
          if (model_.modules()[static_cast<size_t>(at)].ignored) return false;
          if (depth >= 0) enter(at);
          return true;
        },
        [&](int32_t reference) {
          if (depth >= 0) visit(reference);
        });
  }

  bool IsSelected(ModuleId module) const {
    const auto& meant = options_.submodules;
    return meant.empty() ||
           std::find(meant.begin(), meant.end(), module) != meant.end();
  }

  void AddName(int32_t reference) {
    const ParamId id =
        model_.references()[static_cast<size_t>(reference)].param;
    const Model::Param& param = model_.params()[static_cast<size_t>(id)];
    if (param.ignored) return;
    if (options_.ignore_frozen && !param.trainable) return;
    std::string fqn =
        CleanTensorName(model_.ReferenceFqn(reference).substr(strip_));
    int32_t& first = first_[static_cast<size_t>(id)];
    const int32_t alias_of = first;
    if (first < 0) {
      first = static_cast<int32_t>(entries_.size());
      params_.push_back(id);
      fqns_.push_back(fqn);
    }
    if (options_.content == StateContent::kOptimizer) return;
    entries_.push_back({.key = std::move(fqn),
                        .type = ElementTypeOf(param.dtype),
                        .shape = param.shape,
                        .numel = param.numel,
                        .param = id,
                        .alias_of = alias_of});
  }

  void AddHostTensor(HostTensorId id) {
    const Model::HostTensor& tensor =
        model_.host_tensors()[static_cast<size_t>(id)];
    if (!tensor.persistent) return;
    entries_.push_back(
        {.key = CleanTensorName(model_.HostTensorFqn(id).substr(strip_)),
         .role = TensorRole::kBuffer,
         .type = tensor.type,
         .shape = tensor.shape,
         .numel = tensor.numel,
         .host_tensor = id});
  }

  void ListStates() {
    for (size_t i = 0; i < params_.size(); ++i) {
      const auto param = static_cast<size_t>(params_[i]);
      const FlatBufferPlan& buffer = plan_.buffer(plan_.places()[param].buffer);
      if (!buffer.trainable) continue;
      for (size_t s = 0; s < buffer.states.size(); ++s) {
        AddState(params_[i], fqns_[i], buffer.states[s],
                 static_cast<int32_t>(s));
      }
    }
  }

  void AddState(ParamId id, std::string_view fqn, const StatePlan& state,
                int32_t index) {
    const Model::Param& param = model_.params()[static_cast<size_t>(id)];
    StateEntry entry{.key = StrCat(kStatePrefix, fqn, ".", state.tensor.name),
                     .role = TensorRole::kState,
                     .type = ElementTypeOf(state.tensor.dtype),
                     .shape = param.shape,
                     .numel = param.numel,
                     .param = id,
                     .state = index};
    if (state.own_layout != nullptr) {
      entry.numel = param.numel == 0 ? 0 : PlaceOf(plan_, id, index).numel;
      // The optimizer keeps this state for parameters of other shapes only.
      if (entry.numel == 0) return;
      // A state of as many elements keeps the parameter's shape: it has a
      // layout of its own because of other parameters of the buffer.
      if (entry.numel != param.numel) entry.shape = {entry.numel};
    }
    entries_.push_back(entry);
    if (!IsQuantized(entry.type)) return;
    entry.key += kScaleSuffix;
    entry.type = ElementType::kF32;
    entry.numel = NumBlocks(entry.numel);
    entry.shape = {entry.numel};
    entry.scales = true;
    entries_.push_back(std::move(entry));
  }

  const Plan& plan_;
  const Model& model_;
  const StateOptions& options_;
  size_t strip_ = 0;               // Bytes of the prefix that is stripped.
  std::vector<int32_t> first_;     // By ParamId: its entry; -1: not yet met.
  std::vector<ParamId> params_;    // Those met, in module-walk order,
  std::vector<std::string> fqns_;  // and the names of their keys.
  std::vector<StateEntry> entries_;
};

}  // namespace

Status CheckStateOptions(const Model& model, const StateOptions& options) {
  const auto content = static_cast<int32_t>(options.content);
  if (content < 0 || content > 2) {
    return InvalidArgument("content ", content,
                           " is unknown; allowed: 0 (all), 1 (model), 2 "
                           "(optimizer)");
  }
  const auto modules = static_cast<ModuleId>(model.modules().size());
  for (const ModuleId module : options.submodules) {
    if (module < 0 || module >= modules) {
      return InvalidArgument("submodule ", module,
                             " does not exist; the model has ", modules);
    }
  }
  if (options.strip_prefix && options.submodules.size() != 1) {
    return InvalidArgument(
        "strip_prefix needs exactly one submodule, not ",
        options.submodules.size(),
        ": the keys of several could be the same; leave strip_prefix 0");
  }
  return Status();
}

std::string CleanStateKey(std::string_view key, bool strip_leading_module) {
  for (const std::string_view prefix : {kStatePrefix, kGroupPrefix}) {
    if (!key.starts_with(prefix)) continue;
    return StrCat(prefix, CleanTensorName(key.substr(prefix.size()),
                                          strip_leading_module));
  }
  return CleanTensorName(key, strip_leading_module);
}

namespace {

Status CheckKeysWithoutPrefix(const Plan& plan,
                              const std::vector<StateEntry>& entries,
                              const StateOptions& options) {
  constexpr const char* kRemedy =
      "; leave strip_prefix 0, or rename a module or a parameter";
  // The map is ordered because a hostile plan could have names that collide
  // under a known hash.
  std::map<std::string_view, const StateEntry*> by_key;
  for (const StateEntry& entry : entries) {
    if (!by_key.emplace(entry.key, &entry).second) {
      return InvalidArgument("two tensors have the key ", QuoteName(entry.key),
                             kRemedy);
    }
  }
  if (options.content == StateContent::kModel) return Status();
  // State dicts have numbers of the parameters beside their optimizer states.
  for (const StateEntry& entry : entries) {
    const auto parts = ParseOwnedKey(entry.key);
    if (entry.is_state() || !parts) continue;
    if (!parts->in_group && parts->name != kStepName) continue;
    const auto owner = by_key.find(parts->fqn);
    if (owner == by_key.end() || !owner->second->is_param()) continue;
    const auto param = static_cast<size_t>(owner->second->param);
    if (!plan.model().params()[param].trainable) continue;
    return InvalidArgument("a tensor has the key ", QuoteName(entry.key),
                           ", which is that of ", QuoteName(parts->name),
                           " of the parameter ", QuoteName(parts->fqn),
                           kRemedy);
  }
  return Status();
}

}  // namespace

StatusOr<std::vector<StateEntry>> ListStateEntries(
    const Plan& plan, const StateOptions& options) {
  SHARD_RETURN_IF_ERROR(CheckStateOptions(plan.model(), options));
  std::vector<StateEntry> entries = EntryLister(plan, options).List();
  // The plan's names do not collide, but may without their prefix.
  if (options.strip_prefix) {
    SHARD_RETURN_IF_ERROR(CheckKeysWithoutPrefix(plan, entries, options));
  }
  return entries;
}

StatusOr<std::vector<std::vector<std::string>>> ListParamNames(
    const Plan& plan, StateOptions options) {
  options.content = StateContent::kModel;
  options.ignore_frozen = false;
  SHARD_ASSIGN_OR_RETURN(std::vector<StateEntry> entries,
                         ListStateEntries(plan, options));
  std::vector<std::vector<std::string>> names(plan.model().params().size());
  for (StateEntry& entry : entries) {
    if (!entry.is_param()) continue;
    names[static_cast<size_t>(entry.param)].push_back(std::move(entry.key));
  }
  return names;
}

OwnedElements OwnedBy(const Plan& plan, const StateEntry& entry, int rank) {
  if (entry.numel == 0) return {};
  if (entry.is_host_tensor()) {
    if (rank != kHostTensorOwner) return {};
    return {0, entry.numel, 0};
  }
  const Place place = PlaceOf(plan, entry.param, entry.state);
  const int64_t range = place.layout->shard_numel();
  const int64_t range_begin = plan.RangeOf(rank) * range;
  const int64_t begin = std::max(place.offset, range_begin);
  const int64_t end = std::min(place.offset + place.numel, range_begin + range);
  if (begin >= end) return {};
  OwnedElements owned{begin - place.offset, end - begin, begin - range_begin};
  if (entry.scales) {
    // Blocks begin with their parameter, and ranges are whole blocks.
    owned = {owned.begin / kQ8Block, NumBlocks(owned.numel),
             owned.offset / kQ8Block};
  }
  return owned;
}

std::vector<int> OwnersOf(const Plan& plan, const StateEntry& entry) {
  std::vector<int> ranks;
  if (entry.numel == 0) return ranks;
  if (entry.is_host_tensor()) return {kHostTensorOwner};
  const Place place = PlaceOf(plan, entry.param, entry.state);
  const int64_t range = place.layout->shard_numel();
  const int64_t first = place.offset / range;
  const int64_t last = (place.offset + place.numel - 1) / range;
  for (int64_t r = first; r <= last; ++r) {
    ranks.push_back(plan.RankOf(static_cast<int>(r)));
  }
  return ranks;
}

}  // namespace shard
