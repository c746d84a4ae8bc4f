// SPDX-License-Identifier: Apache-2.0
//
// Steps that the host captures in a graph, and their replays.

#include <string>
#include <utility>

#include "core/base/strings.h"
#include "core/engine/step/step_coordinator.h"

namespace shard {

Status StepCoordinator::CheckCapture(const Deadline& deadline) const {
  const int ranks = deps_.comm->world_size();
  const Plan& plan = *runtime_->plan();
  if (ranks > 1 && !runtime_->collectives().RunsOnDevice()) {
    return Unimplemented("capture_begin with ", ranks,
                         " ranks, between which tensors are moved by '",
                         runtime_->collectives().transport(),
                         "': only NCCL's transfers can be part of a graph; "
                         "create the engine with collectives=nccl, or step "
                         "without a graph");
  }
  if (deps_.missing_grads != MissingGrads::kError) {
    return FailedPrecondition(
        "capture_begin with missing_grads, which chooses parameters anew in "
        "each step; create the engine without it");
  }
  SHARD_RETURN_IF_ERROR(CheckBetweenSteps("capture_begin"));
  if (ranks == 1 && !deps_.comm->direct()) {
    return Unimplemented(
        "capture_begin with a communicator of direct=0, whose transfers are "
        "no part of a graph; leave direct=0 out");
  }
  if (ranks > 1 && (plan.shards_grads() || plan.shards_params() ||
                    runtime_->stepper().overlaps())) {
    return FailedPrecondition(
        "capture_begin with gradients or parameters that are sharded, or with "
        "overlap, where units are acquired and marked: in a graph nothing does "
        "that; plan with stage 0 or 1, and leave overlap out");
  }
  if (runtime_->units().states().declares()) {
    return FailedPrecondition(
        "capture_begin on an engine whose units or gradients were marked: in a "
        "graph nothing tells that gradients are ready; capture on an engine "
        "without unit_acquire and mark_..._ready");
  }
  if (pending_ && replays_) {
    return FailedPrecondition(
        "capture_begin after a replay that nothing has waited for; call "
        "synchronize before the capture of the stream begins");
  }
  return TakeResult(deadline);
}

void StepCoordinator::BeginCapture(uint64_t capture) {
  capture_ = capture;
  runtime_->stepper().SetCaptures(true);
}

Status StepCoordinator::CheckSameCapture() const {
  SHARD_ASSIGN_OR_RETURN(const uint64_t active,
                         runtime_->host().get()->CaptureId());
  if (active == capture_) return Status();
  return FailedPrecondition(
      "the host's capture has ended before capture_end, and another has begun");
}

Status StepCoordinator::EndCapture(const Status& local,
                                   const Deadline& deadline) {
  const bool has_step = captured_in_ == capture_;
  capture_.reset();
  runtime_->stepper().SetCaptures(false);
  const Status ended =
      std::exchange(entered_, false)
          ? AgreeOnStatus(deps_.comm, "end a capture", local, deadline)
          : local;
  if (!ended.ok() && has_step) {
    ForgetCaptured("the end of its capture was an error");
  }
  return ended;
}

Status StepCoordinator::CheckCaptureStep(const StatusOr<StepOptions>& given,
                                         const Status& known,
                                         const StepReport* report) const {
  if (report != nullptr) {
    return FailedPrecondition(
        "step with a report between capture_begin and capture_end, where "
        "nothing runs; leave the report out");
  }
  if (captured_in_ == capture_) {
    return FailedPrecondition(
        "a second step in one capture of the host's stream, whose steps would "
        "be replayed with the values of one; capture each in a graph of its "
        "own");
  }
  return CheckStep(given, known);
}

Status StepCoordinator::CaptureStep(const StatusOr<StepOptions>& given,
                                    const Status& known,
                                    const Deadline& deadline,
                                    const StepReport* report) {
  const Status local = CheckCaptureStep(given, known, report);
  int32_t active = 0;
  SHARD_ASSIGN_OR_RETURN(
      const StepInput input,
      Enter(Activity::kCapture, given, local, deadline, &active));
  // A step that a rank refuses leaves the graph before it usable on all.
  captured_in_ = capture_;
  entered_ = true;
  ForgetCaptured("the capture of another step has failed since");
  Units& units = runtime_->units();
  Stepper& stepper = runtime_->stepper();
  Captured captured;
  SHARD_RETURN_IF_ERROR(stepper.WatchLaunches(deadline));
  Status enqueued = units.CompleteGrads(deadline);
  if (enqueued.ok()) {
    StepReport dropped;
    stepper.EnqueueBegin();
    enqueued =
        stepper.Run(input, units.SomeAreAsync(), /*together=*/false,
                    units.EnqueueRest(true, deadline), deadline, &dropped);
  }
  units.FinishStep();
  captured.bound_bytes = runtime_->bound_copies().TakeBytes();
  // Nothing has run, so this ends nothing. No rank has a graph where one
  // failed.
  const Status agreed =
      AgreeOnStatus(deps_.comm, "capture a step", enqueued, deadline);
  // But for a library that has failed, which ended the family.
  if (agreed.code() == StatusCode::kPoisoned) return units.Fail(agreed);
  SHARD_RETURN_IF_ERROR(agreed);
  captured.form = stepper.FormOf(input);
  captured.bytes = stepper.bytes();
  captured_ = std::move(captured);
  return Status();
}

Status StepCoordinator::CheckReplay(const StatusOr<StepOptions>& given,
                                    const Status& known) const {
  SHARD_RETURN_IF_ERROR(CheckStep(given, known));
  SHARD_RETURN_IF_ERROR(CheckNotBegun("before_replay"));
  if (captured_) return Status();
  return FailedPrecondition("before_replay: ", not_captured_,
                            "; capture the step again");
}

Status StepCoordinator::BeforeReplay(const StatusOr<StepOptions>& given,
                                     const Status& known,
                                     const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(TakeResult(deadline));
  StepReport report;
  SHARD_ASSIGN_OR_RETURN(
      const StepInput input,
      Enter(Activity::kReplay, given, CheckReplay(given, known), deadline,
            &report.active));
  const StepForm form =
      runtime_->stepper().LatchReplay(input, captured_->bytes);
  runtime_->units().FinishStep();
  if (const std::string difference = form.DifferenceTo(captured_->form);
      !difference.empty()) {
    return FailedPrecondition(
        "before_replay of another step than the one that "
        "was captured: ",
        difference, "; capture it again, or step without the graph");
  }
  report.loss_scale = LossScaleOf(*given, agreement_.setting());
  report.bytes_moved = captured_->bound_bytes;
  pending_ = report;
  replays_ = true;
  runtime_->stepper().launches().Expect();
  return Status();
}

void StepCoordinator::ForgetCaptured(std::string_view reason) {
  if (!captured_) return;
  captured_.reset();
  not_captured_ = reason;
}

}  // namespace shard
