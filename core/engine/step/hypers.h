// SPDX-License-Identifier: Apache-2.0
//
// Hypers: the optimizers of all param groups with the values they have now.
// Every rank changes the same before the next step, whose meeting compares
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

// All groups, where a GroupId is asked for.
inline constexpr GroupId kAllGroups = -1;

class Hypers {
 public:
  // From the plan's texts.
  static StatusOr<Hypers> Create(const Plan& plan);

  const std::vector<Optimizer>& optimizers() const { return optimizers_; }

  // A change for kAllGroups is made in every group that has the key, or, on an
  // error, in none. Errors: a group that does not exist, and those of
  // Optimizer.
  Status Set(GroupId group, std::string_view key, double value);
  StatusOr<double> Get(GroupId group, std::string_view key) const;
  // The group's optimizer with all values, in its canonical text form.
  StatusOr<std::string> Text(GroupId group) const;
  // The same of all groups, for messages.
  std::string ToString() const;
  // Tells what ranks agree on: the values that all groups have now.
  void Describe(FactSink* sink) const;

  // All of them, group after group; as many in all engines of one plan.
  std::vector<double> Values() const;
  void SetValues(const double* values);

  // The values of an optimizer text, such as a checkpoint has. Errors leave the
  // old ones: a text that cannot be read, or is one of another optimizer or of
  // other states.
  Status Restore(GroupId group, std::string_view text);

  // 52 bits over all values, which a double holds.
  double Fingerprint52() const;

 private:
  Status CheckGroup(GroupId group) const;

  std::vector<Optimizer> optimizers_;  // By group.
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_HYPERS_H_
