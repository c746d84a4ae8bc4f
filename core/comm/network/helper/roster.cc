// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/roster.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/base/strings.h"

namespace shard::network {

namespace {

constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();

// The most ranks that an error lists.
constexpr size_t kMostNamed = 32;

// Returns "[0, 1, 2]", or the first 32 and "...".
std::string FormatRanks(std::span<const int64_t> ranks) {
  if (ranks.size() <= kMostNamed) return FormatList(ranks);
  std::string text = FormatList(ranks.first(kMostNamed));
  text.pop_back();
  return text + ", ...]";
}

}  // namespace

Roster::Roster(int world_size, int most_hosts)
    : owners_(static_cast<size_t>(world_size), kNobody),
      most_hosts_(most_hosts) {}

void Roster::AddHost(uint64_t host, std::string name,
                     const SocketAddress& address) {
  hosts_[host] = {std::move(name), address};
}

std::string Roster::Describe(uint64_t number) const {
  const Host& host = hosts_.at(number);
  return StrCat(host.name, " (", host.address.HostText(), ")");
}

Status Roster::AddRanks(uint64_t number, std::span<const int32_t> ranks,
                        int world_size) {
  Host& host = hosts_.at(number);
  for (const int32_t rank : ranks) {
    if (world_size != this->world_size()) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("rank ", rank, " of host ", Describe(number),
                           " says world size ", world_size,
                           ", the master says ", this->world_size()),
                    rank);
    }
    if (rank < 0 || rank >= world_size) {
      return Status(
          StatusCode::kInvalidArgument,
          StrCat("host ", Describe(number), " has rank ", rank,
                 "; the ranks of ", world_size, " are 0 to ", world_size - 1),
          rank);
    }
    uint64_t& owner = owners_[static_cast<size_t>(rank)];
    if (owner != kNobody) {
      const std::string who =
          owner == number ? StrCat("two processes of host ", Describe(number))
                          : StrCat("the hosts ", Describe(owner), " and ",
                                   Describe(number));
      return Status(StatusCode::kAlreadyExists,
                    StrCat(who, " have both rank ", rank,
                           "; give each process a rank of its own"),
                    rank);
    }
    if (host.ranks == 0) ++with_ranks_;
    owner = number;
    ++come_;
    ++host.ranks;
    if (host.first_rank < 0 || rank < host.first_rank) host.first_rank = rank;
  }
  return Status();
}

Status Roster::RemoveHost(uint64_t number) {
  const auto host = hosts_.find(number);
  if (host == hosts_.end()) return Status();
  Status status;
  if (host->second.ranks > 0) {
    --with_ranks_;
    const int rank = host->second.first_rank;
    status = RankLost(rank, "host ", Describe(number), " with rank ", rank,
                      host->second.ranks == 1
                          ? ""
                          : StrCat(" and ", host->second.ranks - 1, " more"),
                      " left while the ranks met");
  }
  for (uint64_t& owner : owners_) {
    if (owner != number) continue;
    owner = kNobody;
    --come_;
  }
  hosts_.erase(host);
  return status;
}

StatusOr<std::vector<HostEntry>> Roster::MakeTable(
    std::vector<uint64_t>* numbers) const {
  if (with_ranks_ > most_hosts_) {
    return InvalidArgument("the ", owners_.size(), " ranks of this job are on ",
                           with_ranks_,
                           " hosts; libshard has room for at most ",
                           most_hosts_, " hosts: start more ranks on each");
  }
  std::vector<HostEntry> table;
  numbers->clear();
  for (size_t rank = 0; rank < owners_.size();) {
    const uint64_t owner = owners_[rank];
    const Host& host = hosts_.at(owner);
    if (host.first_rank != static_cast<int>(rank)) {
      const int previous = static_cast<int>(rank) - 1;
      return Status(
          StatusCode::kInvalidArgument,
          StrCat("the ranks of a host must be contiguous: host ",
                 Describe(owner), " has rank ", rank, " and rank ",
                 host.first_rank, ", but host ", Describe(numbers->back()),
                 " has rank ", previous,
                 "; let the launcher fill one host after the other (Slurm: "
                 "--distribution=block)"),
          static_cast<int>(rank));
    }
    int ranks = 0;
    while (rank < owners_.size() && owners_[rank] == owner) ++rank, ++ranks;
    table.push_back({host.name, host.address, host.first_rank, ranks});
    numbers->push_back(owner);
  }
  return table;
}

Status Roster::MissingRanks(std::string_view where, double seconds) const {
  std::vector<int64_t> missing;
  for (size_t rank = 0; rank < owners_.size(); ++rank) {
    if (owners_[rank] == kNobody) missing.push_back(static_cast<int64_t>(rank));
  }
  return Status(
      StatusCode::kDeadlineExceeded,
      StrCat(missing.size(), " of ", owners_.size(), " ranks did not come to ",
             where, " within ", std::round(seconds * 10) / 10, " s: missing ",
             FormatRanks(missing)),
      missing.empty() ? -1 : static_cast<int>(missing[0]));
}

}  // namespace shard::network
