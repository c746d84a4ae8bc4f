// SPDX-License-Identifier: Apache-2.0
//
// Manual partition: the host lists what every rank owns.

#ifndef SHARD_CORE_PARTITION_MANUAL_H_
#define SHARD_CORE_PARTITION_MANUAL_H_

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/partition/assignment.h"

namespace shard {

// One list of parameters per rank, of any group, counted across groups;
// parameters in no list have owner -1 (frozen ones need none). Errors, with the
// value: world_size < 1, a number of lists that is not world_size, a parameter
// outside 0..param_count-1, one that stands in the lists twice.
StatusOr<Assignment> PartitionManual(
    const std::vector<std::vector<int32_t>>& params_per_rank,
    int32_t param_count, int world_size);

}  // namespace shard

#endif  // SHARD_CORE_PARTITION_MANUAL_H_
