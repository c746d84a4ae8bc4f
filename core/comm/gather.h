// SPDX-License-Identifier: Apache-2.0
//
// Collectives of control data of different lengths.

#ifndef SHARD_CORE_COMM_GATHER_H_
#define SHARD_CORE_COMM_GATHER_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"

namespace shard {

// Returns the bytes of every rank, by rank. COLLECTIVE. Each rank receives
// world_size times the longest. kResourceExhausted on all ranks when one of
// them does not have memory for that.
StatusOr<std::vector<std::vector<std::byte>>> GatherBytes(
    Communicator* comm, std::string_view what, std::span<const std::byte> mine,
    const Deadline& deadline);

// Returns rank 0's text on all ranks. COLLECTIVE.
StatusOr<std::string> BroadcastText(Communicator* comm, std::string_view what,
                                    std::string_view text,
                                    const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_COMM_GATHER_H_
