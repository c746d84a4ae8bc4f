// SPDX-License-Identifier: Apache-2.0
//
// Longer than other files: acquires, gradients and steps agree with the other
// ranks through one state, and each may change what the next call of any kind
// does.

#include "core/engine/units/units.h"

#include <algorithm>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/engine/transfer/ok_or_abort.h"
#include "core/observe/observer.h"

namespace shard {

namespace {

// Most recorded acquires per unit and step: a forward and a backward pass for
// each of 32 accumulated passes.
constexpr size_t kMostRecorded = 64;

}  // namespace

Units::Units(const Dependencies& deps)
    : deps_(deps),
      plan_(*deps.plan),
      gathers_(deps.plan->shards_params() && !deps.comm->direct()),
      reduces_(deps.plan->shards_grads() ||
               (!deps.comm->direct() && !deps.allow_missing)),
      reduces_later_(!deps.plan->shards_grads() && !deps.comm->direct()),
      states_(plan_, !plan_.shards_grads(), deps.allow_missing),
      agreement_(deps.comm, deps.allow_missing,
                 [this](int32_t unit) {
                   return states_.CheckUnit(unit).ok() ? states_.Name(unit)
                                                       : StrCat("unit ", unit);
                 }),
      param_slots_(plan_, plan_.param_slots()),
      grad_slots_(plan_, plan_.grad_slots()),
      reduced_(plan_.units().size(), kNeverZeroed),
      published_(plan_.units().size()) {}

Status Units::Fail(const Status& error) {
  return MarkBroken(OkOrAbort(deps_.comm, error));
}

Status Units::MarkBroken(const Status& error) {
  if (broken_.ok()) broken_ = error;
  return broken_;
}

bool Units::HasTensors(int32_t unit, bool grads) const {
  const UnitPlan& planned = plan_.unit(unit);
  return std::any_of(
      planned.buffers.begin(), planned.buffers.end(),
      [&](int32_t b) { return !grads || plan_.buffer(b).trainable; });
}

// ---- Agreement -------------------------------------------------------------

Status Units::ReportToOthers(Activity activity, const Status& local,
                             const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken_);
  const Status drained = deps_.queue->Drain(deadline);
  if (!drained.ok()) return Fail(drained);
  Proposal proposal;
  proposal.activity = activity;
  const auto decision =
      agreement_.Agree(proposal, local, Arguments(), deadline);
  return HandleFailedAgreement(decision.status(), activity);
}

Status Units::HandleFailedAgreement(const Status& error, Activity activity) {
  // Ranks that came for the same operation, and did not do it, are still in
  // step; so are ranks that would have followed. A rank whose gradients or
  // parameters were in transfer has reported its error already. All ranks must
  // come to the same result, those in join too.
  const std::vector<Proposal>& all = proposals();
  if (!MovesUnit(activity)) {
    for (const Proposal& proposal : all) {
      if (proposal.activity == Activity::kJoin) continue;
      activity = proposal.activity;
      break;
    }
  }
  const bool moves = MovesUnit(activity);
  const bool together =
      std::all_of(all.begin(), all.end(), [&](const Proposal& p) {
        if (!moves && p.activity == Activity::kJoin) return true;
        return p.activity == activity && (!moves || p.failed != 0);
      });
  return together ? error : MarkBroken(error);
}

