// SPDX-License-Identifier: Apache-2.0
//
// The fully qualified names of a model, and the order in which it is walked.

#include <limits>

#include "core/base/strings.h"
#include "core/model/model.h"
#include "core/model/walk.h"

namespace shard {

std::string Model::ModuleFqn(ModuleId module) const {
  std::vector<ModuleId> path;
  for (ModuleId at = module; at != kRootModule;
       at = modules_[static_cast<size_t>(at)].parent) {
    path.push_back(at);
  }
  std::string fqn;
  for (size_t i = path.size(); i > 0; --i) {
    StrAppend(&fqn, fqn.empty() ? "" : ".",
              modules_[static_cast<size_t>(path[i - 1])].name);
  }
  return fqn;
}

std::string Model::ReferenceFqn(int32_t reference) const {
  const Reference& ref = references_[static_cast<size_t>(reference)];
  return Path(ref.module, ref.name);
}

std::string Model::HostTensorFqn(HostTensorId id) const {
  const HostTensor& tensor = host_tensors_[static_cast<size_t>(id)];
  return Path(tensor.module, tensor.name);
}

std::string Model::Path(ModuleId module, std::string_view name) const {
  std::string fqn = ModuleFqn(module);
  StrAppend(&fqn, fqn.empty() ? "" : ".", name);
  return fqn;
}

std::vector<HostTensorId> Model::WalkHostTensors() const {
  std::vector<HostTensorId> order;
  if (host_tensors_.empty()) return order;
  order.reserve(host_tensors_.size());
  WalkModel(
      *this,
      [&](ModuleId id, int) {
        const Module& module = modules_[static_cast<size_t>(id)];
        if (module.ignored) return false;
        order.insert(order.end(), module.host_tensors.begin(),
                     module.host_tensors.end());
        return true;
      },
      [](int32_t) {});
  return order;
}

std::vector<int32_t> Model::Walk() const {
  std::vector<int32_t> order;
  order.reserve(references_.size());
  WalkModel(
      *this,
      [&](ModuleId module, int) {
        return !modules_[static_cast<size_t>(module)].ignored;
      },
      [&](int32_t reference) {
        const Reference& ref = references_[static_cast<size_t>(reference)];
        if (params_[static_cast<size_t>(ref.param)].ignored) return;
        order.push_back(reference);
      });
  return order;
}

std::vector<std::string> Model::ParamFqns() const {
  std::vector<std::string> fqns(params_.size());
  // True for parameters named in Walk().
  std::vector<bool> named(params_.size(), false);
  // The current path, and its length at each depth, so that a module costs the
  // length of its own name and not that of its path.
  std::string path;
  std::vector<size_t> lengths;
  int ignored_below = std::numeric_limits<int>::max();
  WalkModel(
      *this,
      [&](ModuleId id, int depth) {
        const Module& module = modules_[static_cast<size_t>(id)];
        lengths.resize(static_cast<size_t>(depth));
        path.resize(lengths.empty() ? 0 : lengths.back());
        if (depth > 0) StrAppend(&path, module.name, ".");
        lengths.push_back(path.size());
        if (depth <= ignored_below) {
          ignored_below =
              module.ignored ? depth : std::numeric_limits<int>::max();
        }
        return true;
      },
      [&](int32_t reference) {
        const Reference& ref = references_[static_cast<size_t>(reference)];
        const auto param = static_cast<size_t>(ref.param);
        const bool ignored = ignored_below != std::numeric_limits<int>::max();
        if (named[param] || (ignored && !fqns[param].empty())) return;
        fqns[param] = StrCat(path, ref.name);
        named[param] = !ignored;
      });
  return fqns;
}

}  // namespace shard
