// SPDX-License-Identifier: Apache-2.0
//
// Roster: the hosts that have come to a rendezvous, and their ranks. It decides
// whether they are the job that was asked for; it has no socket and no clock.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_ROSTER_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_ROSTER_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/comm/network/helper/address.h"

namespace shard::network {

// A host of a complete job. Hosts are in the order of their ranks.
struct HostEntry {
  std::string name;
  SocketAddress address;  // Where its helper listens for other hosts.
  int first_rank;
  int ranks;
};

class Roster {
 public:
  // `most_hosts`: those that a job may have.
  Roster(int world_size, int most_hosts);

  // Adds a host without ranks. `host` is the caller's number of it, unused so
  // far.
  void AddHost(uint64_t host, std::string name, const SocketAddress& address);
  // Adds ranks to a host. `world_size` is what these ranks were told. The error
  // is that of the whole job: a rank out of range, one that is there already,
  // or another world size.
  Status AddRanks(uint64_t host, std::span<const int32_t> ranks,
                  int world_size);
  // Removes a host. Returns kRankLost for one that had ranks: the job cannot
  // become complete any more.
  Status RemoveHost(uint64_t host);

  // Returns the number of ranks that have come.
  size_t come() const { return come_; }
  size_t hosts() const { return hosts_.size(); }
  bool whole() const { return come_ == owners_.size(); }
  int world_size() const { return static_cast<int>(owners_.size()); }
  bool has_ranks(uint64_t host) const {
    return hosts_.at(host).first_rank >= 0;
  }
  // Returns the lowest rank of a host; -1 while it has none.
  int first_rank(uint64_t host) const { return hosts_.at(host).first_rank; }
  const std::string& name(uint64_t host) const { return hosts_.at(host).name; }

  // Returns the hosts that have ranks, and sets `*numbers` to the callers'
  // numbers of them. An error when there are too many, or the ranks of a host
  // are not contiguous. Too many are an error here and not when they come: once
  // all have come, each is connected and is told. REQUIRES: whole().
  StatusOr<std::vector<HostEntry>> MakeTable(
      std::vector<uint64_t>* numbers) const;

  // Returns the error of a rendezvous whose time is over, which names the ranks
  // that are missing. `where` is the rendezvous point.
  Status MissingRanks(std::string_view where, double seconds) const;

 private:
  struct Host {
    std::string name;
    SocketAddress address;
    int first_rank = -1;
    int ranks = 0;
  };

  std::string Describe(uint64_t host) const;

  std::map<uint64_t, Host> hosts_;
  std::vector<uint64_t> owners_;  // By rank; kNobody for ranks to come.
  const int most_hosts_;
  int with_ranks_ = 0;  // Hosts.
  size_t come_ = 0;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_ROSTER_H_
