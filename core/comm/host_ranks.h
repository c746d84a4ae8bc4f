// SPDX-License-Identifier: Apache-2.0
//
// HostRanks: which ranks share a host, for what all ranks choose alike.

#ifndef SHARD_CORE_COMM_HOST_RANKS_H_
#define SHARD_CORE_COMM_HOST_RANKS_H_

#include <string_view>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/comm/rank_set.h"

namespace shard {

class HostRanks {
 public:
  // Describes no ranks.
  HostRanks() = default;
  // `firsts`: by rank, the first rank of its host. Those of a host are
  // neighbours.
  explicit HostRanks(std::vector<int> firsts) : firsts_(std::move(firsts)) {}

  // Asks all ranks. COLLECTIVE. The same on all of them.
  static StatusOr<HostRanks> Gather(Communicator* comm, std::string_view what,
                                    const Deadline& deadline);

  // Returns how many hosts the ranks of a set are on. REQUIRES: a set of these
  // ranks.
  int CountOf(const RankSet& set) const;
  // Returns the most of all sets into which the set's stride and count divide
  // the ranks, which is the same for each of them.
  int MostOf(const RankSet& set) const;

 private:
  std::vector<int> firsts_;
};

}  // namespace shard

#endif  // SHARD_CORE_COMM_HOST_RANKS_H_