Status Units::RunOperation(const Proposal& proposal, unsigned char* slot,
                           const Deadline& deadline) {
  // Gradients from before a zero_grad that another rank had called already when
  // it declared the unit count in no sum.
  if (proposal.activity == Activity::kReduce &&
      proposal.zeroed < reduced_[static_cast<size_t>(proposal.unit)]) {
    return Status();
  }
  double seconds = 0;
  Status status;
  const bool goes_on = eager_update_ != nullptr &&
                       proposal.activity == Activity::kReduce &&
                       proposal.more == 0;
  const bool in_place =
      goes_on &&
      reduced_[static_cast<size_t>(proposal.unit)] != proposal.zeroed &&
      deps_.transfers->ReadInPlace(proposal, proposals(), &in_place_);
  {
    const bool reduces = proposal.activity == Activity::kReduce;
    const uint64_t bytes = reduces
                               ? deps_.transfers->ReduceBytes(proposal.unit)
                               : deps_.transfers->GatherBytes(proposal.unit);
    Span moving(deps_.comm->observer(),
                reduces ? EventId::kReduce : EventId::kGather,
                {.unit = proposal.unit, .bytes = static_cast<int64_t>(bytes)},
                &seconds);
    const auto unit = static_cast<size_t>(proposal.unit);
    if (reduces) {
      if (!in_place && (plan_.shards_grads() || !deps_.comm->direct())) {
        status = deps_.transfers->Reduce(
            proposal, proposals(), reduced_[unit] == proposal.zeroed, deadline);
      }
      reduced_[unit] = proposal.zeroed;
    } else {
      if (slot == nullptr) {
        // A follower has no parameters of its own in the slots.
        slot = deps_.memory->ParamSlot(plan_.unit(proposal.unit).depth, 0);
      }
      status = deps_.transfers->Gather(proposal.unit, slot, deadline);
    }
    moving.set_result(status);
  }
  deps_.queue->AddTransferTime(seconds);
  if (!status.ok() || !goes_on) return status;
  SHARD_RETURN_IF_ERROR(
      eager_update_(proposal.unit, in_place ? &in_place_ : nullptr, deadline));
  return in_place ? deps_.transfers->FinishReading(deadline) : Status();
}

Status Units::Perform(const Proposal& proposal, unsigned char* slot) {
  for (;;) {
    const Deadline deadline = Deadline::After(deps_.timeout);
    SHARD_ASSIGN_OR_RETURN(
        const Decision decision,
        agreement_.Agree(proposal, Status(), Arguments(), deadline));
    const Proposal led = proposals()[static_cast<size_t>(decision.leader)];
    SHARD_RETURN_IF_ERROR(
        RunOperation(led, decision.follows ? nullptr : slot, deadline));
    if (!decision.follows) return Status();
  }
}

Status Units::FollowLeader(int32_t leader, const Deadline& deadline) {
  param_slots_.DropAll();
  SHARD_RETURN_IF_ERROR(AwaitStreams(deadline));
  const Proposal led = proposals()[static_cast<size_t>(leader)];
  return RunOperation(led, nullptr, deadline);
}

Status Units::AwaitStreams(const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(deps_.host->Synchronize(deadline));
  return deps_.compute->Synchronize(deadline);
}

void Units::FollowHost(const Deadline& deadline) {
  deps_.compute->Wait(deps_.host->Record(), deadline);
}

Status Units::LeadHost(const Deadline& deadline) {
  deps_.host->Wait(deps_.compute->Record(), deadline);
  return deps_.host->status();
}

Status Units::EnterStep(Proposal proposal, const Status& local,
                        const Deadline& deadline, int32_t* leader) {
  SHARD_RETURN_IF_ERROR(broken_);
  const Status drained = deps_.queue->Drain(deadline);
  if (!drained.ok()) return Fail(drained);
  if (local.ok() && proposal.activity == Activity::kStep) {
    Status complete = CompleteWholeGrads(deadline);
    // Ranks that share memory read these gradients, and write the parameters
    // that the host reads, once they know that this rank is here.
    if (complete.ok() && deps_.comm->direct()) {
      complete = AwaitStreams(deadline);
    }
    if (!complete.ok()) return Fail(complete);
  }
  proposal.zeroed = zeroed_;
  for (;;) {
    const auto decision =
        agreement_.Agree(proposal, local, Arguments(), deadline);
    if (!decision.ok()) {
      return HandleFailedAgreement(decision.status(), proposal.activity);
    }
    *leader = decision->leader;
    if (!decision->follows) return Status();
    const Status done = FollowLeader(*leader, deadline);
    if (!done.ok()) return Fail(done);
  }
}

Status Units::Follow(Proposal proposal, const Status& local,
                     const Deadline& deadline, int32_t* leader, bool* joined) {
  *joined = false;
  SHARD_RETURN_IF_ERROR(broken_);
  Status drained = deps_.queue->Drain(deadline);
  // The other ranks may use this one's memory next, as in EnterStep.
  if (drained.ok() && deps_.comm->direct()) drained = AwaitStreams(deadline);
  if (!drained.ok()) return Fail(drained);
  proposal.zeroed = dropped_ ? zeroed_ : kNeverZeroed;
  for (;;) {
    const auto decision =
        agreement_.Agree(proposal, local, Arguments(), deadline);
    if (!decision.ok()) {
      return HandleFailedAgreement(decision.status(), proposal.activity);
    }
    *leader = decision->leader;
    const Proposal& led = proposals()[static_cast<size_t>(*leader)];
    *joined = led.activity == Activity::kJoin;
    if (*joined) {
      ForgetOrder();
      ForgetReduced();
      return Status();
    }
    if (led.activity == Activity::kStep ||
        led.activity == Activity::kBeginStep) {
      if (!dropped_) zeroed_ = led.zeroed;
      return Status();
    }
    const Status done = FollowLeader(*leader, deadline);
    if (!done.ok()) return Fail(done);
  }
}

