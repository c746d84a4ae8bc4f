// SPDX-License-Identifier: Apache-2.0
//
// Shipments: the parts of a rank's staging region that other hosts need, as the
// rank writes them into the payload of a round. A mirror
// (core/comm/network/helper/mirror.h) sends them there, to the same place of
// the staging memory, before the rank is seen to have entered the round.

#ifndef SHARD_CORE_COMM_DIRECT_SHIPMENTS_H_
#define SHARD_CORE_COMM_DIRECT_SHIPMENTS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/comm/direct/control_block.h"

namespace shard::direct {

// Bytes of the staging memory for the hosts first_host, ..., end_host - 1, but
// for the rank's own.
struct Shipment {
  uint64_t offset;
  uint64_t bytes;
  int32_t first_host;
  int32_t end_host;
};

// The payload of a round of a tensor collective.
struct Shipments {
  static constexpr size_t kMost =
      (kPayloadBytes - 2 * sizeof(uint32_t)) / sizeof(Shipment);

  // The parts of a slot in a reduce-scatter. One that holds no data stands for
  // zeros.
  enum Part : uint32_t {
    kGradients = 1,
    kSums = 2,  // Of a chain of hosts.
  };

  // The Parts of the rank's slot that hold data.
  uint32_t holds = 0;
  uint32_t count = 0;
  std::array<Shipment, kMost> list;

  // Returns the bytes in use.
  size_t bytes() const {
    return offsetof(Shipments, list) + count * sizeof(Shipment);
  }

  // Returns the bytes that leave `host`, the host of the rank that ships: each
  // shipment counts once for each host that it goes to.
  uint64_t BytesFrom(int host) const {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; ++i) {
      const Shipment& each = list[i];
      const bool is_among = each.first_host <= host && host < each.end_host;
      const int hosts = each.end_host - each.first_host - (is_among ? 1 : 0);
      bytes += each.bytes * static_cast<uint64_t>(hosts);
    }
    return bytes;
  }

  void Clear() { holds = count = 0; }
  // Returns false when the list is full.
  [[nodiscard]] bool Add(const Shipment& shipment) {
    if (count == kMost) return false;
    list[count++] = shipment;
    return true;
  }
};

// The most hosts of a group: a rank can name each of the others in a round. A
// job of more is refused on all of them once they have come
// (core/comm/network/helper/roster.h).
inline constexpr int kMaxHosts = static_cast<int>(Shipments::kMost) + 1;

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_SHIPMENTS_H_
