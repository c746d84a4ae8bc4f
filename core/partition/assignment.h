// SPDX-License-Identifier: Apache-2.0
//
// Assignment: the result of a partitioner, in O(parameters) memory, independent
// of the number of ranks. Parameters are named by their position in the
// partitioner's input, counted across groups.

#ifndef SHARD_CORE_PARTITION_ASSIGNMENT_H_
#define SHARD_CORE_PARTITION_ASSIGNMENT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shard {

struct Assignment {
  // The rank that owns each parameter.
  std::vector<int32_t> owners;
  // All parameters, in the order in which they were assigned.
  std::vector<int32_t> order;
};

// Returns the parameters by [rank][group], in order of assignment; every rank
// has every group, maybe empty. `group_sizes` are the groups' parameter counts.
// For tests and hosts: O(ranks x groups), which no plan needs. REQUIRES:
// group_sizes sum to owners.size(); owners are below world_size.
std::vector<std::vector<std::vector<int32_t>>> ParamsPerRank(
    const Assignment& assignment, const std::vector<size_t>& group_sizes,
    int world_size);

}  // namespace shard

#endif  // SHARD_CORE_PARTITION_ASSIGNMENT_H_
