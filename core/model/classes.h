// SPDX-License-Identifier: Apache-2.0
//
// Class names in a host's options: whether the model has them at all.

#ifndef SHARD_CORE_MODEL_CLASSES_H_
#define SHARD_CORE_MODEL_CLASSES_H_

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/model.h"

namespace shard {

// Class names to look up, in O(log names).
class ClassSet {
 public:
  // None.
  ClassSet() = default;
  // Refers to `names`, which must outlive the set.
  explicit ClassSet(const std::vector<std::string>& names);

  bool empty() const { return sorted_.empty(); }
  bool Contains(std::string_view name) const;

 private:
  std::vector<std::string_view> sorted_;
};

// Whether any module of the model is of this class. O(modules).
bool HasClass(const Model& model, std::string_view class_name);

// An error for a policy `class` of whose classes the model has none: its names
// were mistyped. A policy `size` may well find nothing. `wrap`: what
// WrapPolicy::Parse accepts.
Status CheckWrapClasses(const Model& model, std::string_view wrap);

}  // namespace shard

#endif  // SHARD_CORE_MODEL_CLASSES_H_
