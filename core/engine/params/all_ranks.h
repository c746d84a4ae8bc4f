// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_PARAMS_ALL_RANKS_H_
#define SHARD_CORE_ENGINE_PARAMS_ALL_RANKS_H_

#include "core/base/status.h"

namespace shard {

// Stands for all ranks where a call takes the rank of a receiver.
inline constexpr int kAllRanks = -1;

// Returns kInvalidArgument unless `rank` is a rank, or kAllRanks.
inline Status CheckRankOrAll(int rank, int world_size) {
  if (rank >= kAllRanks && rank < world_size) return Status();
  return InvalidArgument("rank ", rank, " is outside 0 to ", world_size - 1,
                         " (-1: all)");
}

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_ALL_RANKS_H_
