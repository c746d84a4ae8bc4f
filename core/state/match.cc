// SPDX-License-Identifier: Apache-2.0

#include "core/state/match.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "core/base/element_type.h"
#include "core/base/json_writer.h"
#include "core/base/strings.h"
#include "core/model/names.h"

namespace shard {

namespace {

constexpr int64_t kMissing = -1;

// Returns the text after the parameter's name in the key of a state.
std::string SuffixOf(const Plan& plan, const StateEntry& entry) {
  const ParamPlace& place = plan.place(entry.param);
  const FlatBufferPlan& buffer = plan.buffer(place.buffer);
  return StrCat(".",
                buffer.states[static_cast<size_t>(entry.state)].tensor.name,
                entry.scales ? kScaleSuffix : "");
}

// Finds tensors of a store by the keys that libshard gives them.
class StoreKeys {
 public:
  StoreKeys(const TensorStore& store, bool strip_leading_module)
      : store_(store) {
    for (size_t t = 0; t < store.num_tensors(); ++t) {
      const std::string_view key = store.tensor(t).key;
      std::string clean = CleanStateKey(key, strip_leading_module);
      // A key that is written in this form already takes precedence.
      if (clean != key && store.Find(clean) < 0) {
        cleaned_.emplace(std::move(clean), t);
      }
    }
  }

  int64_t Find(const std::string& key) const {
    const int64_t tensor = store_.Find(key);
    if (tensor >= 0 || cleaned_.empty()) return tensor;
    const auto found = cleaned_.find(key);
    return found == cleaned_.end() ? kMissing
                                   : static_cast<int64_t>(found->second);
  }

 private:
  const TensorStore& store_;
  // The map is ordered because a hostile file could have keys that collide
  // under a known hash.
  std::map<std::string, size_t> cleaned_;
};

class Matcher {
 public:
  Matcher(const Plan& plan, const std::vector<StateEntry>& entries,
          std::vector<std::vector<std::string>> names, const TensorStore& store,
          const StateOptions& options, const LoadRules& rules,
          MatchReport* report)
      : plan_(plan),
        entries_(entries),
        store_(store),
        options_(options),
        rules_(rules),
        report_(report),
        keys_(store, rules.strip_leading_module),
        used_(store.num_tensors()),
        matches_(entries.size()),
        names_(std::move(names)) {
    for (size_t p = 0; p < names_.size(); ++p) {
      if (plan.model().params()[p].trainable) continue;
      frozen_.insert(names_[p].begin(), names_[p].end());
    }
  }

  StatusOr<std::vector<EntryMatch>> Match() {
    for (const StateEntry& entry : entries_) {
      // Every name counts as used: the store may have another name of a tensor
      // that is stored under its first one.
      if (!entry.is_state()) Use(keys_.Find(entry.key));
    }
    for (size_t e = 0; e < entries_.size(); ++e) {
      if (entries_[e].alias_of < 0) MatchEntry(e);
    }
    CollectUnexpected();
    SHARD_RETURN_IF_ERROR(CheckReport());
    return std::move(matches_);
  }

 private:
  void Use(int64_t tensor) {
    if (tensor >= 0) used_[static_cast<size_t>(tensor)] = true;
  }

  // Finds a parameter under any of its names.
  int64_t FindParam(ParamId param) const {
    for (const std::string& name : names_[static_cast<size_t>(param)]) {
      const int64_t tensor = keys_.Find(name);
      if (tensor >= 0) return tensor;
    }
    return kMissing;
  }

  // Finds a state of a parameter under any of its names, or under the name that
  // the store's states have where the parameter is tied to one that is not
  // here.
  int64_t FindState(ParamId param, std::string_view suffix) const {
    for (const std::string& name : names_[static_cast<size_t>(param)]) {
      int64_t state = keys_.Find(StrCat(kStatePrefix, name, suffix));
      if (state >= 0) return state;
      const int64_t tensor = keys_.Find(name);
      if (tensor < 0) continue;
      const int64_t target =
          store_.tensor(static_cast<size_t>(tensor)).alias_of;
      if (target < 0) continue;
      state = store_.Find(StrCat(kStatePrefix,
                                 store_.tensor(static_cast<size_t>(target)).key,
                                 suffix));
      if (state >= 0) return state;
    }
    return kMissing;
  }

  int64_t FindEntry(const StateEntry& entry) {
    if (entry.is_host_tensor()) return keys_.Find(entry.key);
    const int64_t found = entry.is_param()
                              ? FindParam(entry.param)
                              : FindState(entry.param, SuffixOf(plan_, entry));
    return rules_.convert ? FindConvertible(entry, found) : found;
  }

