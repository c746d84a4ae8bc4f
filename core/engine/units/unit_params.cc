// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/unit_params.h"

#include <span>
#include <utility>

#include "core/base/dtype.h"
#include "core/engine/units/room.h"

namespace shard {

UnitParams::UnitParams(const Dependencies& deps)
    : deps_(deps),
      plan_(*deps.plan),
      gathers_(plan_.shards_params() && !deps.comm->direct()),
      slots_(plan_, plan_.param_slots()),
      order_(plan_.units().size(), plan_.options().prefetch) {}

Status UnitParams::CheckAcquire(int32_t unit) const {
  if (!IsGathered(unit)) return Status();
  return CheckRoom(plan_, *deps_.states, slots_, unit, "parameters");
}

Status UnitParams::Acquire(int32_t unit, const Deadline& deadline) {
  if (IsGathered(unit)) {
    order_.Record(unit);
    const int found = slots_.Find(unit);
    if (found < 0) {
      // Where only slots of units gathered ahead are left, the last of these is
      // gathered again.
      std::span<const int32_t> keep = order_.Next();
      int slot = slots_.Choose(unit, keep);
      while (slot < 0 && !keep.empty()) {
        keep = keep.first(keep.size() - 1);
        slot = slots_.Choose(unit, keep);
      }
      SHARD_RETURN_IF_ERROR(Gather(unit, slot));
    } else {
      slots_.Take(unit, found);
    }
    const Event gathered =
        slots_.event(plan_.unit(unit).depth, slots_.Find(unit));
    SHARD_RETURN_IF_ERROR(Prefetch());
    SHARD_RETURN_IF_ERROR(
        deps_.queue->Wait(gathered, deps_.host->get(), deadline));
  } else {
    SHARD_RETURN_IF_ERROR(deps_.queue->Wait(deps_.published->event(unit),
                                            deps_.host->get(), deadline));
  }
  return deps_.copies->RefreshUnit(unit, deadline);
}

void UnitParams::Release(int32_t unit) {
  if (gathers_) slots_.Release(unit);
}

void UnitParams::FinishStep() {
  slots_.DropAll();
  order_.FinishStep();
}

void UnitParams::Forget() {
  slots_.DropAll();
  order_.Forget();
}

Status UnitParams::Gather(int32_t unit, int slot) {
  slots_.Take(unit, slot);
  SHARD_ASSIGN_OR_RETURN(Event gathered, deps_.transfers->Gather(unit, slot));
  slots_.SetEvent(unit, std::move(gathered));
  return Status();
}

Status UnitParams::Prefetch() {
  const std::span<const int32_t> expected = order_.Next();
  for (const int32_t next : expected) {
    if (slots_.Find(next) >= 0) continue;
    const int slot = slots_.Choose(next, expected);
    // A later unit may be at another depth, which has a slot.
    if (slot < 0) continue;
    SHARD_RETURN_IF_ERROR(Gather(next, slot));
    // The unit is gathered, but not acquired yet.
    slots_.Release(next);
  }
  return Status();
}

StatusOr<void*> UnitParams::Param(ParamId param) const {
  const ParamPlace& place = plan_.place(param);
  const EngineBuffer& buffer = deps_.memory->buffer(place.buffer);
  if (!gathers_) return buffer.ParamAt(place.offset);
  const int32_t unit = plan_.UnitOf(param);
  if (deps_.states->state(unit) == UnitStates::State::kIdle) {
    return FailedPrecondition("parameter ", param, " is sharded, and ",
                              deps_.states->Name(unit),
                              " is in state IDLE: acquire it first");
  }
  unsigned char* const slot =
      deps_.memory->ParamSlot(plan_.unit(unit).depth, slots_.Find(unit));
  for (const SlotPart& part : SlotParts(plan_, unit, false)) {
    if (part.buffer != static_cast<size_t>(place.buffer)) continue;
    return static_cast<void*>(slot + part.offset +
                              DTypeBytes(buffer.plan->dtype, place.offset));
  }
  return Internal("parameter ", param, " is not in its unit");
}

}  // namespace shard
