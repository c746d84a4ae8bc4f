// SPDX-License-Identifier: Apache-2.0
//
// HostChain: the order in which the hosts of a set of ranks make its sums,
// where a sum passes from host to host.
//
//   host 0          sums its ranks' gradients of a block, in rank order
//   host 1          adds those of its ranks to that partial sum, in rank order
//   ...
//   the last host   sends the sum to the host of the block's owner
//
// So a block crosses between hosts once per host, as a partial sum in fp32,
// however many ranks a host has and however narrow gradients are. Elements are
// added in the order of ranks, as where each rank's gradients cross: the bits
// are the same.
//
// The blocks that a host sums are dealt to its ranks: each sums a share of
// neighbors.
//
// A SumShape says which of both forms sends less. Pure functions: all ranks
// compute the same.

#ifndef SHARD_CORE_COMM_DIRECT_HOST_CHAIN_H_
#define SHARD_CORE_COMM_DIRECT_HOST_CHAIN_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/comm/direct/hosts.h"
#include "core/comm/rank_set.h"

namespace shard::direct {

// How gradients are summed that ranks of several hosts have.
enum class HostSums : int32_t {
  kFewestBytes,  // In the form in which the host that sends most sends less.
  kDirect,       // By the owner of a block, to whom each rank sends its own.
  kChain,        // From host to host.
};

// Returns "", "direct" or "chain".
std::string_view HostSumsName(HostSums sums);

// The blocks that pass between hosts in a reduce-scatter over all sets of a
// stride and a count.
struct SumShape {
  int hosts = 1;  // Of the set that is on most.
  // The blocks that one host sends, the one that sends most: gradients where
  // sums are direct, and sums in fp32 where they pass along a chain.
  int64_t direct_blocks = 0;
  int64_t chain_blocks = 0;
  // On a chain, the most blocks of one rank that it leaves other ranks of its
  // host to sum, and the most that it sums.
  int left_blocks = 0;
  int summed_blocks = 0;

  // Returns whether the host that sends most sends less on a chain, of
  // gradients whose elements have so many bytes. For H hosts of k ranks each
  // these are k (1 - 1/H) bytes for each byte of an element, and 4.
  bool ChainSendsLess(size_t element_bytes) const {
    return chain_blocks * static_cast<int64_t>(sizeof(float)) <
           direct_blocks * static_cast<int64_t>(element_bytes);
  }
  // Returns whether sums pass along a chain.
  bool UsesChain(HostSums sums, size_t element_bytes) const {
    if (hosts == 1 || sums == HostSums::kDirect) return false;
    return sums == HostSums::kChain || ChainSendsLess(element_bytes);
  }
};

// REQUIRES: stride and count divide the ranks of `hosts` into sets.
SumShape SumShapeOf(const Hosts& hosts, int stride, int count);

class HostChain {
 public:
  // A host of the set, and the indices [begin, end) in the set of its ranks.
  struct Stop {
    int host;
    int begin;
    int end;

    int ranks() const { return end - begin; }
  };
  // Blocks [begin, end), by the index of their owner.
  struct Share {
    int begin;
    int end;

    int size() const { return end - begin; }
    bool Contains(int block) const { return begin <= block && block < end; }
  };

  HostChain(const Hosts& hosts, const RankSet& set);

  int count() const { return static_cast<int>(stops_.size()); }
  // Returns the host that is `place`-th in the order of ranks.
  const Stop& at(int place) const { return stops_[static_cast<size_t>(place)]; }
  // Returns the place of the host with the rank of this index. REQUIRES: 0 <=
  // index < set.count.
  int PlaceOf(int index) const;

  // Returns the blocks that the rank of this index sums on its host.
  Share ShareOf(int index) const;
  // Returns the index of the rank that sums a block on the `place`-th host.
  int SummerOf(int place, int block) const;

 private:
  const int blocks_;
  std::vector<Stop> stops_;
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_HOST_CHAIN_H_
