// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/host_chain.h"

#include <algorithm>

namespace shard::direct {

namespace {

// Returns where the share of the `number`-th of `ranks` ranks begins.
int ShareBegin(int blocks, int number, int ranks) {
  return static_cast<int>(int64_t{blocks} * number / ranks);
}

}  // namespace

std::string_view HostSumsName(HostSums sums) {
  switch (sums) {
    case HostSums::kFewestBytes:
      return "";
    case HostSums::kDirect:
      return "direct";
    case HostSums::kChain:
      return "chain";
  }
  return "";
}

SumShape SumShapeOf(const Hosts& hosts, int stride, int count) {
  SumShape shape;
  std::vector<int64_t> direct(static_cast<size_t>(hosts.count()));
  std::vector<int64_t> chain(static_cast<size_t>(hosts.count()));
  for (int first = 0; first < hosts.world_size(); ++first) {
    if (RankSet::Of(first, stride, count).first != first) continue;
    const HostChain stops(hosts, {first, stride, count});
    shape.hosts = std::max(shape.hosts, stops.count());
    for (int place = 0; place < stops.count(); ++place) {
      const HostChain::Stop& stop = stops.at(place);
      const auto host = static_cast<size_t>(stop.host);
      const int others = count - stop.ranks();
      const bool is_last = place + 1 == stops.count();
      direct[host] += int64_t{stop.ranks()} * others;
      chain[host] += is_last ? others : count;
      shape.left_blocks =
          std::max(shape.left_blocks, count - count / stop.ranks());
      shape.summed_blocks = std::max(shape.summed_blocks,
                                     (count + stop.ranks() - 1) / stop.ranks());
    }
  }
  shape.direct_blocks = *std::max_element(direct.begin(), direct.end());
  shape.chain_blocks = *std::max_element(chain.begin(), chain.end());
  return shape;
}

HostChain::HostChain(const Hosts& hosts, const RankSet& set)
    : blocks_(set.count) {
  for (int index = 0; index < set.count;) {
    const int host = hosts.HostOf(set.rank(index));
    const int end = IndicesOn(set, hosts, host).second;
    stops_.push_back({host, index, end});
    index = end;
  }
}

int HostChain::PlaceOf(int index) const {
  const auto after = std::upper_bound(
      stops_.begin(), stops_.end(), index,
      [](int value, const Stop& stop) { return value < stop.begin; });
  return static_cast<int>(after - stops_.begin()) - 1;
}

HostChain::Share HostChain::ShareOf(int index) const {
  const Stop& stop = at(PlaceOf(index));
  const int number = index - stop.begin;
  return {ShareBegin(blocks_, number, stop.ranks()),
          ShareBegin(blocks_, number + 1, stop.ranks())};
}

int HostChain::SummerOf(int place, int block) const {
  const Stop& stop = at(place);
  // The number of the last share that begins at the block or before it.
  const int64_t after = (int64_t{block} + 1) * stop.ranks();
  return stop.begin + static_cast<int>((after - 1) / blocks_);
}

}  // namespace shard::direct
