// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/step_coordinator.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/base/dtype.h"
#include "core/comm/agreement.h"
#include "core/engine/transfer/stopwatch.h"

namespace shard {

void StepCoordinator::Adopt(Assembly* assembly) {
  assembly_ = assembly;
  trainable_numel_ = 0;
  for (const FlatBufferPlan& buffer : assembly_->plan()->buffers()) {
    if (buffer.trainable) {
      trainable_numel_ += static_cast<double>(buffer.layout.numel());
    }
  }
}

StepSetting StepCoordinator::Setting() const {
  return {parts_.comm->world_size(), trainable_numel_,
          &parts_.counters->loss_scaler()};
}

Note StepCoordinator::NoteOf(Activity activity,
                             const StepOptions& options) const {
  Note note;
  note.activity = activity;
  note.step = EntryOf(options, Setting(), parts_.hypers->Fingerprint52(),
                      parts_.counters->step() + 1);
  return note;
}

Status StepCoordinator::CheckNotBegun(std::string_view what) const {
  if (!begun_) return Status();
  return FailedPrecondition(
      what, " after begin_step: call it before begin_step, or step first");
}

Status StepCoordinator::CheckBetweenSteps(std::string_view what) const {
  SHARD_RETURN_IF_ERROR(assembly_->units().states().CheckAllIdle(what));
  if (!begun_ && !assembly_->units().states().any_ready()) return Status();
  return FailedPrecondition(
      what, " in state FORWARD_BACKWARD, ",
      begun_ ? "after begin_step" : "with gradients that are ready",
      "; it needs IDLE: step first");
}

Status StepCoordinator::CheckBegin(const StepOptions& options) const {
  const char* needs =
      options.max_grad_norm > 0                      ? "max_grad_norm"
      : options.skip_nonfinite                       ? "skip_nonfinite"
      : parts_.counters->loss_scaler().dynamic()     ? "dynamic loss_scaling"
      : parts_.missing_grads != MissingGrads::kError ? "missing_grads"
                                                     : nullptr;
  if (needs != nullptr) {
    return FailedPrecondition("begin_step with ", needs,
                              ", which needs all gradients before anything is "
                              "updated; call step alone");
  }
  if (begun_) {
    return FailedPrecondition("begin_step after begin_step: call step first");
  }
  if (assembly_->units().states().any_ready()) {
    return FailedPrecondition(
        "begin_step with gradients that are ready: call it before the backward "
        "pass");
  }
  return Status();
}

Status StepCoordinator::ZeroGrad(const Deadline& deadline) {
  if (begun_ && assembly_->units().states().any_ready()) {
    return FailedPrecondition(
        "zero_grad after begin_step, with gradients that were ready and may be "
        "applied already: step first");
  }
  SHARD_RETURN_IF_ERROR(assembly_->units().ClearGrads(deadline));
  return ZeroWholeGrads(deadline);
}

Status StepCoordinator::ZeroWholeGrads(const Deadline& deadline) {
  Stream& compute = assembly_->compute();
  for (const EngineBuffer& buffer : assembly_->memory().buffers()) {
    if (buffer.grads.empty()) continue;
    compute.FillZeros(buffer.GradAt(parts_.comm->rank(), 0),
                      DTypeBytes(buffer.plan->grad_dtype,
                                 buffer.plan->layout.padded_numel()));
  }
  return parts_.device->HostWait(compute.Record(), deadline);
}

Status StepCoordinator::Begin(const StatusOr<StepOptions>& given,
                              const Status& known, const Deadline& deadline) {
  const StepOptions options = given.ok() ? *given : StepOptions();
  Status local = given.status();
  if (local.ok()) local = known;
  if (local.ok()) local = CheckStepOptions(options, Setting());
  if (local.ok()) local = parts_.counters->CheckStepCount();
  if (local.ok()) local = CheckBegin(options);
  const Note note = NoteOf(Activity::kBeginStep, options);
  int32_t leader = 0;
  SHARD_RETURN_IF_ERROR(
      assembly_->units().EnterStep(note, local, deadline, &leader));
  return RunBegin(options, leader, deadline);
}

Status StepCoordinator::RunBegin(const StepOptions& options, int32_t leader,
                                 const Deadline& deadline) {
  SHARD_ASSIGN_OR_RETURN(begun_input_,
                         Prepare(options, leader, deadline, &begun_active_));
  begun_ = options;
  assembly_->stepper().Begin(begun_input_);
  assembly_->units().SetAhead(
      [this](int32_t unit,
             const std::vector<std::vector<const void*>>* in_place,
             const Deadline& until) {
        return assembly_->stepper().RunAhead(unit, in_place, until);
      });
  return Status();
}

Status StepCoordinator::Step(const StatusOr<StepOptions>& given,
                             const Status& known, const Deadline& deadline,
                             StepReport* report) {
  *report = StepReport();
  StepOptions options = given.ok() ? *given : StepOptions();
  Stopwatch total(&report->seconds_total);
  Status local = given.status();
  if (local.ok() && begun_) {
    local = CheckSameStep(options, *begun_);
    options = *begun_;
  }
  if (local.ok()) local = known;
  if (local.ok()) local = CheckStepOptions(options, Setting());
  if (local.ok()) local = parts_.counters->CheckStepCount();
  if (local.ok()) local = assembly_->units().CheckStep();
  const Note note = NoteOf(Activity::kStep, options);
  int32_t leader = 0;
  {
    Stopwatch wait(&report->seconds_wait);
    SHARD_RETURN_IF_ERROR(
        assembly_->units().EnterStep(note, local, deadline, &leader));
  }
  return RunStep(options, leader, deadline, report);
}

Status StepCoordinator::Join(const Status& known, double timeout,
                             int64_t* steps) {
  *steps = 0;
  Status local = known;
  for (;;) {
    const Deadline deadline = Deadline::After(timeout);
    // Zeroed before other ranks read the gradients.
    if (local.ok()) local = ZeroWholeGrads(deadline);
    Note note = NoteOf(Activity::kJoin, StepOptions());
    note.active = 0;
    int32_t leader = 0;
    bool joined = false;
    SHARD_RETURN_IF_ERROR(
        assembly_->units().Follow(note, local, deadline, &leader, &joined));
    if (joined) return Status();
    const auto& led = assembly_->units().notes()[static_cast<size_t>(leader)];
    const StepOptions options = OptionsOf(led.step);
    if (led.activity == Activity::kBeginStep) {
      SHARD_RETURN_IF_ERROR(RunBegin(options, leader, deadline));
      continue;
    }
    StepReport report;
    SHARD_RETURN_IF_ERROR(RunStep(options, leader, deadline, &report));
    ++*steps;
  }
}

StatusOr<StepInput> StepCoordinator::Prepare(const StepOptions& options,
                                             int32_t leader,
                                             const Deadline& deadline,
                                             int32_t* active) {
  const std::vector<Note>& notes = assembly_->units().notes();
  SHARD_RETURN_IF_ERROR(AgreeOnEntries(leader, deadline));
  *active = 0;
  for (const Note& note : notes) *active += note.active;
  SHARD_RETURN_IF_ERROR(AgreeOnHypers(leader, deadline));
  SHARD_RETURN_IF_ERROR(ChooseParamSteps(deadline));
  StepInput input;
  input.optimizers = &parts_.hypers->optimizers();
  input.step = parts_.counters->step() + 1;
  input.param_steps = parts_.counters->next_steps();
  input.gradient_scale = 1.0 / (GradDivisorOf(options, Setting(), *active) *
                                LossScaleOf(options, Setting()));
  input.max_grad_norm = options.max_grad_norm;
  input.norm_type = NormTypeOf(options.grad_norm_type);
  input.norm_p = options.grad_norm_type;
  input.clip_value = options.clip_value;
  input.skip_nonfinite =
      options.skip_nonfinite || parts_.counters->loss_scaler().dynamic();
  return input;
}

Status StepCoordinator::RunStep(const StepOptions& options, int32_t leader,
                                const Deadline& deadline, StepReport* report) {
  Units& units = assembly_->units();
  StepInput input;
  if (begun_) {
    SHARD_RETURN_IF_ERROR(AgreeOnEntries(leader, deadline));
    input = begun_input_;
    report->active = begun_active_;
  } else {
    SHARD_ASSIGN_OR_RETURN(input,
                           Prepare(options, leader, deadline, &report->active));
  }
  report->loss_scale = LossScaleOf(options, Setting());
  const Status ran = assembly_->stepper().Run(input, deadline, report);
  // Fails for good: some of the parameters may be updated.
  if (!ran.ok()) return units.Fail(ran);
  begun_.reset();
  units.FinishStep();
  parts_.counters->Count(report->skipped);
  report->step = parts_.counters->step();
  report->comm = assembly_->queue().Take();
  return Status();
}

Status StepCoordinator::AgreeOnEntries(int32_t leader,
                                       const Deadline& deadline) {
  const std::vector<Note>& notes = assembly_->units().notes();
  if (SameEntries(notes)) return Status();
  Note mine = notes[static_cast<size_t>(parts_.comm->rank())];
  // Ranks in join take the options of the others, and may take their step
  // count.
  if (mine.activity == Activity::kJoin) {
    const Note& led = notes[static_cast<size_t>(leader)];
    mine.step = led.step;
    if (mine.zeroed == kNeverZeroed) mine.zeroed = led.zeroed;
  }
  return CheckAgreement(
      parts_.comm,
      "the step (a rank that called zero_grad less often calls it, too)",
      [&mine](FactSink* sink) { DescribeEntry(mine, sink); }, deadline);
}

Status StepCoordinator::AgreeOnHypers(int32_t leader,
                                      const Deadline& deadline) {
  const std::vector<Note>& notes = assembly_->units().notes();
  const double led = notes[static_cast<size_t>(leader)].step.hypers;
  if (!SameHypers(notes)) {
    // Ranks in join may have different values.
    const bool joined =
        notes[static_cast<size_t>(parts_.comm->rank())].activity ==
        Activity::kJoin;
    const auto describe = [this](FactSink* sink) {
      parts_.hypers->Describe(sink);
    };
    return CheckAgreement(parts_.comm, "the hyperparameters of the step",
                          static_cast<uint64_t>(parts_.hypers->Fingerprint52()),
                          joined ? DescribeFacts() : describe, deadline);
  }
  const bool all = std::all_of(notes.begin(), notes.end(), [&](const Note& n) {
    return n.step.hypers == led;
  });
  if (all) return Status();
  // Ranks in join do not see the changes that hosts make on other ranks.
  const std::vector<double> mine = parts_.hypers->Values();
  std::vector<double> values(mine.size() * notes.size());
  SHARD_RETURN_IF_ERROR(parts_.comm->AllGather(
      "step: hyperparameters for join", mine.data(),
      mine.size() * sizeof(double), values.data(), deadline));
  parts_.hypers->SetValues(values.data() +
                           mine.size() * static_cast<size_t>(leader));
  return Status();
}

Status StepCoordinator::ChooseParamSteps(const Deadline& deadline) {
  const Plan& plan = *assembly_->plan();
  if (parts_.missing_grads != MissingGrads::kSkip) {
    parts_.counters->ChooseAll(plan);
    return Status();
  }
  // One bit per parameter: whether this rank has a gradient.
  const UnitStates& states = assembly_->units().states();
  const Note& mine =
      assembly_->units().notes()[static_cast<size_t>(parts_.comm->rank())];
  const std::vector<int32_t>& positions = plan.positions();
  const size_t bytes = (plan.NumStored() + 7) / 8;
  std::vector<uint8_t> bits(bytes);
  for (size_t p = 0; p < positions.size(); ++p) {
    if (positions[p] < 0 || mine.active == 0) continue;
    if (!states.HasGrad(static_cast<ParamId>(p))) continue;
    const auto position = static_cast<size_t>(positions[p]);
    bits[position / 8] |= static_cast<uint8_t>(1 << position % 8);
  }
  const auto ranks = static_cast<size_t>(parts_.comm->world_size());
  std::vector<uint8_t> gathered(bytes * ranks);
  SHARD_RETURN_IF_ERROR(
      parts_.comm->AllGather("step: parameters with gradients", bits.data(),
                             bytes, gathered.data(), deadline));
  parts_.counters->Choose(plan, [&](size_t position) {
    bool any = false;
    for (size_t r = 0; r < ranks; ++r) {
      any =
          any || (gathered[r * bytes + position / 8] >> position % 8 & 1) != 0;
    }
    return any;
  });
  return Status();
}

}  // namespace shard
