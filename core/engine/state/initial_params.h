// SPDX-License-Identifier: Apache-2.0
//
// InitialParams: how parameters get their first values (training state
// FILLING): rank 0 sets them, then a broadcast takes them to every rank that
// holds a part. A load takes its place.
//
// Where rank 0 does not hold all parameters, those that are set wait in host
// memory for the broadcast.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_STATE_INITIAL_PARAMS_H_
#define SHARD_CORE_ENGINE_STATE_INITIAL_PARAMS_H_

#include <cstddef>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/step/assembly.h"

namespace shard {

// Widens this rank's part of the parameters into its master weights. Local, in
// the midst of what all ranks do: an error ends the group.
Status FillMasters(const Assembly& assembly, Communicator* comm,
                   const Deadline& deadline);

class InitialParams {
 public:
  // Both outlive this.
  InitialParams(Communicator* comm, Device* device)
      : comm_(comm), device_(device) {}

  // Whether parameters have no values yet.
  bool filling() const { return filling_; }

  // Stores the values of a parameter on rank 0; other ranks check their
  // arguments. Local. Errors: those of PlaceOf; another number of bytes than
  // the parameter has; kFailedPrecondition after filling.
  Status Set(const Assembly& assembly, ParamId param, const void* data,
             size_t bytes, const Deadline& deadline);

  // COLLECTIVE. Gives every rank what rank 0 was given, and ends the filling.
  // What was not set is zero.
  Status Broadcast(const Assembly& assembly, const Deadline& deadline);

  // The parameters have values from elsewhere.
  void Finish();
  // They have lost them: a load failed in the midst of writing.
  void StartOver() { filling_ = true; }

 private:
  // COLLECTIVE. From rank 0 to everyone that holds a part.
  Status Spread(const Assembly& assembly, const Deadline& deadline) const;

  Communicator* const comm_;
  Device* const device_;
  bool filling_ = true;
  // Rank 0 while filling, where it does not hold all parameters: by buffer.
  std::vector<DeviceMemory> filled_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_INITIAL_PARAMS_H_
