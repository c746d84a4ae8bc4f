// SPDX-License-Identifier: Apache-2.0
//
// PeerWaits: what the host and the kernels of one rank tell each other about
// kernels that wait for those of other ranks (kernels/cuda/peers.h), in memory
// of the host that both reach.

#ifndef SHARD_CORE_DEVICE_PEER_WAITS_H_
#define SHARD_CORE_DEVICE_PEER_WAITS_H_

#include <cstdint>

namespace shard {

struct PeerWaits {
  // Written by the host: not 0 once no kernel may wait for other ranks, nor use
  // their memory.
  uint32_t ended;
  // Written by kernels: the number of the last meeting that one has begun, and
  // of the last one that is over. A kernel that has begun one looks at `ended`
  // afterwards.
  uint64_t begun;
  uint64_t over;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_PEER_WAITS_H_
