// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/step_coordinator.h"

#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/engine/transfer/stopwatch.h"
#include "core/observe/observer.h"

namespace shard {

void StepCoordinator::SetRuntime(EngineRuntime* runtime) {
  if (runtime_ != nullptr && runtime_->stepper().launches().TakeStray()) {
    runtime->stepper().launches().AddStray();
  }
  runtime_ = runtime;
  // Left over where the host did not launch the graph of the old plan.
  pending_.reset();
  replays_ = false;
  agreement_.SetUnits(runtime->plan().get(), &runtime->units());
  ForgetCaptured("the plan has changed since");
}

Status StepCoordinator::CheckNotBegun(std::string_view what) const {
  if (!begun_) return Status();
  return FailedPrecondition(
      what, " after begin_step: call it before begin_step, or step first");
}

Status StepCoordinator::CheckBetweenSteps(std::string_view what) const {
  SHARD_RETURN_IF_ERROR(runtime_->units().states().CheckAllIdle(what));
  if (!begun_ && !runtime_->units().states().any_ready()) return Status();
  return FailedPrecondition(
      what, " in state FORWARD_BACKWARD, ",
      begun_ ? "after begin_step" : "with gradients that are ready",
      "; it needs IDLE: step first");
}

Status StepCoordinator::CheckBegin(const StepOptions& options) const {
  const char* needs =
      options.max_grad_norm > 0                     ? "max_grad_norm"
      : options.skip_nonfinite                      ? "skip_nonfinite"
      : deps_.counters->loss_scaler().dynamic()     ? "dynamic loss_scaling"
      : deps_.missing_grads != MissingGrads::kError ? "missing_grads"
                                                    : nullptr;
  if (needs != nullptr) {
    return FailedPrecondition("begin_step with ", needs,
                              ", which needs all gradients before anything is "
                              "updated; call step alone");
  }
  if (begun_) {
    return FailedPrecondition("begin_step after begin_step: call step first");
  }
  if (runtime_->units().states().any_ready()) {
    return FailedPrecondition(
        "begin_step with gradients that are ready: call it before the backward "
        "pass");
  }
  return Status();
}

Status StepCoordinator::ZeroGrad(const Deadline& deadline) {
  if (begun_ && runtime_->units().states().any_ready()) {
    return FailedPrecondition(
        "zero_grad after begin_step, with gradients that were ready and may be "
        "applied already: step first");
  }
  // Outside a capture the error of a stream is final.
  if (captures() && entered_) SHARD_RETURN_IF_ERROR(runtime_->CaptureError());
  SHARD_RETURN_IF_ERROR(runtime_->units().ClearGrads(deadline));
  const Status zeroed = ZeroWholeGrads(deadline);
  // In a capture, the step that follows tells it to all ranks, which wait for
  // each other there.
  const bool is_told =
      captures() && !entered_ && !runtime_->CaptureError().ok();
  return is_told ? Status() : zeroed;
}

Status StepCoordinator::ZeroWholeGrads(const Deadline& deadline) {
  HostStream& host = runtime_->host();
  Stream& compute = runtime_->compute();
  compute.Wait(host.Record(), deadline);
  for (const EngineBuffer& buffer : runtime_->memory().buffers()) {
    if (buffer.grads.empty()) continue;
    compute.FillZeros(buffer.GradAt(deps_.comm->rank(), 0),
                      DTypeBytes(buffer.plan->grad_dtype,
                                 buffer.plan->layout.padded_numel()));
  }
  runtime_->bound_copies().ZeroGrads();
  host.Wait(compute.Record(), deadline);
  return host.status();
}

Status StepCoordinator::Begin(const StatusOr<StepOptions>& given,
                              const Status& known, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(TakeResult(deadline));
  const StepOptions options = given.ok() ? *given : StepOptions();
  Status local = given.status();
  if (local.ok()) local = known;
  if (local.ok()) local = CheckStepOptions(options, agreement_.setting());
  if (local.ok()) local = deps_.counters->CheckStepCount();
  if (local.ok()) local = CheckBegin(options);
  const Proposal proposal =
      agreement_.ProposalFor(Activity::kBeginStep, options);
  int32_t leader = 0;
  SHARD_RETURN_IF_ERROR(EnterRanks(proposal, local, deadline, &leader));
  return RunBegin(options, leader, deadline);
}

Status StepCoordinator::RunBegin(const StepOptions& options, int32_t leader,
                                 const Deadline& deadline) {
  SHARD_ASSIGN_OR_RETURN(
      begun_input_,
      agreement_.Agree(options, leader, deadline, &begun_active_));
  begun_ = options;
  runtime_->stepper().Begin(begun_input_, deadline);
  runtime_->units().SetEagerUpdate(
      [this](int32_t unit,
             const std::vector<std::vector<const void*>>* in_place,
             Stream* stream) {
        return runtime_->stepper().UpdateEagerly(unit, in_place, stream);
      });
  return Status();
}

Status StepCoordinator::Step(const StatusOr<StepOptions>& given,
                             const Status& known, const Deadline& deadline,
                             StepReport* report) {
  if (captures()) return CaptureStep(given, known, deadline, report);
  SHARD_RETURN_IF_ERROR(TakeResult(deadline));
  StepReport made;
  double seconds = 0;
  {
    Stopwatch total(&seconds);
    SHARD_RETURN_IF_ERROR(EnterAndRun(given, known, deadline, &made));
    if (report != nullptr || !returns_early_) {
      SHARD_RETURN_IF_ERROR(TakeResult(deadline));
    }
  }
  (pending_ ? pending_ : last_report_)->seconds_total = seconds;
  if (report != nullptr) *report = *last_report_;
  return Status();
}

Status StepCoordinator::CheckStep(const StatusOr<StepOptions>& given,
                                  const Status& known) const {
  SHARD_RETURN_IF_ERROR(given.status());
  SHARD_RETURN_IF_ERROR(known);
  SHARD_RETURN_IF_ERROR(CheckStepOptions(*given, agreement_.setting()));
  SHARD_RETURN_IF_ERROR(deps_.counters->CheckStepCount());
  SHARD_RETURN_IF_ERROR(runtime_->units().CheckStep());
  return CheckNoStray();
}

Status StepCoordinator::CheckNoStray() const {
  if (!runtime_->stepper().launches().TakeStray()) return Status();
  return FailedPrecondition(
      "a graph was launched without before_replay, or twice after one, and "
      "has stepped with old values; load a checkpoint from before, and launch "
      "it once after each before_replay");
}

Status StepCoordinator::EnterRanks(const Proposal& proposal,
                                   const Status& local,
                                   const Deadline& deadline, int32_t* leader) {
  Status entered =
      runtime_->units().EnterStep(proposal, local, deadline, leader);
  if (!std::exchange(dropped_, false) ||
      entered.code() != StatusCode::kDeadlineExceeded) {
    return entered;
  }
  // The others' collectives wait for this rank's, and their hosts for those.
  return entered.WithContext(
      "after before_replay, this rank has not launched its graph");
}

StatusOr<StepInput> StepCoordinator::Enter(Activity activity,
                                           const StatusOr<StepOptions>& given,
                                           const Status& local,
                                           const Deadline& deadline,
                                           int32_t* active) {
  const StepOptions options = given.ok() ? *given : StepOptions();
  int32_t leader = 0;
  SHARD_RETURN_IF_ERROR(EnterRanks(agreement_.ProposalFor(activity, options),
                                   local, deadline, &leader));
  return agreement_.Agree(options, leader, deadline, active);
}

StatusOr<StepReport> StepCoordinator::LastReport(
    const Deadline& deadline) const {
  SHARD_RETURN_IF_ERROR(Await(deadline));
  if (last_report_) return *last_report_;
  return FailedPrecondition("last_report before the first step: step first");
}

Status StepCoordinator::EnterAndRun(const StatusOr<StepOptions>& given,
                                    const Status& known,
                                    const Deadline& deadline,
                                    StepReport* report) {
  StepOptions options = given.ok() ? *given : StepOptions();
  Status local = given.status();
  if (local.ok() && begun_) {
    local = CheckSameStep(options, *begun_);
    options = *begun_;
  }
  if (local.ok()) local = CheckStep(options, known);
  const Proposal proposal = agreement_.ProposalFor(Activity::kStep, options);
  int32_t leader = 0;
  {
    Span wait(deps_.comm->observer(), EventId::kEnter, {},
              &report->seconds_wait);
    const Status entered = EnterRanks(proposal, local, deadline, &leader);
    wait.set_result(entered);
    if (!entered.ok()) return entered;
  }
  return RunStep(options, leader, deadline, report);
}

Status StepCoordinator::Join(const Status& known, double timeout,
                             int64_t* steps) {
  *steps = 0;
  Status local = known;
  for (;;) {
    const Deadline deadline = Deadline::After(timeout);
    SHARD_RETURN_IF_ERROR(TakeResult(deadline));
    // Zeroed before other ranks read the gradients.
    if (local.ok()) local = ZeroWholeGrads(deadline);
    Proposal proposal = agreement_.ProposalFor(Activity::kJoin, StepOptions());
    proposal.active = 0;
    int32_t leader = 0;
    bool joined = false;
    SHARD_RETURN_IF_ERROR(
        runtime_->units().Follow(proposal, local, deadline, &leader, &joined));
    if (joined) return Status();
    const auto& led =
        runtime_->units().proposals()[static_cast<size_t>(leader)];
    const StepOptions options = OptionsOf(led.step);
    if (led.activity == Activity::kBeginStep) {
      SHARD_RETURN_IF_ERROR(RunBegin(options, leader, deadline));
      continue;
    }
    StepReport report;
    double seconds = 0;
    SHARD_RETURN_IF_ERROR(Observe(
        deps_.comm->observer(), EventId::kStep,
        {.step = deps_.counters->step() + 1}, [&]() -> Status {
          Stopwatch total(&seconds);
          SHARD_RETURN_IF_ERROR(RunStep(options, leader, deadline, &report));
          return TakeResult(deadline);
        }));
    last_report_->seconds_total = seconds;
    ++*steps;
  }
}

Status StepCoordinator::RunStep(const StepOptions& options, int32_t leader,
                                const Deadline& deadline, StepReport* report) {
  Units& units = runtime_->units();
  StepInput input;
  if (begun_) {
    SHARD_RETURN_IF_ERROR(agreement_.AgreeOnEntries(leader, deadline));
    input = begun_input_;
    report->active = begun_active_;
  } else {
    SHARD_ASSIGN_OR_RETURN(
        input, agreement_.Agree(options, leader, deadline, &report->active));
  }
  report->loss_scale = LossScaleOf(options, agreement_.setting());
  const bool meets = units.SomeAreAsync();
  Stepper& stepper = runtime_->stepper();
  const bool together =
      stepper.CanUpdateTogether(input) && !units.SomeReduced();
  const Status ran =
      stepper.Run(input, meets, together,
                  units.EnqueueRest(!together, deadline), deadline, report);
  // Fails for good: some of the parameters may be updated.
  if (!ran.ok()) return units.Fail(ran);
  begun_.reset();
  units.FinishStep();
  report->bytes_moved += runtime_->bound_copies().TakeBytes();
  pending_ = *report;
  replays_ = false;
  return Status();
}

Status StepCoordinator::Await(const Deadline& deadline) const {
  if (!pending_) return Status();
  StepReport taken = *pending_;
  Stepper& stepper = runtime_->stepper();
  if (replays_) {
    // The host has launched the graph on its stream.
    SHARD_RETURN_IF_ERROR(runtime_->host().CheckNotCaptured());
    stepper.SetFinished(runtime_->host().Record());
  }
  const bool waits = !stepper.IsFinished();
  Status finished = stepper.AwaitResult(deadline, &taken);
  if (!finished.ok()) {
    // A step that is late may still end well.
    if (!stepper.IsFinished()) return finished;
    // It may have ended just after the deadline.
    finished = stepper.AwaitResult(deadline, &taken);
  }
  // Collectives of a replay may have been aborted, which ends the graph.
  if (finished.ok() && replays_) finished = stepper.LaunchError();
  // The host has not launched the graph yet.
  if (finished.ok() && replays_ && !stepper.launches().ExpectedHasEnded()) {
    return Status();
  }
  pending_.reset();
  replays_ = false;
  if (!finished.ok()) return runtime_->units().Fail(finished);
  deps_.counters->Count(taken.skipped);
  taken.step = deps_.counters->step();
  // Where nothing has waited for the step, also those of later transfers.
  runtime_->queue().RetireFinished(!waits);
  taken.comm = runtime_->queue().TakeCounters();
  last_report_ = taken;
  deps_.comm->observer()->Count(EventId::kOverlapped,
                                taken.comm.bytes_overlapped);
  if (taken.skipped) {
    deps_.comm->observer()->Log(EventId::kSkipped, "a step after step ",
                                taken.step, " was skipped, with loss scale ",
                                taken.loss_scale, ": gradients are not finite");
  }
  return Status();
}

Status StepCoordinator::AwaitLaunches(const Deadline& deadline) const {
  const Status finished = Await(deadline);
  const bool is_late = finished.code() == StatusCode::kDeadlineExceeded;
  if (!finished.ok() && !is_late) return finished;
  // A step that is late may be behind a stray, which may have been ended by
  // now.
  const Stepper& stepper = runtime_->stepper();
  Status ended = stepper.AwaitStray(deadline);
  if (ended.ok() && is_late && replays_) ended = stepper.LaunchError();
  // A launch may be on its way that reads the values of a step.
  if (ended.ok() && finished.ok() && captured_in_ &&
      deps_.comm->world_size() > 1 &&
      runtime_->host().CheckNotCaptured().ok()) {
    ended = runtime_->host().Synchronize(deadline);
  }
  if (ended.ok()) return finished;
  const bool goes_on = ended.code() == StatusCode::kDeadlineExceeded &&
                       runtime_->compute().status().ok();
  return goes_on ? ended : runtime_->units().Fail(ended);
}

Status StepCoordinator::TakeResult(const Deadline& deadline) const {
  if (pending_ && replays_) {
    SHARD_RETURN_IF_ERROR(runtime_->host().CheckNotCaptured());
  }
  if (const Status finished = AwaitLaunches(deadline); !finished.ok()) {
    // More of the host's work may be behind a launch.
    const bool goes_on = !pending_ || replays_ ||
                         runtime_->stepper().launches().OneTooManyRuns();
    return goes_on && finished.code() == StatusCode::kDeadlineExceeded
               ? finished
               : runtime_->units().Fail(finished);
  }
  // Left over where the host did not launch the graph: nothing has run.
  dropped_ = pending_ && replays_;
  if (dropped_) runtime_->stepper().launches().Forget();
  pending_.reset();
  replays_ = false;
  return Status();
}

Counters& StepCoordinator::counters(const Deadline& deadline) const {
  (void)Await(deadline).ok();
  return *deps_.counters;
}

}  // namespace shard
