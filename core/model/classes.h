// SPDX-License-Identifier: Apache-2.0
//
// Class names in a host's options: checks that the model has them.

#ifndef SHARD_CORE_MODEL_CLASSES_H_
#define SHARD_CORE_MODEL_CLASSES_H_

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/model.h"

namespace shard {

// A set of class names; a lookup takes O(log names).
class ClassSet {
 public:
  // The empty set.
  ClassSet() = default;
  // Refers to `names`, which must outlive the set.
  explicit ClassSet(const std::vector<std::string>& names);

  bool empty() const { return sorted_.empty(); }
  bool Contains(std::string_view name) const;

 private:
  std::vector<std::string_view> sorted_;
};

// Returns true when any module of the model is of this class. O(modules).
bool HasClass(const Model& model, std::string_view class_name);

// Returns an error when a policy `class` in `wrap` names classes of which the
// model has none: such names were mistyped. A policy `size` may well find
// nothing. `wrap` is a text that WrapPolicy::Parse accepts.
Status CheckWrapClasses(const Model& model, std::string_view wrap);

}  // namespace shard

#endif  // SHARD_CORE_MODEL_CLASSES_H_
