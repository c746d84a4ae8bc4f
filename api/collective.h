// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_API_COLLECTIVE_H_
#define SHARD_API_COLLECTIVE_H_

#include <utility>

#include "api/error.h"
#include "core/base/out_of_memory.h"
#include "core/comm/communicator.h"

namespace shard::api {

// Guard for the body of a COLLECTIVE entry point. If memory runs out between
// two collectives of it, the other ranks would wait for this one until their
// deadline: they are told instead. `comm` may be null.
template <typename Body>
shard_error* GuardCollective(Communicator* comm, Body&& body) noexcept {
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

// The same for a body that changes parameters, states or units. What it has
// done half is the end of the engine also where there are no other ranks: with
// the next step nobody would know.
template <typename Body>
shard_error* GuardTraining(Communicator* comm, Body&& body) noexcept {
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
