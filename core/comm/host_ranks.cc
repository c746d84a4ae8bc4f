// SPDX-License-Identifier: Apache-2.0

#include "core/comm/host_ranks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace shard {

StatusOr<HostRanks> HostRanks::Gather(Communicator* comm, std::string_view what,
                                      const Deadline& deadline) {
  const int first = comm->rank() - comm->local_rank();
  std::vector<int> firsts(static_cast<size_t>(comm->world_size()));
  SHARD_RETURN_IF_ERROR(
      comm->AllGather(what, &first, sizeof(first), firsts.data(), deadline));
  return HostRanks(std::move(firsts));
}

int HostRanks::CountOf(const RankSet& set) const {
  int hosts = 0;
  int last = -1;
  for (int i = 0; i < set.count; ++i) {
    const int first = firsts_[static_cast<size_t>(set.rank(i))];
    if (first != last) ++hosts;
    last = first;
  }
  return hosts;
}

int HostRanks::MostOf(const RankSet& set) const {
  const auto ranks = static_cast<int>(firsts_.size());
  int most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const RankSet of = RankSet::Of(rank, set.stride, set.count);
    if (of.first == rank) most = std::max(most, CountOf(of));
  }
  return most;
}

}  // namespace shard
