// SPDX-License-Identifier: Apache-2.0
//
// A communicator of ranks that are processes of one user on one host.

#ifndef SHARD_CORE_COMM_SHM_SHM_COMMUNICATOR_H_
#define SHARD_CORE_COMM_SHM_SHM_COMMUNICATOR_H_

#include <memory>
#include <string>

#include "core/comm/communicator.h"
#include "core/comm/direct/link.h"

namespace shard::shm {

// Meets the other ranks within options.timeout; see rendezvous.h. COLLECTIVE.
// REQUIRES: 0 <= options.rank < options.world_size <= direct::kMaxRanks.
StatusOr<std::shared_ptr<Communicator>> Open(const std::string& name,
                                             const std::string& description,
                                             const CommOptions& options,
                                             const direct::Link& link);

}  // namespace shard::shm

#endif  // SHARD_CORE_COMM_SHM_SHM_COMMUNICATOR_H_
