// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/unit_grads.h"

#include <algorithm>
#include <utility>

#include "core/engine/units/room.h"

namespace shard {

namespace {

// Appends zeros of the gradients of a buffer that belong to no parameter.
void AddPaddingZeros(const FlatBufferPlan& buffer, unsigned char* grads,
                     std::vector<MemoryFill>* fills) {
  int64_t at = 0;
  const auto add_to = [&](int64_t end) {
    if (end <= at) return;
    fills->push_back({grads + DTypeBytes(buffer.grad_dtype, at), nullptr,
                      DTypeBytes(buffer.grad_dtype, end - at)});
  };
  for (const Slot& slot : buffer.layout.slots()) {
    add_to(slot.offset);
    at = slot.offset + slot.numel;
  }
  add_to(buffer.layout.padded_numel());
}

}  // namespace

UnitGrads::UnitGrads(const Dependencies& deps)
    : deps_(deps),
      plan_(*deps.plan),
      reduces_(plan_.shards_grads() ||
               (!deps.comm->direct() && !deps.allow_missing)),
      reduces_later_(!plan_.shards_grads() && !deps.comm->direct()),
      slots_(plan_, plan_.grad_slots()) {}

bool UnitGrads::HasGrads(int32_t unit) const {
  const UnitPlan& planned = plan_.unit(unit);
  return std::any_of(planned.buffers.begin(), planned.buffers.end(),
                     [&](int32_t b) { return plan_.buffer(b).trainable; });
}

void UnitGrads::FollowHost(const Deadline& deadline) {
  deps_.compute->Wait(deps_.host->Record(), deadline);
}

Status UnitGrads::LeadHost(const Deadline& deadline) {
  deps_.host->Wait(deps_.compute->Record(), deadline);
  return deps_.host->status();
}

Status UnitGrads::CheckAcquire(int32_t unit) const {
  if (!plan_.shards_grads() || !HasGrads(unit)) return Status();
  return CheckRoom(plan_, *deps_.states, slots_, unit, "gradients");
}

Status UnitGrads::Acquire(int32_t unit, Pass pass, const Deadline& deadline) {
  if (!plan_.shards_grads() || !HasGrads(unit)) return Status();
  const int32_t depth = plan_.unit(unit).depth;
  const int found = slots_.Find(unit);
  const int slot = found >= 0 ? found : slots_.Choose(unit);
  // Gradients in the slot may still be in transfer, and the host may still
  // write those of a unit that it released without declaring them.
  SHARD_RETURN_IF_ERROR(
      deps_.queue->Wait(slots_.event(depth, slot), deps_.compute, deadline));
  FollowHost(deadline);
  slots_.Take(unit, slot);
  unsigned char* const base =
      deps_.memory->GradSlot(deps_.comm->rank(), depth, slot);
  std::vector<MemoryFill> fills;
  for (const SlotPart& part : SlotParts(plan_, unit, true)) {
    const FlatBufferPlan& buffer = plan_.buffers()[part.buffer];
    const DType dtype = buffer.grad_dtype;
    unsigned char* const grads = base + part.offset;
    if (pass == Pass::kBackward && !deps_.copies->any()) {
      fills.push_back(
          {grads, nullptr, DTypeBytes(dtype, buffer.layout.padded_numel())});
      continue;
    }
    // Other units leave their gradients in the slot.
    AddPaddingZeros(buffer, grads, &fills);
    if (pass != Pass::kBackward) continue;
    // Bound gradients are zeroed where the host keeps them: their slots are
    // overwritten once they are ready.
    for (const Slot& slot : buffer.layout.slots()) {
      fills.push_back({deps_.copies->GradOf(
                           slot.param, grads + DTypeBytes(dtype, slot.offset)),
                       nullptr, DTypeBytes(dtype, slot.numel)});
    }
  }
  deps_.compute->Fill(std::move(fills));
  return LeadHost(deadline);
}

Status UnitGrads::Reduce(int32_t unit, bool more, const Deadline& deadline) {
  if (!AgreesWhenReady() || !HasGrads(unit)) return Status();
  // Whole gradients accumulate before they are reduced.
  if (more && !plan_.shards_grads()) return Status();
  SHARD_RETURN_IF_ERROR(CompleteUnit(unit, deadline));
  Proposal proposal;
  proposal.activity = Activity::kReduce;
  proposal.unit = unit;
  proposal.more = more ? 1 : 0;
  proposal.zeroed = deps_.reduced->zeroed();
  if (plan_.shards_grads()) proposal.slot = slots_.Find(unit);
  SHARD_ASSIGN_OR_RETURN(const Event reduced,
                         deps_.transfers->Reduce(proposal));
  if (!plan_.shards_grads()) return Status();
  slots_.SetEvent(unit, reduced);
  slots_.Drop(unit);
  return Status();
}

std::vector<Event> UnitGrads::ReduceRest() {
  const std::vector<EngineBuffer>& buffers = deps_.memory->buffers();
  std::vector<Event> events(buffers.size());
  // From the last buffer to the first, as in a backward pass.
  for (size_t b = buffers.size(); b-- > 0;) {
    const FlatBufferPlan& plan = *buffers[b].plan;
    if (!plan.trainable) continue;
    const bool counts = deps_.reduced->Counts(plan.unit);
    if (!counts && reduces_later_) {
      events[b] = deps_.transfers->ReduceWhole(b);
      continue;
    }
    // The parameters may still be sent to a rank that gathers ahead.
    events[b] = deps_.transfers->Last(plan.unit);
    if (!counts && plan_.shards_grads()) {
      // No rank has gradients of this unit.
      deps_.compute->FillZeros(
          buffers[b].sum,
          DTypeBytes(plan.sum_dtype, plan.layout.shard_numel()));
    }
  }
  return events;
}

unsigned char* UnitGrads::GradsOf(int32_t unit, const SlotPart& part) const {
  const int rank = deps_.comm->rank();
  if (!plan_.shards_grads()) {
    return deps_.memory->buffers()[part.buffer]
        .grads[static_cast<size_t>(rank)];
  }
  const int32_t depth = plan_.unit(unit).depth;
  return deps_.memory->GradSlot(rank, depth, slots_.Find(unit)) + part.offset;
}

void UnitGrads::AddCompletion(const Slot& slot, DType dtype, bool counts,
                              void* flat, std::vector<MemoryFill>* fills) {
  if (counts) return deps_.copies->AddGradCopy(slot.param, flat, fills);
  fills->push_back({flat, nullptr, DTypeBytes(dtype, slot.numel)});
  deps_.copies->AddGradZeros(slot.param, fills);
}

Status UnitGrads::Complete(std::vector<MemoryFill> fills,
                           const Deadline& deadline) {
  if (fills.empty()) return Status();
  FollowHost(deadline);
  deps_.compute->Fill(std::move(fills));
  // The host may write its own gradients again when this call returns.
  return LeadHost(deadline);
}

Status UnitGrads::CompleteUnit(int32_t unit, const Deadline& deadline) {
  const bool some = deps_.states->SomeDeclared(unit);
  if (!some && !deps_.copies->any()) return Status();
  std::vector<MemoryFill> fills;
  for (const SlotPart& part : SlotParts(plan_, unit, true)) {
    const FlatBufferPlan& buffer = plan_.buffers()[part.buffer];
    unsigned char* const grads = GradsOf(unit, part);
    for (const Slot& slot : buffer.layout.slots()) {
      AddCompletion(slot, buffer.grad_dtype,
                    !some || deps_.states->Declared(slot.param),
                    grads + DTypeBytes(buffer.grad_dtype, slot.offset), &fills);
    }
  }
  return Complete(std::move(fills), deadline);
}

Status UnitGrads::CompleteWhole(const Deadline& deadline) {
  if (plan_.shards_grads()) return Status();
  const bool may_lack = deps_.allow_missing && deps_.states->declares();
  if (!may_lack && !deps_.copies->any()) return Status();
  std::vector<MemoryFill> fills;
  for (const EngineBuffer& buffer : deps_.memory->buffers()) {
    const FlatBufferPlan& plan = *buffer.plan;
    if (!plan.trainable) continue;
    // Gradients that were reduced when they became ready hold the sum.
    if (deps_.reduced->Counts(plan.unit)) continue;
    for (const Slot& slot : plan.layout.slots()) {
      AddCompletion(slot, plan.grad_dtype, deps_.states->HasGrad(slot.param),
                    buffer.GradAt(deps_.comm->rank(), slot.offset), &fills);
    }
  }
  return Complete(std::move(fills), deadline);
}

StatusOr<void*> UnitGrads::Grad(ParamId param) const {
  const ParamPlace& place = plan_.place(param);
  const EngineBuffer& buffer = deps_.memory->buffer(place.buffer);
  if (!plan_.shards_grads()) {
    return deps_.copies->GradOf(
        param, buffer.GradAt(deps_.comm->rank(), place.offset));
  }
  const int32_t unit = plan_.UnitOf(param);
  const UnitStates::State state = deps_.states->state(unit);
  if (state != UnitStates::State::kBackwardPre) {
    return FailedPrecondition("the gradient of parameter ", param,
                              " is sharded, and ", deps_.states->Name(unit),
                              " is in state ", UnitStates::StateName(state),
                              "; it has a place in BACKWARD_PRE: acquire the "
                              "unit for the backward pass first");
  }
  for (const SlotPart& part : SlotParts(plan_, unit, true)) {
    if (part.buffer != static_cast<size_t>(place.buffer)) continue;
    return deps_.copies->GradOf(
        param, GradsOf(unit, part) +
                   DTypeBytes(buffer.plan->grad_dtype, place.offset));
  }
  return Internal("parameter ", param, " is not in its unit");
}

}  // namespace shard
