// SPDX-License-Identifier: Apache-2.0
//
// InitialParams: gives parameters their first values (training state FILLING):
// rank 0 sets them, then a broadcast sends them to every rank that holds a
// part. A load replaces both.
//
// Where rank 0 does not hold all parameters, values that are set are kept in
// host memory until the broadcast.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_PARAMS_INITIAL_PARAMS_H_
#define SHARD_CORE_ENGINE_PARAMS_INITIAL_PARAMS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/host_access.h"
#include "core/engine/step/engine_runtime.h"

namespace shard {

// Widens this rank's part of the parameters into its master weights. Local, but
// part of a collective operation: an error ends the group.
Status FillMasters(const EngineRuntime& runtime, Communicator* comm,
                   const Deadline& deadline);

class InitialParams {
 public:
  // Both arguments must outlive this.
  InitialParams(Communicator* comm, Device* device)
      : comm_(comm), device_(device) {}

  // Returns whether parameters have no values yet.
  bool filling() const { return filling_; }

  // Stores the values of a parameter on rank 0; other ranks check their
  // arguments. Local. Errors: those of PlaceOf; another number of bytes than
  // the parameter has; kFailedPrecondition after filling.
  Status Set(const EngineRuntime& runtime, ParamId param, const void* data,
             size_t bytes, const Deadline& deadline);

  // Sends the values that rank 0 was given to every rank, and ends the filling.
  // COLLECTIVE. Parameters that were not set are zero.
  Status Broadcast(const EngineRuntime& runtime, const Status& known,
                   const Deadline& deadline);

  // Ends the filling: the parameters have values from elsewhere.
  void Finish();
  // Begins the filling again: a load that failed while writing has left the
  // parameters without values.
  void StartFilling();

 private:
  // Returns the host's access to the parameters, once all work on them is done.
  // The access is kept, with its staging memory: values are set one by one.
  StatusOr<HostAccess*> Access(const EngineRuntime& runtime,
                               const Deadline& deadline);
  // Sends the values from rank 0 to every rank that holds a part; they are
  // there when the compute stream has run. COLLECTIVE.
  Status BroadcastValues(const EngineRuntime& runtime,
                         const Deadline& deadline);
  // The same where the ranks of a host have one copy.
  Status BroadcastToHosts(const EngineRuntime& runtime,
                          const Deadline& deadline);

  Communicator* const comm_;
  Device* const device_;
  bool filling_ = true;
  // By buffer, the values that were set: on rank 0 while filling, where it does
  // not hold all parameters.
  std::vector<DeviceMemory> filled_;
  std::unique_ptr<HostAccess> access_;  // Null until it is needed.
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_INITIAL_PARAMS_H_
