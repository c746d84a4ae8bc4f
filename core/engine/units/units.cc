// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/units.h"

#include <algorithm>
#include <string>

#include "core/base/strings.h"

namespace shard {

Units::Units(const Dependencies& deps)
    : deps_(deps),
      plan_(*deps.plan),
      states_(plan_, !plan_.shards_grads(), deps.allow_missing),
      reduced_(plan_.units().size()),
      meetings_({deps.comm, deps.proposals, deps.host, deps.compute, deps.queue,
                 deps.allow_missing},
                [this](int32_t unit) {
                  return states_.CheckUnit(unit).ok() ? states_.Name(unit)
                                                      : StrCat("unit ", unit);
                }),
      transfers_({deps.plan, deps.memory, deps.comm, deps.transfers, deps.queue,
                  deps.moving, &meetings_.agreement(), &reduced_,
                  deps.timeout}),
      params_({deps.plan, deps.memory, deps.copies, deps.comm, deps.host,
               deps.queue, deps.published, &states_, &transfers_}),
      grads_({deps.plan, deps.memory, deps.copies, deps.comm, deps.host,
              deps.compute, deps.queue, &states_, &reduced_, &transfers_,
              deps.allow_missing}) {}

// ---- Use of units ----------------------------------------------------------

Status Units::CheckAcquire(int32_t unit, Pass pass) const {
  SHARD_RETURN_IF_ERROR(states_.CheckAcquire(unit, pass));
  SHARD_RETURN_IF_ERROR(params_.CheckAcquire(unit));
  return pass == Pass::kForward ? Status() : grads_.CheckAcquire(unit);
}

Status Units::Acquire(int32_t unit, Pass pass, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken());
  const Status local = CheckAcquire(unit, pass);
  if (!local.ok()) {
    return gathers() ? meetings_.Report(Activity::kGather, local, deadline)
                     : local;
  }
  Status acquired = params_.Acquire(unit, deadline);
  if (acquired.ok() && pass != Pass::kForward) {
    acquired = grads_.Acquire(unit, pass, deadline);
  }
  if (!acquired.ok()) return Fail(acquired);
  states_.Acquire(unit, pass);
  return Status();
}

Status Units::Release(int32_t unit, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken());
  SHARD_RETURN_IF_ERROR(states_.CheckRelease(unit));
  // Declared gradients that are sharded would be lost with their slot.
  if (deps_.allow_missing && plan_.shards_grads() &&
      states_.SomeDeclared(unit)) {
    SHARD_RETURN_IF_ERROR(GradsReady(unit, deadline));
  }
  params_.Release(unit);
  if (states_.state(unit) == UnitStates::State::kBackwardPre) {
    grads_.Drop(unit);
  }
  states_.Release(unit);
  return Status();
}

Status Units::CheckGradsReady(int32_t unit) const {
  SHARD_RETURN_IF_ERROR(states_.CheckGradsReady(unit));
  if (!accumulate_ || !plan_.options().deterministic || !plan_.shards_grads()) {
    return Status();
  }
  return FailedPrecondition(
      "gradients that are sharded would be summed over the ranks before they "
      "accumulate, which the plan's deterministic excludes; plan with "
      "whole_grads to accumulate");
}

Status Units::GradsReady(int32_t unit, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken());
  const Status local = CheckGradsReady(unit);
  if (!local.ok()) {
    return grads_.AgreesWhenReady()
               ? meetings_.Report(Activity::kReduce, local, deadline)
               : local;
  }
  const Status reducing = grads_.Reduce(unit, accumulate_, deadline);
  if (!reducing.ok()) return Fail(reducing);
  states_.GradsReady(unit, accumulate_);
  return Status();
}

Status Units::MarkParamGradReady(ParamId param, const Status& known,
                                 const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken());
  const Status local = known.ok() ? states_.CheckParamReady(param) : known;
  if (!local.ok()) {
    return grads_.AgreesWhenReady()
               ? meetings_.Report(Activity::kReduce, local, deadline)
               : local;
  }
  if (!states_.ParamReady(param)) return Status();
  return GradsReady(plan_.UnitOf(param), deadline);
}

Status Units::ClearGrads(const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(meetings_.Drain(deadline));
  if (plan_.shards_grads()) {
    reduced_.Discard(states_.any_ready());
  } else {
    reduced_.Forget();
  }
  states_.ClearReady();
  return Status();
}

// ---- Operations of all ranks -----------------------------------------------

