// SPDX-License-Identifier: Apache-2.0
//
// UnitParams: the parameters of units, where the host reads them. Where they
// are sharded and memory is not shared, acquire gathers them into a slot, and
// those of the units that will be needed next; elsewhere they are in the flat
// buffers at all times, and an acquire waits until the step has published them.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_UNITS_UNIT_PARAMS_H_
#define SHARD_CORE_ENGINE_UNITS_UNIT_PARAMS_H_

#include <cstdint>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/host_stream.h"
#include "core/engine/memory/bound_copies.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/memory/slots.h"
#include "core/engine/transfer/comm_queue.h"
#include "core/engine/transfer/published_units.h"
#include "core/engine/units/gather_order.h"
#include "core/engine/units/unit_states.h"
#include "core/engine/units/unit_transfers.h"
#include "core/flat/plan.h"

namespace shard {

class UnitParams {
 public:
  struct Dependencies {
    const Plan* plan;
    const EngineMemory* memory;
    BoundCopies* copies;
    Communicator* comm;
    HostStream* host;
    CommQueue* queue;
    const PublishedUnits* published;
    const UnitStates* states;
    UnitTransfers* transfers;
  };

  // All of `deps` must outlive this.
  explicit UnitParams(const Dependencies& deps);

  // Returns whether units are gathered.
  bool gathers() const { return gathers_; }

  // Returns the error of acquiring the unit now, on this rank alone.
  Status CheckAcquire(int32_t unit) const;
  // Makes the host's next work come once the unit's parameters are there, in
  // memory that the host bound too. COLLECTIVE where units are gathered.
  Status Acquire(int32_t unit, const Deadline& deadline);
  // Ends the use of the unit's slot.
  void Release(int32_t unit);

  // Drops the gathered parameters of all units that are not in use.
  void Drop() { slots_.DropAll(); }
  // Drops them after a step, in which they have changed.
  void FinishStep();
  // Drops them, and forgets the order of acquires, where other ranks did not
  // gather the same.
  void Forget();

  // Returns the current memory of `param`. The error says what must be acquired
  // first.
  StatusOr<void*> Param(ParamId param) const;

 private:
  bool IsGathered(int32_t unit) const {
    return gathers_ && !plan_.unit(unit).buffers.empty();
  }
  // Enqueues the gathering of `unit`, into a slot that is not in use.
  Status Gather(int32_t unit, int slot);
  Status Prefetch();

  const Dependencies deps_;
  const Plan& plan_;
  const bool gathers_;
  Slots slots_;
  GatherOrder order_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_UNIT_PARAMS_H_