  void MatchEntry(size_t e) {
    const StateEntry& entry = entries_[e];
    const int64_t tensor = FindEntry(entry);
    if (tensor < 0) {
      if (!IsDerivedHere(entry)) report_->missing.push_back(entry.key);
      return;
    }
    Use(tensor);
    const auto index = static_cast<size_t>(tensor);
    const TensorInfo info = store_.tensor(index);
    if (info.type == ElementType::kOpaque) {
      opaque_.push_back(StrCat("'", entry.key, "' is ", TypeNameOf(info)));
      report_->mismatched.push_back(opaque_.back());
      return;
    }
    if (!std::equal(info.shape.begin(), info.shape.end(), entry.shape.begin(),
                    entry.shape.end())) {
      report_->mismatched.push_back(
          StrCat("'", entry.key, "' has shape ", FormatList(info.shape),
                 " in the store and ", FormatList(entry.shape), " here"));
      return;
    }
    Decide(entry, info, &matches_[e]);
    matches_[e].tensor = index;
    if (matches_[e].kind == EntryMatch::Kind::kNone) return;
    if (entry.numel == 0) matches_[e].kind = EntryMatch::Kind::kNone;
    ++report_->loaded;
  }

  // Returns the tensor from which a parameter or state is made instead, where
  // conversions are allowed and that is better or the only way; else `found`.
  int64_t FindConvertible(const StateEntry& entry, int64_t found) {
    const std::string master_suffix = StrCat(".", kMasterState);
    if (!entry.is_param()) {
      return found < 0 && SuffixOf(plan_, entry) == master_suffix
                 ? FindParam(entry.param)
                 : found;
    }
    if (found < 0) return found;
    const int64_t master = FindState(entry.param, master_suffix);
    // A parameter without master weights is read from the stored ones, or has
    // no use for them.
    Use(master);
    const ElementType type = store_.tensor(static_cast<size_t>(found)).type;
    const bool widens = IsHalf(type) && entry.type == ElementType::kF32;
    return master >= 0 && widens ? master : found;
  }

  // Returns whether the entry is scales that are made by encoding their codes.
  bool IsDerivedHere(const StateEntry& entry) const {
    if (!entry.scales || !rules_.convert) return false;
    StateEntry codes = entry;
    codes.scales = false;
    const int64_t found = FindState(entry.param, SuffixOf(plan_, codes));
    return found >= 0 &&
           IsConvertibleFloat(store_.tensor(static_cast<size_t>(found)).type);
  }

  void Decide(const StateEntry& entry, const TensorInfo& info,
              EntryMatch* match) {
    using Kind = EntryMatch::Kind;
    if (info.type == entry.type) {
      match->kind = Kind::kSame;
      return;
    }
    const bool to_q8 = IsQuantized(entry.type);
    const bool to_float = IsConvertibleFloat(entry.type);
    const bool from_q8 = IsQuantized(info.type);
    // The meaning of codes that a host added is unknown.
    const bool possible =
        from_q8 ? to_float && info.codebook >= 0
                : IsConvertibleFloat(info.type) && (to_float || to_q8);
    if (!rules_.convert || !possible) {
      report_->mismatched.push_back(
          StrCat("'", entry.key, "' is ", TypeNameOf(info),
                 " in the store and ", ElementTypeName(entry.type), " here",
                 possible ? "; set convert to convert it" : ""));
      return;
    }
    match->kind = to_q8     ? Kind::kEncode
                  : from_q8 ? Kind::kDecode
                            : Kind::kConvert;
    if (from_q8) {
      const int64_t scales = store_.Find(StrCat(info.key, kScaleSuffix));
      if (scales < 0) {
        match->kind = Kind::kNone;
        report_->missing.push_back(StrCat(info.key, kScaleSuffix));
        return;
      }
      Use(scales);
      const TensorInfo found = store_.tensor(static_cast<size_t>(scales));
      const int64_t blocks = (info.numel + kQ8Block - 1) / kQ8Block;
      if (found.type != ElementType::kF32 || found.numel != blocks) {
        match->kind = Kind::kNone;
        report_->mismatched.push_back(
            StrCat("'", found.key, "' has ", found.numel, " elements of ",
                   ElementTypeName(found.type), "; ", info.numel,
                   " codes have ", blocks, " scales of f32"));
        return;
      }
      match->scales = static_cast<size_t>(scales);
    }
    ++report_->converted;
  }