Status Units::CheckStep() const {
  SHARD_RETURN_IF_ERROR(states_.CheckAllIdle("step"));
  return deps_.allow_missing ? Status() : states_.CheckAllReady();
}

Status Units::FollowLeader(int32_t leader, const Deadline& deadline) {
  params_.Drop();
  Status done = meetings_.AwaitStreams(deadline);
  if (done.ok()) {
    const Proposal led = proposals()[static_cast<size_t>(leader)];
    done = transfers_.Follow(led, deadline);
  }
  return done.ok() ? done : Fail(done);
}

bool Units::SomeAreAsync() const {
  return std::any_of(
      proposals().begin(), proposals().end(),
      [](const Proposal& proposal) { return proposal.async != 0; });
}

Status Units::CompleteGrads(const Deadline& deadline) {
  return grads_.CompleteWhole(deadline);
}

Status Units::EnterStep(Proposal proposal, const Status& local,
                        const Deadline& deadline, int32_t* leader) {
  SHARD_RETURN_IF_ERROR(meetings_.TakeAgreement(deadline));
  const bool completes = proposal.activity == Activity::kStep;
  if (completes && local.ok() && !meetings_.agreement().announces()) {
    const Status complete = CompleteGrads(deadline);
    if (!complete.ok()) return Fail(complete);
  }
  // Ranks that share memory read these gradients, and write the parameters that
  // the host reads: at once, or after a meeting of the compute streams.
  if (completes && local.ok() && deps_.memory->shares_params() &&
      !meetings_.StreamsAreInline()) {
    proposal.async = 1;
  }
  proposal.zeroed = reduced_.zeroed();
  for (;;) {
    SHARD_ASSIGN_OR_RETURN(
        const Decision decision,
        meetings_.Meet(proposal, local, Arguments(), deadline));
    *leader = decision.leader;
    if (!decision.follows) break;
    SHARD_RETURN_IF_ERROR(FollowLeader(*leader, deadline));
  }
  if (!completes || !meetings_.agreement().announces()) return Status();
  const Status complete = CompleteGrads(deadline);
  return complete.ok() ? complete : Fail(complete);
}

Status Units::Follow(Proposal proposal, const Status& local,
                     const Deadline& deadline, int32_t* leader, bool* joined) {
  *joined = false;
  SHARD_RETURN_IF_ERROR(meetings_.Drain(deadline));
  // The other ranks may use this one's memory next, unless it has an error.
  if (deps_.memory->shares_params() && local.ok()) {
    const Status idle = meetings_.AwaitStreams(deadline);
    if (!idle.ok()) return Fail(idle);
  }
  proposal.zeroed = reduced_.zeroed_in_join();
  for (;;) {
    SHARD_ASSIGN_OR_RETURN(
        const Decision decision,
        meetings_.Meet(proposal, local, Arguments(), deadline));
    *leader = decision.leader;
    const Proposal& led = proposals()[static_cast<size_t>(*leader)];
    *joined = led.activity == Activity::kJoin;
    if (*joined) {
      params_.Forget();
      reduced_.Forget();
      return Status();
    }
    if (led.activity == Activity::kStep ||
        led.activity == Activity::kBeginStep) {
      reduced_.FollowInJoin(led);
      return Status();
    }
    SHARD_RETURN_IF_ERROR(FollowLeader(*leader, deadline));
  }
}

Status Units::EnterChange(Activity activity, const Status& local,
                          const Arguments& arguments,
                          const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(meetings_.Drain(deadline));
  // No rank changes anything where one has an error. The error may be that the
  // host captures its stream, which cannot be waited for then.
  if (local.ok()) {
    const Status idle = meetings_.AwaitStreams(deadline);
    if (!idle.ok()) return Fail(idle);
  }
  Proposal proposal;
  proposal.activity = activity;
  SHARD_RETURN_IF_ERROR(
      meetings_.Meet(proposal, local, arguments, deadline).status());
  params_.Drop();
  return Status();
}

std::vector<Event> Units::EnqueueRest(bool reduces, const Deadline& deadline) {
  deps_.queue->AllowUntil(deadline);
  // The step itself does the rest from here.
  transfers_.SetEagerUpdate(nullptr);
  return reduces ? grads_.ReduceRest() : std::vector<Event>();
}

void Units::FinishStep() {
  reduced_.Forget();
  states_.ClearReady();
  params_.FinishStep();
}

}  // namespace shard
