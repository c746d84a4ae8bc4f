// SPDX-License-Identifier: Apache-2.0

#include "core/partition/assignment.h"

namespace shard {

std::vector<std::vector<std::vector<int32_t>>> ParamsPerRank(
    const Assignment& assignment, const std::vector<size_t>& group_sizes,
    int world_size) {
  std::vector<size_t> group_of;
  group_of.reserve(assignment.owners.size());
  for (size_t group = 0; group < group_sizes.size(); ++group) {
    group_of.insert(group_of.end(), group_sizes[group], group);
  }
  std::vector<std::vector<std::vector<int32_t>>> ranks(
      static_cast<size_t>(world_size),
      std::vector<std::vector<int32_t>>(group_sizes.size()));
  for (const int32_t param : assignment.order) {
    const auto index = static_cast<size_t>(param);
    const auto owner = static_cast<size_t>(assignment.owners[index]);
    ranks[owner][group_of[index]].push_back(param);
  }
  return ranks;
}

}  // namespace shard
