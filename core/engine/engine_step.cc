// SPDX-License-Identifier: Apache-2.0
//
// The engine's step, and what a rank without input does of it.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/agreement.h"
#include "core/engine/engine.h"
#include "core/engine/state/describe.h"
#include "core/engine/transfer/stopwatch.h"

namespace shard {

StepSetting Engine::Setting() const {
  return {comm_->world_size(), trainable_numel_, &loss_scaler_};
}

Status Engine::CheckBetweenSteps(std::string_view what) const {
  SHARD_RETURN_IF_ERROR(CheckTraining(what));
  SHARD_RETURN_IF_ERROR(assembly_->units().states().CheckAllIdle(what));
  if (!begun_ && !assembly_->units().states().any_ready()) return Status();
  return FailedPrecondition(
      what, " in state FORWARD_BACKWARD, ",
      begun_ ? "after begin_step" : "with gradients that are ready",
      "; it needs IDLE: step first");
}

Status Engine::CheckNotBegun(std::string_view what) const {
  if (!begun_) return Status();
  return FailedPrecondition(
      what, " after begin_step: call it before begin_step, or step first");
}

Status Engine::CheckBeginStep(const StepOptions& options) const {
  const char* needs = options.max_grad_norm > 0 ? "max_grad_norm"
                      : options.skip_nonfinite  ? "skip_nonfinite"
                      : loss_scaler_.dynamic()  ? "dynamic loss_scaling"
                      : missing_grads_ != MissingGrads::kError ? "missing_grads"
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

Status Engine::CheckStepCount() const {
  int64_t most = step_;
  for (const int64_t steps : param_steps_) most = std::max(most, steps);
  if (most < kMostSteps) return Status();
  return OutOfRange("step ", most + 1, " is out of range; allowed: 1 to ",
                    kMostSteps, "; set_step sets a lower number of steps done");
}

Status Engine::SetHyper(GroupId group, std::string_view key, double value) {
  SHARD_RETURN_IF_ERROR(CheckNotBegun("set_hyper"));
  return hypers_.Set(group, key, value);
}

Status Engine::BeginStep(const StatusOr<StepOptions>& given) {
  const StepOptions options = given.ok() ? *given : StepOptions();
  const Deadline deadline = DeadlineOf(options.timeout);
  Status local = given.status();
  if (local.ok()) local = CheckTraining("begin_step");
  if (local.ok()) local = CheckStepOptions(options, Setting());
  if (local.ok()) local = CheckStepCount();
  if (local.ok()) local = CheckBeginStep(options);
  Note note;
  note.activity = Activity::kBeginStep;
  note.step = EntryOf(options, Setting(), hypers_.Fingerprint52(), step_ + 1);
  int32_t leader = 0;
  SHARD_RETURN_IF_ERROR(
      assembly_->units().EnterStep(note, local, deadline, &leader));
  return RunBeginStep(options, leader, deadline);
}

Status Engine::RunBeginStep(const StepOptions& options, int32_t leader,
                            const Deadline& deadline) {
  SHARD_ASSIGN_OR_RETURN(
      begun_input_, PrepareStep(options, leader, deadline, &begun_active_));
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

Status Engine::Step(const StatusOr<StepOptions>& given, StepReport* report) {
  *report = StepReport();
  StepOptions options = given.ok() ? *given : StepOptions();
  const Deadline deadline = DeadlineOf(options.timeout);
  Stopwatch total(&report->seconds_total);
  Status local = given.status();
  if (local.ok() && begun_) {
    local = CheckSameStep(options, *begun_);
    options = *begun_;
  }
  if (local.ok()) local = CheckTraining("step");
  if (local.ok()) local = CheckStepOptions(options, Setting());
  if (local.ok()) local = CheckStepCount();
  if (local.ok()) local = assembly_->units().CheckStep();
  Note note;
  note.activity = Activity::kStep;
  note.step = EntryOf(options, Setting(), hypers_.Fingerprint52(), step_ + 1);
  int32_t leader = 0;
  {
    Stopwatch wait(&report->seconds_wait);
    SHARD_RETURN_IF_ERROR(
        assembly_->units().EnterStep(note, local, deadline, &leader));
  }
  return RunStep(options, leader, deadline, report);
}

Status Engine::Join(double timeout, int64_t* steps) {
  *steps = 0;
  Status local = CheckBetweenSteps("join");
  for (;;) {
    const Deadline deadline = DeadlineOf(timeout);
    // Before the others read them.
    if (local.ok()) local = ZeroWholeGrads(deadline);
    Note note;
    note.activity = Activity::kJoin;
    note.active = 0;
    note.step =
        EntryOf(StepOptions(), Setting(), hypers_.Fingerprint52(), step_ + 1);
    int32_t leader = 0;
    bool joined = false;
    SHARD_RETURN_IF_ERROR(
        assembly_->units().Follow(note, local, deadline, &leader, &joined));
    if (joined) return Status();
    const auto& led = assembly_->units().notes()[static_cast<size_t>(leader)];
    const StepOptions options = OptionsOf(led.step);
    if (led.activity == Activity::kBeginStep) {
      SHARD_RETURN_IF_ERROR(RunBeginStep(options, leader, deadline));
      continue;
    }
    StepReport report;
    SHARD_RETURN_IF_ERROR(RunStep(options, leader, deadline, &report));
    ++*steps;
  }
}

StatusOr<StepInput> Engine::PrepareStep(const StepOptions& options,
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
  input.optimizers = &hypers_.optimizers();
  input.step = step_ + 1;
  input.param_steps = next_steps_.empty() ? nullptr : next_steps_.data();
  input.gradient_scale = 1.0 / (GradDivisorOf(options, Setting(), *active) *
                                LossScaleOf(options, Setting()));
  input.max_grad_norm = options.max_grad_norm;
  input.norm_type = NormTypeOf(options.grad_norm_type);
  input.norm_p = options.grad_norm_type;
  input.clip_value = options.clip_value;
  input.skip_nonfinite = options.skip_nonfinite || loss_scaler_.dynamic();
  return input;
}

Status Engine::RunStep(const StepOptions& options, int32_t leader,
                       const Deadline& deadline, StepReport* report) {
  Units& units = assembly_->units();
  StepInput input;
  if (begun_) {
    SHARD_RETURN_IF_ERROR(AgreeOnEntries(leader, deadline));
    input = begun_input_;
    report->active = begun_active_;
  } else {
    SHARD_ASSIGN_OR_RETURN(
        input, PrepareStep(options, leader, deadline, &report->active));
  }
  report->loss_scale = LossScaleOf(options, Setting());
  const Status ran = assembly_->stepper().Run(input, deadline, report);
  // Some of the parameters may be updated.
  if (!ran.ok()) return units.Fail(ran);
  begun_.reset();
  units.FinishStep();
  loss_scaler_.Update(report->skipped);
  if (!report->skipped) {
    ++step_;
    CountParamSteps();
  }
  report->step = step_;
  report->comm = assembly_->queue().Take();
  return Status();
}

Status Engine::AgreeOnEntries(int32_t leader, const Deadline& deadline) {
  const std::vector<Note>& notes = assembly_->units().notes();
  if (SameEntries(notes)) return Status();
  Note mine = notes[static_cast<size_t>(comm_->rank())];
  // Ranks that wait in join take the others' options, and may take their count.
  if (mine.activity == Activity::kJoin) {
    const Note& led = notes[static_cast<size_t>(leader)];
    mine.step = led.step;
    if (mine.zeroed == kNeverZeroed) mine.zeroed = led.zeroed;
  }
  return CheckAgreement(
      comm_.get(),
      "the step (a rank that called zero_grad less often calls it, too)",
      [&mine](FactSink* sink) { DescribeEntry(mine, sink); }, deadline);
}

Status Engine::AgreeOnHypers(int32_t leader, const Deadline& deadline) {
  const std::vector<Note>& notes = assembly_->units().notes();
  const double led = notes[static_cast<size_t>(leader)].step.hypers;
  if (!SameHypers(notes)) {
    // Ranks that wait in join may have others.
    const bool joined =
        notes[static_cast<size_t>(comm_->rank())].activity == Activity::kJoin;
    const auto describe = [this](FactSink* sink) {
      DescribeHypers(hypers_, sink);
    };
    return CheckAgreement(comm_.get(), "the hyperparameters of the step",
                          static_cast<uint64_t>(hypers_.Fingerprint52()),
                          joined ? DescribeFacts() : describe, deadline);
  }
  const bool all = std::all_of(notes.begin(), notes.end(), [&](const Note& n) {
    return n.step.hypers == led;
  });
  if (all) return Status();
  // Ranks that wait in join do not see what the host changes elsewhere.
  const std::vector<double> mine = hypers_.Values();
  std::vector<double> values(mine.size() * notes.size());
  SHARD_RETURN_IF_ERROR(
      comm_->AllGather("step: hyperparameters for join", mine.data(),
                       mine.size() * sizeof(double), values.data(), deadline));
  hypers_.SetValues(values.data() + mine.size() * static_cast<size_t>(leader));
  return Status();
}

Status Engine::ChooseParamSteps(const Deadline& deadline) {
  next_steps_.clear();
  const std::vector<int32_t>& positions = plan().positions();
  const size_t stored = plan().NumStored();
  const auto next_of = [&](size_t position) {
    return 1 + (param_steps_.empty() ? step_ : param_steps_[position]);
  };
  if (missing_grads_ != MissingGrads::kSkip) {
    if (param_steps_.empty()) return Status();
    next_steps_.resize(stored);
    for (size_t i = 0; i < stored; ++i) next_steps_[i] = next_of(i);
    return Status();
  }
  // One bit per parameter: whether this rank has a gradient.
  const UnitStates& states = assembly_->units().states();
  const Note& mine =
      assembly_->units().notes()[static_cast<size_t>(comm_->rank())];
  const size_t bytes = (stored + 7) / 8;
  std::vector<uint8_t> bits(bytes);
  for (size_t p = 0; p < positions.size(); ++p) {
    if (positions[p] < 0 || mine.active == 0) continue;
    if (!states.HasGrad(static_cast<ParamId>(p))) continue;
    const auto position = static_cast<size_t>(positions[p]);
    bits[position / 8] |= static_cast<uint8_t>(1 << position % 8);
  }
  const auto ranks = static_cast<size_t>(comm_->world_size());
  std::vector<uint8_t> gathered(bytes * ranks);
  SHARD_RETURN_IF_ERROR(comm_->AllGather("step: parameters with gradients",
                                         bits.data(), bytes, gathered.data(),
                                         deadline));
  next_steps_.resize(stored);
  for (size_t i = 0; i < stored; ++i) {
    bool any = false;
    for (size_t r = 0; r < ranks; ++r) {
      any = any || (gathered[r * bytes + i / 8] >> i % 8 & 1) != 0;
    }
    next_steps_[i] = any ? next_of(i) : 0;
  }
  return Status();
}

void Engine::CountParamSteps() {
  if (next_steps_.empty()) return;
  if (param_steps_.empty()) param_steps_.assign(next_steps_.size(), step_ - 1);
  for (size_t i = 0; i < next_steps_.size(); ++i) {
    if (next_steps_[i] != 0) param_steps_[i] = next_steps_[i];
  }
  const bool same =
      std::all_of(param_steps_.begin(), param_steps_.end(),
                  [this](int64_t steps) { return steps == step_; });
  if (same) param_steps_.clear();
}

}  // namespace shard
