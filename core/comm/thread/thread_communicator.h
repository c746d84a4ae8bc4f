// SPDX-License-Identifier: Apache-2.0
//
// A communicator of ranks that are threads of one process; "local:" is a group
// of one.

#ifndef SHARD_CORE_COMM_THREAD_THREAD_COMMUNICATOR_H_
#define SHARD_CORE_COMM_THREAD_THREAD_COMMUNICATOR_H_

#include <memory>
#include <string>

#include "core/comm/communicator.h"
#include "core/comm/direct/link.h"

namespace shard::threads {

// Meets the other ranks within options.timeout. COLLECTIVE. The death of a
// thread cannot be detected; a rank whose Communicator is freed without
// Shutdown is lost. REQUIRES: 0 <= options.rank < options.world_size <=
// direct::kMaxRanks.
StatusOr<std::shared_ptr<Communicator>> Open(const std::string& name,
                                             const std::string& description,
                                             const CommOptions& options,
                                             const direct::Link& link);

// Opens a group of one rank, without waiting.
StatusOr<std::shared_ptr<Communicator>> OpenLocal(
    const std::string& description, const CommOptions& options,
    const direct::Link& link);

}  // namespace shard::threads

#endif  // SHARD_CORE_COMM_THREAD_THREAD_COMMUNICATOR_H_
