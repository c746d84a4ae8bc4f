// SPDX-License-Identifier: Apache-2.0
//
// FullParams: whole copies of a module's parameters for the host (training
// state SUMMON_FULL_PARAMS), from Summon to End. The ranks agree on what is
// summoned; the copies themselves are Summoned.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_STATE_FULL_PARAMS_H_
#define SHARD_CORE_ENGINE_STATE_FULL_PARAMS_H_

#include <memory>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/state/summon.h"
#include "core/engine/step/assembly.h"

namespace shard {

class FullParams {
 public:
  // Both outlive this.
  FullParams(Communicator* comm, Device* device)
      : comm_(comm), device_(device) {}

  bool summoned() const { return summoned_ != nullptr; }
  // Whether there are copies of the parameter, on whichever ranks.
  bool Has(ParamId param) const {
    return summoned_ != nullptr && summoned_->Has(param);
  }
  // Returns this rank's copy. kFailedPrecondition where another rank has it.
  // REQUIRES: Has(param).
  StatusOr<void*> Param(ParamId param) const;

  // COLLECTIVE, both. `known`: what is wrong with the call on this rank alone.
  //
  // Copies the parameters in `module`, on all ranks (kAllRanks) or on one.
  Status Summon(const Assembly& assembly, ModuleId module, int rank,
                const Status& known, const Deadline& deadline);
  // Gives the copies up. With `write_back` they become the parameters. One that
  // this rank could not read is an error on all ranks.
  Status End(const Assembly& assembly, const StatusOr<bool>& write_back,
             const Status& known, const Deadline& deadline);

 private:
  Communicator* const comm_;
  Device* const device_;
  std::unique_ptr<Summoned> summoned_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_FULL_PARAMS_H_
