// SPDX-License-Identifier: Apache-2.0
//
// Finds where the kernels of one rank reach memory of the others: in windows
// (windows.h).

#ifndef SHARD_CORE_COLLECTIVES_NCCL_PEER_MEMORY_H_
#define SHARD_CORE_COLLECTIVES_NCCL_PEER_MEMORY_H_

#include <cstddef>
#include <span>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/collectives/collectives.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/collectives/nccl/registration.h"
#include "core/collectives/nccl/watchdog.h"
#include "core/comm/communicator.h"

namespace shard::nccl {

// As Collectives::FindPeerMemory. An error of windows is reported to
// `watchdog`: NCCL may wait for other ranks, or has been aborted.
StatusOr<PeerMemory> FindPeerMemory(Communicator* control, RankComms* comms,
                                    Watchdog* watchdog,
                                    const Registration& registration,
                                    std::span<const DeviceMemory* const> memory,
                                    const Deadline& deadline);

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_PEER_MEMORY_H_
