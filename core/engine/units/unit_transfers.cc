// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/unit_transfers.h"

#include "core/collectives/collectives.h"
#include "core/observe/observer.h"

namespace shard {

StatusOr<Event> UnitTransfers::Gather(int32_t unit, unsigned char* slot) {
  Proposal proposal;
  proposal.activity = Activity::kGather;
  proposal.unit = unit;
  SHARD_RETURN_IF_ERROR(Announce(proposal));
  return deps_.queue->Run(
      "gather the parameters of a unit", deps_.transfers->GatherBytes(unit),
      [this, proposal, slot] { return Perform(proposal, slot); });
}

StatusOr<Event> UnitTransfers::Reduce(const Proposal& proposal) {
  SHARD_RETURN_IF_ERROR(Announce(proposal));
  return deps_.queue->Run(
      "reduce the gradients of a unit",
      deps_.transfers->ReduceBytes(proposal.unit),
      [this, proposal] { return Perform(proposal, nullptr); });
}

Event UnitTransfers::ReduceWhole(size_t buffer) {
  const uint64_t bytes = deps_.transfers->ReduceWholeBytes(buffer);
  return deps_.queue->Run(
      "reduce the gradients of a buffer", bytes, [this, buffer, bytes] {
        return Timed(EventId::kReduce, plan_.buffers()[buffer].unit, bytes,
                     [&] {
                       return Done(deps_.transfers->ReduceWhole(buffer),
                                   Deadline::After(deps_.timeout));
                     });
      });
}

Status UnitTransfers::Follow(const Proposal& led, const Deadline& deadline) {
  const CollectiveTimeout timeout(deps_.transfers->collectives(), deadline);
  return Move(led, deps_.agreement->proposals(), nullptr, deadline);
}

Status UnitTransfers::Announce(const Proposal& proposal) {
  if (!deps_.agreement->announces()) return Status();
  return deps_.agreement->Announce(proposal, Deadline::After(deps_.timeout));
}

Status UnitTransfers::Perform(const Proposal& proposal, unsigned char* slot) {
  if (deps_.agreement->announces()) {
    announced_[static_cast<size_t>(deps_.comm->rank())] = proposal;
    return Move(proposal, announced_, slot, Deadline::After(deps_.timeout));
  }
  for (;;) {
    const Deadline deadline = Deadline::After(deps_.timeout);
    SHARD_ASSIGN_OR_RETURN(
        const Decision decision,
        deps_.agreement->Agree(proposal, Status(), Arguments(), deadline));
    const std::vector<Proposal>& proposals = deps_.agreement->proposals();
    const Proposal led = proposals[static_cast<size_t>(decision.leader)];
    SHARD_RETURN_IF_ERROR(
        Move(led, proposals, decision.follows ? nullptr : slot, deadline));
    if (!decision.follows) return Status();
  }
}

template <typename Function>
Status UnitTransfers::Timed(EventId event, int32_t unit, uint64_t bytes,
                            const Function& move) {
  double seconds = 0;
  Status status;
  {
    Span moving(deps_.comm->observer(), event,
                {.unit = unit, .bytes = static_cast<int64_t>(bytes)}, &seconds);
    status = move();
    moving.set_result(status);
  }
  deps_.queue->AddTransferTime(seconds);
  return status;
}

Status UnitTransfers::Move(const Proposal& led,
                           const std::vector<Proposal>& proposals,
                           unsigned char* slot, const Deadline& deadline) {
  return led.activity == Activity::kReduce
             ? MoveGrads(led, proposals, deadline)
             : MoveParams(led.unit, slot, deadline);
}

Status UnitTransfers::Done(const Status& enqueued,
                           const Deadline& deadline) const {
  SHARD_RETURN_IF_ERROR(enqueued);
  return deps_.transfers->Wait(TransferDeadline(deadline.seconds()));
}

Status UnitTransfers::MoveParams(int32_t unit, unsigned char* slot,
                                 const Deadline& deadline) {
  // A rank that only takes part has no parameters of its own in the slots.
  if (slot == nullptr) {
    slot = deps_.memory->ParamSlot(plan_.unit(unit).depth, 0);
  }
  return Timed(EventId::kGather, unit, deps_.transfers->GatherBytes(unit), [&] {
    return Done(deps_.transfers->Gather(unit, slot), deadline);
  });
}

Status UnitTransfers::MoveGrads(const Proposal& led,
                                const std::vector<Proposal>& proposals,
                                const Deadline& deadline) {
  if (deps_.reduced->IsOutdated(led)) return Status();
  const bool updates = updates_eagerly() && led.more == 0;
  const bool adds = deps_.reduced->AddsToSum(led);
  const bool in_place =
      updates && !adds &&
      deps_.transfers->ReadInPlace(led, proposals, &in_place_);
  const bool reduces =
      !in_place && (plan_.shards_grads() || !deps_.comm->direct());
  SHARD_RETURN_IF_ERROR(
      Timed(EventId::kReduce, led.unit, deps_.transfers->ReduceBytes(led.unit),
            [&]() -> Status {
              if (!reduces) return Status();
              SHARD_RETURN_IF_ERROR(Done(
                  deps_.transfers->Reduce(led, proposals, adds), deadline));
              return deps_.transfers->FinishReading(deadline);
            }));
  deps_.reduced->SetReduced(led);
  if (!updates) return Status();
  SHARD_RETURN_IF_ERROR(
      eager_update_(led.unit, in_place ? &in_place_ : nullptr, deadline));
  return in_place ? deps_.transfers->FinishReading(deadline) : Status();
}

}  // namespace shard
