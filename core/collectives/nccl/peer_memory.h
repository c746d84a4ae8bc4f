// SPDX-License-Identifier: Apache-2.0
//
// Finds where the kernels of one rank reach memory of the others, over NVLink
// or PCIe: by windows that all ranks register with NCCL.

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
#include "core/comm/notices.h"

namespace shard::nccl {

// As Collectives::FindPeerMemory. `notices` are those with which `comms` were
// opened. An error of NCCL's is reported to `watchdog`, for the other ranks
// wait in NCCL.
StatusOr<PeerMemory> FindPeerMemory(Communicator* control,
                                    const Notices& notices, RankComms* comms,
                                    Watchdog* watchdog,
                                    const Registration& registration,
                                    std::span<const DeviceMemory* const> memory,
                                    const Deadline& deadline);

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_PEER_MEMORY_H_
