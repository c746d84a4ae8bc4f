// SPDX-License-Identifier: Apache-2.0
//
// ModelDirectory: the modules of a model and the names of its parameters,
// numbered in module-walk order, for those who ask for one after the other. A
// model itself knows them in the order in which they were added.
//
// Names of ignored parameters and in ignored modules are left out; the modules
// themselves are there. The model must not change afterwards; a ModelDirectory
// holds nothing of it but numbers.
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
    int32_t depth;       // 0: the root.
    int32_t first_name;  // Of those in it: [first_name, first_name+num_names)
    int32_t num_names;   // of names().
    bool ignored;        // It, or a module around it.
  };

  explicit ModelDirectory(const Model& model);

  // Pre-order, the root first.
  const std::vector<Module>& modules() const { return modules_; }
  // Indices into Model::references(), as Model::Walk.
  const std::vector<int32_t>& names() const { return names_; }
  // The names of one parameter, as ascending indices into names(): the primary
  // one, then its aliases. None when it is ignored.
  std::span<const int32_t> NamesOf(ParamId param) const;

 private:
  std::vector<Module> modules_;
  std::vector<int32_t> names_;
  // Of parameter p: by_param_[begins_[p]] to by_param_[begins_[p + 1]].
  std::vector<int32_t> begins_;
  std::vector<int32_t> by_param_;
};

}  // namespace shard

#endif  // SHARD_CORE_MODEL_DIRECTORY_H_
