// SPDX-License-Identifier: Apache-2.0
//
// FullParams: whole copies of parameters, apart from the engine's memory, on
// all ranks or on one. The host may read and change the copies; the engine's
// parameters change only when the copies are written back, so a host that fails
// before has changed nothing.
//
// Memory: the bytes of the parameters on each rank that has the copies, and
// while they are written back from one rank, the bytes of the largest parameter
// on the others. Plan::Memory does not count either.

#ifndef SHARD_CORE_ENGINE_PARAMS_FULL_PARAMS_H_
#define SHARD_CORE_ENGINE_PARAMS_FULL_PARAMS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/engine/params/all_ranks.h"
#include "core/engine/step/engine_runtime.h"

namespace shard {

class FullParams {
 public:
  // Copies the stored parameters that have a name in `module` or below it.
  // COLLECTIVE, with the same arguments on all ranks. REQUIRES: a module that
  // exists; `rank` is one, or kAllRanks; a queue that is drained.
  static StatusOr<std::unique_ptr<FullParams>> Create(
      const EngineRuntime& runtime, Communicator* comm, Device* device,
      ModuleId module, int rank, const Deadline& deadline);

  // Returns whether the parameter was summoned, to any rank.
  bool Has(ParamId param) const {
    return offsets_[static_cast<size_t>(param)] >= 0;
  }
  // Returns this rank's copy; null when the parameter was summoned to another
  // rank. REQUIRES: Has(param).
  void* Param(ParamId param) const;
  int rank() const { return rank_; }

  // Writes the copies back: every rank writes the elements that it owns, from
  // its own copies or from those of the one rank that has them; then all ranks
  // see the new values. COLLECTIVE. Master weights follow where the parameter's
  // bits have changed, and keep their precision elsewhere.
  Status WriteBack(const EngineRuntime& runtime, Communicator* comm,
                   Device* device, const Deadline& deadline) const;

 private:
  FullParams(int rank, bool here) : rank_(rank), here_(here) {}

  const int rank_;
  const bool here_;               // Whether this rank has the copies.
  std::vector<int64_t> offsets_;  // By ParamId, bytes; -1: not summoned.
  int64_t bytes_ = 0;
  DeviceMemory copies_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_FULL_PARAMS_H_