Status Units::EnterChange(Activity activity, const Status& local,
                          const Arguments& arguments,
                          const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken_);
  Status drained = deps_.queue->Drain(deadline);
  if (drained.ok()) drained = AwaitStreams(deadline);
  if (!drained.ok()) return Fail(drained);
  Proposal proposal;
  proposal.activity = activity;
  const auto decision = agreement_.Agree(proposal, local, arguments, deadline);
  if (!decision.ok()) return HandleFailedAgreement(decision.status(), activity);
  param_slots_.DropAll();
  return Status();
}

// ---- Acquire and release ---------------------------------------------------

Status Units::CheckRoom(int32_t unit, const Slots& slots,
                        std::string_view what) const {
  if (slots.Find(unit) >= 0 || slots.Choose(unit) >= 0) return Status();
  std::string users;
  for (const int32_t user : slots.OtherUsers(unit)) {
    StrAppend(&users, users.empty() ? "" : ", ", states_.Name(user));
  }
  return FailedPrecondition("no slot for the ", what, " of ",
                            states_.Name(unit), ": they are in use by ", users,
                            "; release one of them first, or plan a larger "
                            "prefetch (",
                            plan_.options().prefetch, " now)");
}

Status Units::Acquire(int32_t unit, Pass pass, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken_);
  Status local = states_.CheckAcquire(unit, pass);
  if (local.ok() && gathers_ && HasTensors(unit, false)) {
    local = CheckRoom(unit, param_slots_, "parameters");
  }
  const bool wants_grads = pass != Pass::kForward && plan_.shards_grads();
  if (local.ok() && wants_grads && HasTensors(unit, true)) {
    local = CheckRoom(unit, grad_slots_, "gradients");
  }
  if (!local.ok()) {
    return gathers_ ? ReportToOthers(Activity::kGather, local, deadline)
                    : local;
  }
  Status ready;
  if (gathers_ && HasTensors(unit, false)) {
    RecordOrder(unit);
    const int found = param_slots_.Find(unit);
    if (found < 0) {
      EnqueueGather(unit, param_slots_.Choose(unit));
    } else {
      param_slots_.Take(unit, found);
    }
    const Event gathered =
        param_slots_.event(plan_.unit(unit).depth, param_slots_.Find(unit));
    Prefetch();
    ready = deps_.queue->Wait(gathered, deps_.host, deadline);
  } else {
    ready = deps_.queue->Wait(published_[static_cast<size_t>(unit)], deps_.host,
                              deadline);
  }
  if (ready.ok()) ready = deps_.copies->RefreshUnit(unit, deadline);
  if (!ready.ok()) return Fail(ready);
  if (wants_grads && HasTensors(unit, true)) {
    const Status taken = AcquireGradSlot(unit, pass, deadline);
    if (!taken.ok()) return Fail(taken);
  }
  states_.Acquire(unit, pass);
  return Status();
}

