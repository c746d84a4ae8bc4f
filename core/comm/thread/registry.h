// SPDX-License-Identifier: Apache-2.0
//
// The registry in which the ranks of a "threads:N" group find each other: one
// table per process, by name; for groups without a name, by size. A group
// leaves the table when it is complete or has failed, so that its name can be
// used again at once. Only a group whose ranks disagree on its size is
// remembered, for a second, and only for the ranks that have not got that error
// yet.

#ifndef SHARD_CORE_COMM_THREAD_REGISTRY_H_
#define SHARD_CORE_COMM_THREAD_REGISTRY_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/deadline.h"
#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/comm/direct/control_block.h"

namespace shard::threads {

// The place where rank 0 leaves resources for the other ranks, between its
// Create and Forget.
struct Handover {
  std::mutex mutex;
  std::shared_ptr<Mapping> region;      // GUARDED_BY(mutex)
  std::shared_ptr<Handover> duplicate;  // GUARDED_BY(mutex)
};

// The resources that the ranks of one group share.
struct SharedGroup {
  Mapping control;
  Handover handover;

  direct::ControlBlock* block() const {
    return reinterpret_cast<direct::ControlBlock*>(control.data());
  }
};

// Waits until all ranks of the group have come. kAlreadyExists when `rank` is
// there already (the others keep waiting); kInvalidArgument, on all, when two
// ranks of a named group give different world sizes; kDeadlineExceeded, on all
// that wait, with the missing ranks. REQUIRES: 0 <= rank < world_size.
StatusOr<std::shared_ptr<SharedGroup>> JoinGroup(const std::string& name,
                                                 int rank, int world_size,
                                                 const Deadline& deadline);

}  // namespace shard::threads

#endif  // SHARD_CORE_COMM_THREAD_REGISTRY_H_
