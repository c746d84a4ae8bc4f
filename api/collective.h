// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_API_COLLECTIVE_H_
#define SHARD_API_COLLECTIVE_H_

#include <utility>

#include "api/error.h"
#include "core/base/out_of_memory.h"
#include "core/comm/communicator.h"

namespace shard::api {

// Returns where the calls of the host on a communicator are named; null for
// null.
inline HostCall* HostCallOf(Communicator* comm) {
  return comm == nullptr ? nullptr : &comm->host_waits()->call();
}

// Runs the body of a COLLECTIVE entry point as Guard does. If memory runs out
// between two of the body's collectives, the other ranks are told, for they
// would else wait for this one until their deadline. `comm` may be null. `name`
// is that of the entry point, for errors on the other ranks.
template <typename Body>
shard_error* GuardCollective(Communicator* comm, Body&& body,
                             const char* name = __builtin_FUNCTION()) noexcept {
  const HostCall::Scope call(HostCallOf(comm), name);
  return Guard([&]() -> Status {
    try {
      return std::forward<Body>(body)();
    } catch (...) {
      if (comm != nullptr && comm->world_size() > 1)
        comm->Abort(OutOfMemoryStatus());
      throw;
    }
  });
}

// Runs a body that changes parameters, states or units, as GuardCollective
// does. A half-made change ends the engine even without other ranks: after the
// next step nobody would know of it.
template <typename Body>
shard_error* GuardTraining(Communicator* comm, Body&& body,
                           const char* name = __builtin_FUNCTION()) noexcept {
  const HostCall::Scope call(HostCallOf(comm), name);
  return Guard([&]() -> Status {
    try {
      return std::forward<Body>(body)();
    } catch (...) {
      if (comm != nullptr) comm->Abort(OutOfMemoryStatus());
      throw;
    }
  });
}

}  // namespace shard::api

#endif  // SHARD_API_COLLECTIVE_H_