Status Units::AcquireGradSlot(int32_t unit, Pass pass,
                              const Deadline& deadline) {
  const int32_t depth = plan_.unit(unit).depth;
  const int found = grad_slots_.Find(unit);
  const int slot = found >= 0 ? found : grad_slots_.Choose(unit);
  // Gradients in the slot may still be in transfer, and the host may still
  // write those of a unit that it released without declaring them.
  SHARD_RETURN_IF_ERROR(deps_.queue->Wait(grad_slots_.event(depth, slot),
                                          deps_.compute, deadline));
  FollowHost(deadline);
  grad_slots_.Take(unit, slot);
  unsigned char* const base =
      deps_.memory->GradSlot(deps_.comm->rank(), depth, slot);
  for (const SlotPart& part : SlotParts(plan_, unit, true)) {
    const FlatBufferPlan& buffer = plan_.buffers()[part.buffer];
    const DType dtype = buffer.grad_dtype;
    unsigned char* const grads = base + part.offset;
    if (pass == Pass::kBackward && !deps_.copies->any()) {
      deps_.compute->FillZeros(grads,
                               DTypeBytes(dtype, buffer.layout.padded_numel()));
      continue;
    }
    ZeroPadding(buffer, grads);
    if (pass != Pass::kBackward) continue;
    // Bound gradients are zeroed where the host keeps them: their slots are
    // overwritten once they are ready.
    for (const Slot& slot : buffer.layout.slots()) {
      deps_.compute->FillZeros(
          deps_.copies->GradOf(slot.param,
                               grads + DTypeBytes(dtype, slot.offset)),
          DTypeBytes(dtype, slot.numel));
    }
  }
  return LeadHost(deadline);
}

void Units::ZeroPadding(const FlatBufferPlan& buffer, unsigned char* grads) {
  int64_t at = 0;
  const auto zero_to = [&](int64_t end) {
    if (end <= at) return;
    deps_.compute->FillZeros(grads + DTypeBytes(buffer.grad_dtype, at),
                             DTypeBytes(buffer.grad_dtype, end - at));
  };
  for (const Slot& slot : buffer.layout.slots()) {
    zero_to(slot.offset);
    at = slot.offset + slot.numel;
  }
  zero_to(buffer.layout.padded_numel());
}

Status Units::Release(int32_t unit, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken_);
  SHARD_RETURN_IF_ERROR(states_.CheckRelease(unit));
  // Declared gradients that are sharded would be lost with their slot.
  if (deps_.allow_missing && plan_.shards_grads() &&
      states_.SomeDeclared(unit)) {
    SHARD_RETURN_IF_ERROR(GradsReady(unit, deadline));
  }
  if (gathers_) param_slots_.Release(unit);
  if (states_.state(unit) == UnitStates::State::kBackwardPre) {
    grad_slots_.Drop(unit);
  }
  states_.Release(unit);
  return Status();
}

void Units::EnqueueGather(int32_t unit, int slot) {
  param_slots_.Take(unit, slot);
  Proposal proposal;
  proposal.activity = Activity::kGather;
  proposal.unit = unit;
  unsigned char* const to =
      deps_.memory->ParamSlot(plan_.unit(unit).depth, slot);
  param_slots_.SetEvent(
      unit,
      deps_.queue->Run("gather the parameters of a unit",
                       deps_.transfers->GatherBytes(unit),
                       [this, proposal, to] { return Perform(proposal, to); }));
}

void Units::RecordOrder(int32_t unit) {
  if (!recording_) {
    if (position_ < order_.size() && order_[position_] == unit) {
      ++position_;
      return;
    }
    // The order differs from last time: the record is cut here.
    order_.resize(position_);
    recording_ = true;
  }
  // Passes without a step, as in an evaluation, could grow the record without
  // end.
  if (order_.size() >= kMostRecorded * plan_.units().size()) return;
  order_.push_back(unit);
  position_ = order_.size();
}

void Units::ForgetOrder() {
  param_slots_.DropAll();
  order_.clear();
  position_ = 0;
  recording_ = true;
}

void Units::Prefetch() {
  if (recording_) return;
  const auto depth = static_cast<size_t>(plan_.options().prefetch);
  const size_t end = std::min(order_.size(), position_ + depth);
  for (size_t i = position_; i < end; ++i) {
    const int32_t next = order_[i];
    if (param_slots_.Find(next) >= 0) continue;
    const int slot = param_slots_.Choose(next);
    if (slot < 0) return;
    EnqueueGather(next, slot);
    // The unit is gathered, but not acquired yet.
    param_slots_.Release(next);
  }
}

// ---- Gradients -------------------------------------------------------------

void Units::EnqueueReduce(int32_t unit) {
  Proposal proposal;
  proposal.activity = Activity::kReduce;
  proposal.unit = unit;
  proposal.more = accumulate_ ? 1 : 0;
  proposal.zeroed = zeroed_;
  if (plan_.shards_grads()) proposal.slot = grad_slots_.Find(unit);
  const Event reduced = deps_.queue->Run(
      "reduce the gradients of a unit", deps_.transfers->ReduceBytes(unit),
      [this, proposal] { return Perform(proposal, nullptr); });
  if (!plan_.shards_grads()) return;
  grad_slots_.SetEvent(unit, reduced);
  grad_slots_.Drop(unit);
}

