// SPDX-License-Identifier: Apache-2.0
//
// The part of the checks that is about keys.

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/base/strings.h"
#include "core/flat/plan_checks.h"
#include "core/model/names.h"

namespace shard {

namespace {

// Whether a key can be anything but the FQN, or begin as that of a state: only
// then can two collide, as the FQNs of a model differ.
bool MayCollide(const Model& model) {
  for (const Model::Module& module : model.modules()) {
    const std::string dotted = StrCat(module.name, ".");
    if (IsWrapperName(module.name) || dotted == kStatePrefix ||
        dotted == kGroupPrefix) {
      return true;
    }
  }
  return false;
}

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
    std::string_view rest = key;
    if (key.starts_with(kGroupPrefix)) {
      rest.remove_prefix(kGroupPrefix.size());
      // Any name: which hyperparameters there are is for core/optim to say.
      return CheckOwner(rest, reference, true);
    }
    if (!key.starts_with(kStatePrefix)) return {};
    rest.remove_prefix(kStatePrefix.size());
    SHARD_RETURN_IF_ERROR(CheckOwner(rest, reference, false));
    if (!rest.ends_with(kScaleSuffix)) return {};
    rest.remove_suffix(kScaleSuffix.size());
    return CheckOwner(rest, reference, false);
  }

  // `rest`: a key without its prefix, "layer.weight.exp_avg".
  Status CheckOwner(std::string_view rest, int32_t reference,
                    bool is_hyper) const {
    const size_t dot = rest.rfind('.');
    if (dot == std::string_view::npos) return {};
    const auto owner = references_.find(std::string(rest.substr(0, dot)));
    const std::string_view name = rest.substr(dot + 1);
    if (owner == references_.end()) return {};
    const Model::Param& param = ParamOf(owner->second);
    if (!param.trainable) return {};
    if (!is_hyper && !HasState(param, name)) return {};
    return InvalidArgument(
        "the parameter ", Quoted(reference), " has the key that checkpoints ",
        "and state dicts have for ", QuoteName(name), " of the parameter ",
        Quoted(owner->second), "; rename a module or a parameter");
  }

  bool HasState(const Model::Param& param, std::string_view name) const {
    // Counts of steps stand beside states in state dicts.
    if (name == kMasterState || name == "step") return true;
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
  std::unordered_map<std::string, int32_t> references_;  // By key.
};

}  // namespace

Status CheckKeys(const Model& model, const PlanOptions& options) {
  if (!MayCollide(model)) return {};
  return Keys(model, options).Check();
}

}  // namespace shard
