// SPDX-License-Identifier: Apache-2.0
//
// UnitGrads: the gradients of units, where the host writes them, until they are
// reduced. Where they are sharded, a backward pass has a slot for those of a
// unit, zeroed before; elsewhere they are whole at all times.
//
//                        reduced
//   memory shared        when ready, where gradients are sharded
//   not shared           when ready; kept whole and with allow_missing: in the
//                        step
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_UNITS_UNIT_GRADS_H_
#define SHARD_CORE_ENGINE_UNITS_UNIT_GRADS_H_

#include <cstdint>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/event.h"
#include "core/device/host_stream.h"
#include "core/device/stream.h"
#include "core/engine/memory/bound_copies.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/memory/slots.h"
#include "core/engine/transfer/comm_queue.h"
#include "core/engine/units/reduced_grads.h"
#include "core/engine/units/unit_states.h"
#include "core/engine/units/unit_transfers.h"
#include "core/flat/plan.h"

namespace shard {

class UnitGrads {
 public:
  struct Dependencies {
    const Plan* plan;
    const EngineMemory* memory;
    BoundCopies* copies;
    Communicator* comm;
    HostStream* host;
    Stream* compute;
    CommQueue* queue;
    const UnitStates* states;
    const ReducedGrads* reduced;
    UnitTransfers* transfers;
    bool allow_missing;  // Gradients may be missing.
  };

  // All of `deps` must outlive this.
  explicit UnitGrads(const Dependencies& deps);

  // Returns whether the ranks exchange proposals once the gradients of a unit
  // are ready.
  bool AgreesWhenReady() const {
    return reduces_ || deps_.transfers->updates_eagerly();
  }

  // Returns the error of acquiring the unit for a backward pass, on this rank
  // alone.
  Status CheckAcquire(int32_t unit) const;
  // Makes room for the unit's gradients, where they are sharded: the host's
  // next work comes once they are zeroed.
  Status Acquire(int32_t unit, Pass pass, const Deadline& deadline);
  // Gives up the unit's slot, and gradients in it.
  void Drop(int32_t unit) { slots_.Drop(unit); }

  // Enqueues the reduction of the unit's gradients, if ready gradients are
  // reduced, and completes them first. `more`: another backward pass follows
  // before the step.
  Status Reduce(int32_t unit, bool more, const Deadline& deadline);
  // Completes the whole gradients that a step is about to read: with zeros
  // where one does not count, else with the bound one.
  Status CompleteWhole(const Deadline& deadline);
  // Enqueues the reduction of all gradients that were not reduced yet.
  // COLLECTIVE. Returns, by buffer, the event after which the gradients are
  // reduced and the parameters may be written. Gradients that no rank has
  // become zeros.
  std::vector<Event> ReduceRest();

  // Returns the current memory of the gradient of `param`, which may be bound.
  // The error says what must be acquired first.
  StatusOr<void*> Grad(ParamId param) const;

 private:
  bool HasGrads(int32_t unit) const;
  // Returns this rank's gradients of a buffer of `unit`. REQUIRES: where they
  // are sharded, the unit has a slot.
  unsigned char* GradsOf(int32_t unit, const SlotPart& part) const;
  // Appends what makes the gradient at `flat` that of the host: zeros where it
  // does not count, else a copy of the bound one.
  void AddCompletion(const Slot& slot, DType dtype, bool counts, void* flat,
                     std::vector<MemoryFill>* fills);
  // Enqueues these, after what the host has done so far and before its next
  // work.
  Status Complete(std::vector<MemoryFill> fills, const Deadline& deadline);
  Status CompleteUnit(int32_t unit, const Deadline& deadline);
  // Make the work on gradients that is enqueued next come after what the host
  // has done so far, and the host's next work after that work.
  void FollowHost(const Deadline& deadline);
  Status LeadHost(const Deadline& deadline);

  const Dependencies deps_;
  const Plan& plan_;
  const bool reduces_;        // When gradients are ready.
  const bool reduces_later_;  // During the step.
  Slots slots_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_UNIT_GRADS_H_
