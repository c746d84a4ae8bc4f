// SPDX-License-Identifier: Apache-2.0

#include "core/partition/manual.h"

#include <cstddef>

namespace shard {

StatusOr<Assignment> PartitionManual(
    const std::vector<std::vector<int32_t>>& params_per_rank,
    int32_t param_count, int world_size) {
  if (world_size < 1) {
    return InvalidArgument("world size ", world_size, " is below 1");
  }
  if (param_count < 0) {
    return InvalidArgument("the parameter count ", param_count, " is negative");
  }
  if (params_per_rank.size() != static_cast<size_t>(world_size)) {
    return InvalidArgument("a manual partition needs one list per rank: got ",
                           params_per_rank.size(), " for world size ",
                           world_size);
  }
  Assignment assignment;
  assignment.owners.assign(static_cast<size_t>(param_count), -1);
  for (int32_t rank = 0; rank < world_size; ++rank) {
    for (const int32_t param : params_per_rank[static_cast<size_t>(rank)]) {
      if (param < 0 || param >= param_count) {
        return InvalidArgument("rank ", rank, " is given parameter ", param,
                               ", but there are ", param_count);
      }
      int32_t& owner = assignment.owners[static_cast<size_t>(param)];
      if (owner != -1) {
        return InvalidArgument("parameter ", param, " is given to rank ", owner,
                               " and to rank ", rank);
      }
      owner = rank;
      assignment.order.push_back(param);
    }
  }
  return assignment;
}

}  // namespace shard
