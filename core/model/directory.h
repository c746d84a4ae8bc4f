// SPDX-License-Identifier: Apache-2.0
//
// ModelDirectory: the modules of a model and the names of its parameters,
// numbered in module-walk order, for callers that ask for them one by one. A
// model itself numbers them in the order of adding.
//
// Names of ignored parameters and names in ignored modules are left out; the
// modules themselves are listed. The model must not change afterwards; a
// ModelDirectory copies nothing but numbers from it.
//
// Immutable once made. O(modules + names) to make; 24 bytes per module and 8
// per name.

#ifndef SHARD_CORE_MODEL_DIRECTORY_H_
#define SHARD_CORE_MODEL_DIRECTORY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/model/model.h"

namespace shard {

class ModelDirectory {
 public:
  struct Module {
    ModuleId id;
    int32_t depth;  // 0 for the root.
    // The names in this module: [first_name, first_name + num_names) of
    // names().
    int32_t first_name;
    int32_t num_names;
    bool ignored;  // The module, or one around it, is ignored.
  };

  explicit ModelDirectory(const Model& model);

  // Returns the modules in pre-order, the root first.
  const std::vector<Module>& modules() const { return modules_; }
  // Returns the names, as indices into Model::references(), in the order of
  // Model::Walk.
  const std::vector<int32_t>& names() const { return names_; }
  // Returns the names of one parameter as ascending indices into names(): the
  // primary name, then its aliases. Empty when the parameter is ignored.
  std::span<const int32_t> NamesOf(ParamId param) const;

 private:
  std::vector<Module> modules_;
  std::vector<int32_t> names_;
  // The entries of parameter p are by_param_[begins_[p]] to by_param_[begins_[p
  // + 1]].
  std::vector<int32_t> begins_;
  std::vector<int32_t> by_param_;
};

}  // namespace shard

#endif  // SHARD_CORE_MODEL_DIRECTORY_H_
