// SPDX-License-Identifier: Apache-2.0

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
  // Makes an empty set.
  ClassSet() = default;
  // Makes a set of `names`, which must outlive the set.
  explicit ClassSet(const std::vector<std::string>& names);
  // Returns the classes of a model's modules. Refers to `model`, which must
  // outlive the set. O(modules log classes).
  static ClassSet Of(const Model& model);

  bool empty() const { return sorted_.empty(); }
  bool Contains(std::string_view name) const;
  // Returns kInvalidArgument for a name of `names` that is not in this set, the
  // classes of a model: the name was mistyped. `option` is what names them, for
  // the message.
  Status CheckContains(std::string_view option,
                       const std::vector<std::string>& names) const;

 private:
  std::vector<std::string_view> sorted_;
};

}  // namespace shard

#endif  // SHARD_CORE_MODEL_CLASSES_H_
