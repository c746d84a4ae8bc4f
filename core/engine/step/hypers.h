// SPDX-License-Identifier: Apache-2.0
//
// Hypers: the optimizers of all param groups with their current values. Every
// rank makes the same changes before the next step, whose agreement compares
// fingerprints.
//
// Thread-compatible.

#ifndef SHARD_CORE_ENGINE_STEP_HYPERS_H_
#define SHARD_CORE_ENGINE_STEP_HYPERS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/facts.h"
#include "core/base/status.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/optim/optimizer.h"

namespace shard {

// Stands for all groups where a call takes a GroupId.
inline constexpr GroupId kAllGroups = -1;

class Hypers {
 public:
  // Parses the optimizer texts of the plan.
  static StatusOr<Hypers> Create(const Plan& plan);

  const std::vector<Optimizer>& optimizers() const { return optimizers_; }

  // Set and get a hyperparameter. A change for kAllGroups is made in every
  // group that has the key, or, on an error, in none. Errors: a group that does
  // not exist, and the errors of Optimizer.
  Status Set(GroupId group, std::string_view key, double value);
  StatusOr<double> Get(GroupId group, std::string_view key) const;
  // Returns the group's optimizer with all values, in its canonical text form.
  StatusOr<std::string> Text(GroupId group) const;
  // Returns the texts of all groups, for messages.
  std::string ToString() const;
  // Writes the facts that ranks agree on: the current values of all groups.
  void Describe(FactSink* sink) const;

  // Get and set all values, group after group; their number is the same in all
  // engines of one plan.
  std::vector<double> Values() const;
  void SetValues(const double* values);

  // Takes the values of an optimizer text, such as a checkpoint has. After an
  // error the old values stay: a text that cannot be parsed, or one of another
  // optimizer or of other states.
  Status Restore(GroupId group, std::string_view text);

  // Returns a fingerprint of all values in 52 bits, which a double holds.
  double Fingerprint52() const;

 private:
  Status CheckGroup(GroupId group) const;

  std::vector<Optimizer> optimizers_;  // By group.
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_HYPERS_H_
