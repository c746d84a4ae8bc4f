// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COMM_NETWORK_WORLD_H_
#define SHARD_CORE_COMM_NETWORK_WORLD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/network/local_wire.h"

namespace shard::network {

struct HostRanks {
  std::string name;
  int first_rank = 0;
  int ranks = 0;
};

// The ranks of all hosts, once all have met.
struct World {
  int world_size = 0;
  std::vector<HostRanks> hosts;  // In the order of their ranks.
  // The ranks of this host.
  int first_rank = 0;
  int ranks = 0;
};

// The contents of a region: see WireLayout.
struct RegionLayout {
  RegionKind kind = RegionKind::kTensors;
  uint64_t cells = 0;
  uint64_t payload_bytes = 0;
  std::string block;

  bool operator==(const RegionLayout&) const = default;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_WORLD_H_
