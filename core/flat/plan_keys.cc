// SPDX-License-Identifier: Apache-2.0
//
// Checks the keys of a plan.

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <string>
#include <string_view>

#include "core/base/strings.h"
#include "core/flat/plan_checks.h"
#include "core/model/names.h"

namespace shard {

namespace {

class Keys {
 public:
  Keys(const Model& model, const PlanOptions& options)
      : model_(model), options_(options) {}

  Status Check() {
    for (const int32_t reference : model_.Walk()) {
      const auto [at, is_new] = references_.emplace(
          CleanTensorName(model_.ReferenceFqn(reference)), reference);
      if (is_new) continue;
      return InvalidArgument(
          "the parameters ", Quoted(at->second), " and ", Quoted(reference),
          " both have the key ", QuoteName(at->first),
          " in checkpoints, which leave out what wrappers add to names; rename "
          "a module or a parameter");
    }
    for (const auto& [key, reference] : references_) {
      SHARD_RETURN_IF_ERROR(CheckKey(key, reference));
    }
    return {};
  }

 private:
  Status CheckKey(std::string_view key, int32_t reference) const {
    if (key == kLossScaleKey || key == kGoodStepsKey) {
      return InvalidArgument(
          "the parameter ", Quoted(reference), " has the key ", QuoteName(key),
          ", which checkpoints and state dicts have for a number of the run; "
          "rename a module or a parameter");
    }
    SHARD_RETURN_IF_ERROR(CheckOwner(key, reference));
    if (!key.starts_with(kStatePrefix) || !key.ends_with(kScaleSuffix)) {
      return {};
    }
    key.remove_suffix(kScaleSuffix.size());
    return CheckOwner(key, reference);
  }

  Status CheckOwner(std::string_view key, int32_t reference) const {
    const auto parts = ParseOwnedKey(key);
    if (!parts) return {};
    const auto owner = references_.find(std::string(parts->fqn));
    if (owner == references_.end()) return {};
    const Model::Param& param = ParamOf(owner->second);
    if (!param.trainable) return {};
    // In a group, any name may be a key, because core/optim decides which
    // hyperparameters exist.
    if (!parts->in_group && !HasState(param, parts->name)) return {};
    return InvalidArgument("the parameter ", Quoted(reference),
                           " has the key that checkpoints ",
                           "and state dicts have for ", QuoteName(parts->name),
                           " of the parameter ", Quoted(owner->second),
                           "; rename a module or a parameter");
  }

  bool HasState(const Model::Param& param, std::string_view name) const {
    // Counts of steps are stored beside states in state dicts.
    if (name == kMasterState || name == kStepName) return true;
    for (const StateTensor& state :
         options_.groups[static_cast<size_t>(param.group)].states) {
      if (state.name == name) return true;
    }
    return false;
  }

  const Model::Param& ParamOf(int32_t reference) const {
    const auto param =
        model_.references()[static_cast<size_t>(reference)].param;
    return model_.params()[static_cast<size_t>(param)];
  }

  std::string Quoted(int32_t reference) const {
    return QuoteName(model_.ReferenceFqn(reference));
  }

  const Model& model_;
  const PlanOptions& options_;
  // By key. Not a hash table: an adversary may have chosen names that collide.
  std::map<std::string, int32_t> references_;
};

}  // namespace

bool KeysMayCollide(std::string_view module_name) {
  constexpr std::string_view kOurs[] = {kStatePrefix, kGroupPrefix,
                                        kLossScaleKey, kGoodStepsKey};
  const size_t size = module_name.size();
  const auto is_first_component = [&](std::string_view ours) {
    return size < ours.size() && ours[size] == '.' &&
           ours.starts_with(module_name);
  };
  return IsWrapperName(module_name) ||
         std::any_of(std::begin(kOurs), std::end(kOurs), is_first_component);
}

Status CheckKeys(const Model& model, const PlanOptions& options) {
  return Keys(model, options).Check();
}

}  // namespace shard
