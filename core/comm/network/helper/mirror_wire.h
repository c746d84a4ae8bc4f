// SPDX-License-Identifier: Apache-2.0
//
// The messages between the mirrors of hosts, as plain structs: hosts of one
// job have the same version of the library, which their handshake compares, and
// all of them are little-endian.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_MIRROR_WIRE_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_MIRROR_WIRE_H_

#include <cstdint>

#include "core/comm/direct/control_block.h"
#include "core/comm/host_waits.h"

namespace shard::network {

enum class MirrorKind : uint32_t {
  kRound = 1,
  kFailure = 2,
  kPresence = 3,
  kWaits = 4,
};

// A block is named by the hash of its key.

// A round that `rank` has entered. The payload of its cell follows, or the
// Shipments for the host that receives this.
struct RoundMessage {
  MirrorKind kind;
  int32_t rank;
  uint64_t block;
  uint64_t round;
  direct::Fingerprint call;
};

// The error with which `rank` ended a block after `completed` rounds.
struct FailureMessage {
  MirrorKind kind;
  int32_t rank;
  uint64_t block;
  uint64_t completed;
  direct::FailureRecord record;
};

struct PresenceMessage {
  MirrorKind kind;
  int32_t rank;
  uint32_t presence;  // direct::Presence
  int32_t failer;     // Who had failed the first block by then, or -1.
};

// The head of the waits of `rank`: a WaitMessage for each block follows.
struct WaitsMessage {
  MirrorKind kind;
  int32_t rank;
};

struct WaitMessage {
  uint64_t block;
  uint64_t awaited;
  uint64_t number;
  uint64_t until;
  uint64_t call[HostWait::kCallWords];
  uint64_t given;
  uint64_t done;

  bool operator==(const WaitMessage&) const = default;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_MIRROR_WIRE_H_