Status Units::GradsReady(int32_t unit, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken_);
  Status local = states_.CheckGradsReady(unit);
  if (local.ok() && accumulate_ && plan_.options().deterministic &&
      plan_.shards_grads()) {
    local = FailedPrecondition(
        "gradients that are sharded would be summed over the ranks before they "
        "accumulate, which the plan's deterministic excludes; plan with "
        "whole_grads to accumulate");
  }
  if (!local.ok()) {
    return AgreesWhenReady()
               ? ReportToOthers(Activity::kReduce, local, deadline)
               : local;
  }
  const bool reduces = AgreesWhenReady() && HasTensors(unit, true) &&
                       (plan_.shards_grads() || !accumulate_);
  if (reduces) {
    const Status complete = CompleteUnitGrads(unit, deadline);
    if (!complete.ok()) return Fail(complete);
    EnqueueReduce(unit);
  }
  states_.GradsReady(unit, accumulate_);
  return Status();
}

Status Units::MarkParamGradReady(ParamId param, const Status& known,
                                 const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken_);
  const Status local = known.ok() ? states_.CheckParamReady(param) : known;
  if (!local.ok()) {
    return AgreesWhenReady()
               ? ReportToOthers(Activity::kReduce, local, deadline)
               : local;
  }
  if (!states_.ParamReady(param)) return Status();
  return GradsReady(plan_.UnitOf(param), deadline);
}

unsigned char* Units::GradsOf(int32_t unit, const SlotPart& part) const {
  const int rank = deps_.comm->rank();
  if (!plan_.shards_grads()) {
    return deps_.memory->buffers()[part.buffer]
        .grads[static_cast<size_t>(rank)];
  }
  const int32_t depth = plan_.unit(unit).depth;
  return deps_.memory->GradSlot(rank, depth, grad_slots_.Find(unit)) +
         part.offset;
}

bool Units::CompleteGrad(const Slot& slot, DType dtype, bool counts,
                         void* flat) {
  if (counts) return deps_.copies->CopyGrad(slot.param, flat);
  deps_.compute->FillZeros(flat, DTypeBytes(dtype, slot.numel));
  deps_.copies->ZeroGrad(slot.param);
  return true;
}

Status Units::CompleteUnitGrads(int32_t unit, const Deadline& deadline) {
  const bool some = states_.SomeDeclared(unit);
  if (!some && !deps_.copies->any()) return Status();
  FollowHost(deadline);
  bool any = false;
  for (const SlotPart& part : SlotParts(plan_, unit, true)) {
    const FlatBufferPlan& buffer = plan_.buffers()[part.buffer];
    unsigned char* const grads = GradsOf(unit, part);
    for (const Slot& slot : buffer.layout.slots()) {
      any |= CompleteGrad(slot, buffer.grad_dtype,
                          !some || states_.Declared(slot.param),
                          grads + DTypeBytes(buffer.grad_dtype, slot.offset));
    }
  }
  // The host may write its own gradients again when this call returns.
  return any ? LeadHost(deadline) : Status();
}

Status Units::CompleteWholeGrads(const Deadline& deadline) {
  if (plan_.shards_grads()) return Status();
  const bool may_lack = deps_.allow_missing && states_.declares();
  if (!may_lack && !deps_.copies->any()) return Status();
  FollowHost(deadline);
  bool any = false;
  for (const EngineBuffer& buffer : deps_.memory->buffers()) {
    const FlatBufferPlan& plan = *buffer.plan;
    if (!plan.trainable) continue;
    // Gradients that were reduced when they became ready hold the sum.
    if (reduced_[static_cast<size_t>(plan.unit)] == zeroed_) continue;
    for (const Slot& slot : plan.layout.slots()) {
      any |= CompleteGrad(slot, plan.grad_dtype, states_.HasGrad(slot.param),
                          buffer.GradAt(deps_.comm->rank(), slot.offset));
    }
  }
  return any ? LeadHost(deadline) : Status();
}

