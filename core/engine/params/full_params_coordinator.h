// SPDX-License-Identifier: Apache-2.0
//
// FullParamsCoordinator: whole copies of a module's parameters for the host
// (training state SUMMON_FULL_PARAMS), from Summon to End. This class makes the
// ranks agree on the call; class FullParams holds the copies.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_PARAMS_FULL_PARAMS_COORDINATOR_H_
#define SHARD_CORE_ENGINE_PARAMS_FULL_PARAMS_COORDINATOR_H_

#include <memory>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/params/full_params.h"
#include "core/engine/step/engine_runtime.h"

namespace shard {

class FullParamsCoordinator {
 public:
  // Both arguments must outlive this.
  FullParamsCoordinator(Communicator* comm, Device* device)
      : comm_(comm), device_(device) {}

  bool summoned() const { return summoned_ != nullptr; }
  // Returns whether there are copies of the parameter, on any rank.
  bool Has(ParamId param) const {
    return summoned_ != nullptr && summoned_->Has(param);
  }
  // Returns this rank's copy. kFailedPrecondition where another rank has it.
  // REQUIRES: Has(param).
  StatusOr<void*> Param(ParamId param) const;

  // Summon and End are COLLECTIVE. `known`: an error of the call on this rank
  // alone.
  //
  // Copies the parameters in `module`, on all ranks (kAllRanks) or on one.
  Status Summon(const EngineRuntime& runtime, ModuleId module, int rank,
                const Status& known, const Deadline& deadline);
  // Frees the copies; with `write_back` they become the parameters first. A
  // `write_back` that this rank could not read is an error on all ranks.
  Status End(const EngineRuntime& runtime, const StatusOr<bool>& write_back,
             const Status& known, const Deadline& deadline);

 private:
  Communicator* const comm_;
  Device* const device_;
  std::unique_ptr<FullParams> summoned_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_FULL_PARAMS_COORDINATOR_H_