  void CollectUnexpected() {
    for (size_t t = 0; t < used_.size(); ++t) {
      if (used_[t]) continue;
      const TensorInfo info = store_.tensor(t);
      if (IsRequested(info)) report_->unexpected.emplace_back(info.key);
    }
  }

  // Returns whether a key that has no entry belongs to the part that should be
  // loaded.
  bool IsRequested(const TensorInfo& info) const {
    const bool state = info.role == TensorRole::kState;
    if (options_.content == StateContent::kModel && state) return false;
    if (options_.content == StateContent::kOptimizer && !state) return false;
    std::string key = CleanStateKey(info.key, rules_.strip_leading_module);
    if (state && key.rfind(kStatePrefix, 0) == 0) {
      key = key.substr(kStatePrefix.size());
    }
    if (!options_.submodules.empty() && !options_.strip_prefix) {
      const bool inside = std::any_of(
          options_.submodules.begin(), options_.submodules.end(),
          [&](ModuleId module) {
            const std::string fqn = plan_.model().ModuleFqn(module);
            return fqn.empty() ||
                   key.rfind(CleanTensorName(StrCat(fqn, ".")), 0) == 0;
          });
      if (!inside) return false;
    }
    if (!options_.ignore_frozen) return true;
    if (state) {
      // The parameter was trained in the stored run and is frozen here.
      if (key.ends_with(kScaleSuffix)) {
        key.resize(key.size() - kScaleSuffix.size());
      }
      key.resize(std::min(key.size(), key.rfind('.')));
    }
    return frozen_.count(key) == 0;
  }

  Status CheckReport() const {
    if (!opaque_.empty()) {
      return Status(
          StatusCode::kUnimplemented,
          StrCat(store_.describe(), " has types that can be copied and not ",
                 "loaded: ", Summary("tensors", opaque_),
                 "; store these as f32, bf16, f16 or f64"),
          -1, report_->ToJson());
    }
    const auto fail = [&](const std::string& message) {
      return Status(StatusCode::kFailedPrecondition,
                    StrCat(store_.describe(), " does not fit: ", message), -1,
                    report_->ToJson());
    };
    if (!report_->mismatched.empty()) {
      return fail(Summary("mismatched", report_->mismatched));
    }
    if (!rules_.strict) return Status();
    if (report_->loaded == 0 && options_.submodules.empty() &&
        !options_.ignore_frozen && !entries_.empty()) {
      return fail("it has none of the tensors that the load is for");
    }
    if (report_->missing.empty() && report_->unexpected.empty()) {
      return Status();
    }
    return fail(StrCat(Summary("missing", report_->missing), "; ",
                       Summary("unexpected", report_->unexpected),
                       "; set allow_mismatch to load what there is"));
  }

  static std::string Summary(std::string_view what,
                             const std::vector<std::string>& keys) {
    constexpr size_t kMost = 8;
    std::string text = StrCat(keys.size(), " ", what);
    for (size_t i = 0; i < std::min(kMost, keys.size()); ++i) {
      StrAppend(&text, i == 0 ? ": " : ", ", keys[i]);
    }
    if (keys.size() > kMost) text += ", ...";
    return text;
  }

  const Plan& plan_;
  const std::vector<StateEntry>& entries_;
  const TensorStore& store_;
  const StateOptions& options_;
  const LoadRules& rules_;
  MatchReport* const report_;
  const StoreKeys keys_;
  std::vector<bool> used_;  // By tensor of the store.
  std::vector<std::string> opaque_;
  std::vector<EntryMatch> matches_;
  // The names of the selected parameters, by ParamId, frozen ones included.
  std::vector<std::vector<std::string>> names_;
  std::set<std::string> frozen_;  // Names of frozen ones.
};

}  // namespace

std::string MatchReport::ToJson() const {
  JsonWriter json;
  json.BeginObject();
  json.Field("missing", missing);
  json.Field("unexpected", unexpected);
  json.Field("mismatched", mismatched);
  json.EndObject();
  return json.text();
}

StatusOr<std::vector<EntryMatch>> MatchState(
    const Plan& plan, const std::vector<StateEntry>& entries,
    const TensorStore& store, const StateOptions& options,
    const LoadRules& rules, MatchReport* report) {
  *report = {};
  SHARD_ASSIGN_OR_RETURN(auto names, ListParamNames(plan, options));
  return Matcher(plan, entries, std::move(names), store, options, rules, report)
      .Match();
}

}  // namespace shard
