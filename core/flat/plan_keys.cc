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
      SHARD_RETURN_IF_ERROR(
          Add(model_.ReferenceFqn(reference), {.reference = reference}));
    }
    for (const HostTensorId id : model_.WalkHostTensors()) {
      if (!model_.host_tensors()[static_cast<size_t>(id)].persistent) continue;
      SHARD_RETURN_IF_ERROR(Add(model_.HostTensorFqn(id), {.host_tensor = id}));
    }
    for (const auto& [key, tensor] : tensors_) {
      SHARD_RETURN_IF_ERROR(CheckKey(key, tensor));
    }
    return {};
  }

 private:
  // A tensor that has a key: a name of a parameter, or a host tensor.
  struct Tensor {
    int32_t reference = -1;
    HostTensorId host_tensor = -1;
  };

  Status Add(const std::string& fqn, const Tensor& tensor) {
    const auto [at, is_new] = tensors_.emplace(CleanTensorName(fqn), tensor);
    if (is_new) return {};
    return InvalidArgument(
        "the ", Described(at->second), " and the ", Described(tensor),
        " both have the key ", QuoteName(at->first),
        " in checkpoints, which leave out what wrappers add to names; rename "
        "one of them or a module");
  }

  Status CheckKey(std::string_view key, const Tensor& tensor) const {
    if (key == kLossScaleKey || key == kGoodStepsKey) {
      return InvalidArgument(
          "the ", Described(tensor), " has the key ", QuoteName(key),
          ", which checkpoints and state dicts have for a number of the run; "
          "rename it or a module");
    }
    SHARD_RETURN_IF_ERROR(CheckOwner(key, tensor));
    if (!key.starts_with(kStatePrefix) || !key.ends_with(kScaleSuffix)) {
      return {};
    }
    key.remove_suffix(kScaleSuffix.size());
    return CheckOwner(key, tensor);
  }

  Status CheckOwner(std::string_view key, const Tensor& tensor) const {
    const auto parts = ParseOwnedKey(key);
    if (!parts) return {};
    const auto owner = tensors_.find(std::string(parts->fqn));
    if (owner == tensors_.end() || owner->second.reference < 0) return {};
    const Model::Param& param = ParamOf(owner->second.reference);
    if (!param.trainable) return {};
    // In a group, any name may be a key, because core/optim decides which
    // hyperparameters exist.
    if (!parts->in_group && !HasState(param, parts->name)) return {};
    return InvalidArgument(
        "the ", Described(tensor), " has the key that checkpoints ",
        "and state dicts have for ", QuoteName(parts->name), " of the ",
        Described(owner->second), "; rename one of them or a module");
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

  std::string Described(const Tensor& tensor) const {
    if (tensor.reference < 0) {
      return StrCat("buffer ",
                    QuoteName(model_.HostTensorFqn(tensor.host_tensor)));
    }
    return StrCat("parameter ",
                  QuoteName(model_.ReferenceFqn(tensor.reference)));
  }

  const Model& model_;
  const PlanOptions& options_;
  // By key. Not a hash table: an adversary may have chosen names that collide.
  std::map<std::string, Tensor> tensors_;
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
