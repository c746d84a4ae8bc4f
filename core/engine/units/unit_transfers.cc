// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/unit_transfers.h"

#include <algorithm>

#include "core/collectives/collectives.h"

namespace shard {

StatusOr<Event> UnitTransfers::Gather(int32_t unit, int slot) {
  Proposal proposal;
  proposal.activity = Activity::kGather;
  proposal.unit = unit;
  if (deps_.memory->shares_slots()) proposal.slot = slot;
  return Start(proposal, "gather the parameters of a unit",
               deps_.transfers->GatherBytes(unit), slot);
}

StatusOr<Event> UnitTransfers::Reduce(const Proposal& proposal) {
  return Start(proposal, "reduce the gradients of a unit",
               deps_.transfers->ReduceBytes(proposal.unit), kTakesPart);
}

Event UnitTransfers::ReduceWhole(size_t buffer) {
  const uint64_t bytes = deps_.transfers->ReduceWholeBytes(buffer);
  return deps_.queue->Run(bytes, [&](Stream* queue) {
    return deps_.queue->Transfer(EventId::kReduce,
                                 {.unit = plan_.buffers()[buffer].unit,
                                  .bytes = static_cast<int64_t>(bytes)},
                                 queue, [&](Stream* stream) {
                                   return deps_.transfers->ReduceWhole(buffer,
                                                                       stream);
                                 });
  });
}

StatusOr<Event> UnitTransfers::Start(const Proposal& proposal,
                                     std::string_view what, uint64_t bytes,
                                     int slot) {
  Event& last = last_[static_cast<size_t>(proposal.unit)];
  if (deps_.agreement->announces()) {
    SHARD_RETURN_IF_ERROR(
        deps_.agreement->Announce(proposal, Deadline::After(deps_.timeout)));
    announced_[static_cast<size_t>(deps_.comm->rank())] = proposal;
    last = deps_.queue->Run(bytes, [&](Stream* queue) {
      return Move(proposal, announced_, slot, deps_.timeout, queue);
    });
    return last;
  }
  last = deps_.queue->Run(bytes, [&](Stream* queue) {
    queue->Call(what,
                [this, proposal, slot] { return Perform(proposal, slot); });
    return Status();
  });
  return last;
}

Status UnitTransfers::Perform(const Proposal& proposal, int slot) {
  for (;;) {
    SHARD_ASSIGN_OR_RETURN(
        const Decision decision,
        deps_.agreement->Agree(proposal, Status(), Arguments(),
                               Deadline::After(deps_.timeout)));
    const std::vector<Proposal>& proposals = deps_.agreement->proposals();
    const Proposal led = proposals[static_cast<size_t>(decision.leader)];
    SHARD_RETURN_IF_ERROR(Move(led, proposals,
                               decision.follows ? kTakesPart : slot,
                               deps_.timeout, deps_.moving));
    SHARD_RETURN_IF_ERROR(
        deps_.moving->Synchronize(TransferDeadline(deps_.timeout)));
    if (!decision.follows) return Status();
  }
}

Status UnitTransfers::Follow(const Proposal& led, const Deadline& deadline) {
  // As much time as the leader's transfer has, however late the ranks met.
  const CollectiveDeadline scope(deps_.transfers->collectives(),
                                 Deadline::After(deadline.seconds()));
  SHARD_RETURN_IF_ERROR(Move(led, deps_.agreement->proposals(), kTakesPart,
                             deadline.seconds(), deps_.moving));
  return deps_.moving->Synchronize(TransferDeadline(deadline.seconds()));
}

Status UnitTransfers::Move(const Proposal& led,
                           const std::vector<Proposal>& proposals, int slot,
                           double timeout, Stream* stream) {
  return led.activity == Activity::kReduce
             ? MoveGrads(led, proposals, timeout, stream)
             : MoveParams(led, slot, stream);
}

Status UnitTransfers::MoveParams(const Proposal& led, int slot,
                                 Stream* stream) {
  // A rank that only takes part has no parameters of its own in the slots.
  if (slot == kTakesPart) slot = std::max(led.slot, 0);
  unsigned char* const memory =
      deps_.memory->ParamSlot(plan_.unit(led.unit).depth, slot);
  const uint64_t bytes = deps_.transfers->GatherBytes(led.unit);
  return deps_.queue->Transfer(
      EventId::kGather,
      {.unit = led.unit, .bytes = static_cast<int64_t>(bytes)}, stream,
      [&](Stream* measured) {
        return deps_.transfers->Gather(led.unit, memory, measured);
      });
}

Status UnitTransfers::MoveGrads(const Proposal& led,
                                const std::vector<Proposal>& proposals,
                                double timeout, Stream* stream) {
  if (deps_.reduced->IsOutdated(led)) return Status();
  const bool updates = updates_eagerly() && led.more == 0;
  const bool adds = deps_.reduced->AddsToSum(led);
  const bool in_place =
      updates && !adds &&
      deps_.transfers->ReadInPlace(led, proposals, &in_place_);
  const bool reduces =
      !in_place && (plan_.shards_grads() || !deps_.comm->direct());
  const uint64_t bytes = deps_.transfers->ReduceBytes(led.unit);
  SHARD_RETURN_IF_ERROR(deps_.queue->Transfer(
      EventId::kReduce,
      {.unit = led.unit, .bytes = static_cast<int64_t>(bytes)}, stream,
      [&](Stream* measured) -> Status {
        if (!reduces) return Status();
        SHARD_RETURN_IF_ERROR(
            deps_.transfers->Reduce(led, proposals, adds, measured));
        deps_.transfers->FinishReading(timeout, measured);
        return Status();
      }));
  deps_.reduced->SetReduced(led);
  if (!updates) return Status();
  SHARD_RETURN_IF_ERROR(
      eager_update_(led.unit, in_place ? &in_place_ : nullptr, stream));
  if (in_place) deps_.transfers->FinishReading(timeout, stream);
  return Status();
}

}  // namespace shard
