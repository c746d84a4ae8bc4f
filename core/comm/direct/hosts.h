// SPDX-License-Identifier: Apache-2.0
//
// Hosts: which ranks share a host. Those of a host are neighbours.

#ifndef SHARD_CORE_COMM_DIRECT_HOSTS_H_
#define SHARD_CORE_COMM_DIRECT_HOSTS_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "core/comm/rank_set.h"

namespace shard::direct {

class Hosts {
 public:
  // All ranks on one host.
  explicit Hosts(int world_size) : begins_({0, world_size}) {}
  // `begins`: the first rank of each host, and at the end the number of ranks.
  // REQUIRES: begins with 0 and ascends.
  explicit Hosts(std::vector<int> begins) : begins_(std::move(begins)) {}

  int count() const { return static_cast<int>(begins_.size()) - 1; }
  int world_size() const { return begins_.back(); }

  // The ranks of `host` are [begin(host), end(host)).
  int begin(int host) const { return begins_[static_cast<size_t>(host)]; }
  int end(int host) const { return begins_[static_cast<size_t>(host) + 1]; }
  int size(int host) const { return end(host) - begin(host); }

  // REQUIRES: 0 <= rank < world_size().
  int HostOf(int rank) const {
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), rank);
    return static_cast<int>(after - begins_.begin()) - 1;
  }

 private:
  std::vector<int> begins_;
};

// Returns the indices [begin, end) in `set` of its ranks on `host`.
inline std::pair<int, int> IndicesOn(const RankSet& set, const Hosts& hosts,
                                     int host) {
  // The first index of a rank that is not below `rank`.
  const auto from = [&set](int rank) {
    const int steps = (rank - set.first + set.stride - 1) / set.stride;
    return rank <= set.first ? 0 : std::min(steps, set.count);
  };
  return {from(hosts.begin(host)), from(hosts.end(host))};
}

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_HOSTS_H_