Status Units::ClearGrads(const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(broken_);
  const Status drained = deps_.queue->Drain(deadline);
  if (!drained.ok()) return Fail(drained);
  if (plan_.shards_grads()) {
    ++zeroed_;
    dropped_ |= states_.any_ready();
  } else {
    ForgetReduced();
  }
  states_.ClearReady();
  return Status();
}

// ---- Steps -----------------------------------------------------------------

Status Units::CheckStep() const {
  SHARD_RETURN_IF_ERROR(states_.CheckAllIdle("step"));
  return deps_.allow_missing ? Status() : states_.CheckAllReady();
}

std::vector<Event> Units::EnqueueRest() {
  const std::vector<EngineBuffer>& buffers = deps_.memory->buffers();
  std::vector<Event> events(buffers.size());
  // The step itself does the rest from here.
  eager_update_ = nullptr;
  // From the last buffer to the first, as in a backward pass.
  for (size_t b = buffers.size(); b-- > 0;) {
    const FlatBufferPlan& plan = *buffers[b].plan;
    if (!plan.trainable ||
        reduced_[static_cast<size_t>(plan.unit)] == zeroed_) {
      continue;
    }
    if (reduces_later_) {
      events[b] = deps_.queue->Run("reduce the gradients of a buffer",
                                   deps_.transfers->ReduceWholeBytes(b),
                                   [this, b] { return ReduceWhole(b); });
    } else if (plan_.shards_grads()) {
      // No rank has gradients of this unit.
      deps_.compute->FillZeros(
          buffers[b].sum,
          DTypeBytes(plan.sum_dtype, plan.layout.shard_numel()));
    }
  }
  return events;
}

Status Units::ReduceWhole(size_t buffer) {
  double seconds = 0;
  Status status;
  {
    const uint64_t bytes = deps_.transfers->ReduceWholeBytes(buffer);
    Span moving(deps_.comm->observer(), EventId::kReduce,
                {.unit = plan_.buffers()[buffer].unit,
                 .bytes = static_cast<int64_t>(bytes)},
                &seconds);
    status =
        deps_.transfers->ReduceWhole(buffer, Deadline::After(deps_.timeout));
    moving.set_result(status);
  }
  deps_.queue->AddTransferTime(seconds);
  return status;
}

void Units::ForgetReduced() {
  reduced_.assign(reduced_.size(), kNeverZeroed);
  zeroed_ = 0;
  dropped_ = false;
}

void Units::FinishStep() {
  ForgetReduced();
  states_.ClearReady();
  param_slots_.DropAll();
  position_ = 0;
  if (!order_.empty()) recording_ = false;
}

void Units::SetPublished(int32_t unit, Event event) {
  published_[static_cast<size_t>(unit)] = std::move(event);
}

// ---- Where things are ------------------------------------------------------

StatusOr<void*> Units::Param(ParamId param) const {
  const ParamPlace& place = plan_.place(param);
  const EngineBuffer& buffer = deps_.memory->buffer(place.buffer);
  if (!gathers_) return buffer.ParamAt(place.offset);
  const int32_t unit = plan_.UnitOf(param);
  if (states_.state(unit) == UnitStates::State::kIdle) {
    return FailedPrecondition("parameter ", param, " is sharded, and ",
                              states_.Name(unit),
                              " is in state IDLE: acquire it first");
  }
  const int32_t depth = plan_.unit(unit).depth;
  unsigned char* const slot =
      deps_.memory->ParamSlot(depth, param_slots_.Find(unit));
  for (const SlotPart& part : SlotParts(plan_, unit, false)) {
    if (part.buffer != static_cast<size_t>(place.buffer)) continue;
    return static_cast<void*>(slot + part.offset +
                              DTypeBytes(buffer.plan->dtype, place.offset));
  }
  return Internal("parameter ", param, " is not in its unit");
}

StatusOr<void*> Units::Grad(ParamId param) const {
  const ParamPlace& place = plan_.place(param);
  const EngineBuffer& buffer = deps_.memory->buffer(place.buffer);
  if (!plan_.shards_grads()) {
    return deps_.copies->GradOf(
        param, buffer.GradAt(deps_.comm->rank(), place.offset));
  }
  const int32_t unit = plan_.UnitOf(param);
  const UnitStates::State state = states_.state(unit);
  if (state != UnitStates::State::kBackwardPre) {
    return FailedPrecondition("the gradient of parameter ", param,
                              " is sharded, and ", states_.Name(unit),
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
