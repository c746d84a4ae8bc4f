// SPDX-License-Identifier: Apache-2.0
//
// StepCoordinator: does a step together with all ranks. The ranks agree
// on options, hyperparameters and the parameters that are stepped; the Stepper
// does the step; the coordinator counts it. A rank without input takes part in
// Join.
//
// A step may be begun before its gradients are there (Begin): each unit is then
// updated as soon as its gradients are ready on all ranks, and Step does the
// rest.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_STEP_STEP_COORDINATOR_H_
#define SHARD_CORE_ENGINE_STEP_STEP_COORDINATOR_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/engine/step/engine_runtime.h"
#include "core/engine/step/step.h"
#include "core/engine/step/step_agreement.h"
#include "core/engine/step/step_options.h"

namespace shard {

class StepCoordinator {
 public:
  using Dependencies = StepAgreement::Dependencies;

  // All of `deps` must outlive this.
  explicit StepCoordinator(const Dependencies& deps)
      : deps_(deps), agreement_(deps) {}

  // Uses `runtime` from now on, which must live until the next SetRuntime or
  // the end of this. REQUIRES: no step is begun.
  void SetRuntime(EngineRuntime* runtime);

  // Returns kFailedPrecondition, naming the call `what`, while a step is begun:
  // some units are updated then, and others are not.
  Status CheckNotBegun(std::string_view what) const;
  // Returns the same error also while units are in use or gradients are ready.
  Status CheckBetweenSteps(std::string_view what) const;

  // Returns the counters, after Await; where that fails, the last step is not
  // counted. Who saves or sets them awaits the step itself, and returns the
  // error.
  Counters& counters(const Deadline& deadline) const;

  // Discards accumulated gradients and their ready declarations, and fills
  // whole gradients with zeros. Local.
  Status ZeroGrad(const Deadline& deadline);

  // Begin a step, and do one. COLLECTIVE, as Join. `known`: an error of the
  // call on this rank alone. Options that this rank could not read, or that are
  // out of range, are an error on all ranks.
  Status Begin(const StatusOr<StepOptions>& given, const Status& known,
               const Deadline& deadline);
  // `report`: null where nobody asks for it. A step then returns once it is
  // enqueued, after SetReturnsEarly(true); an error that comes later is that of
  // the next call.
  Status Step(const StatusOr<StepOptions>& given, const Status& known,
              const Deadline& deadline, StepReport* report);
  void SetReturnsEarly(bool early) { returns_early_ = early; }
  // Graphs of the host's (shard_engine_capture_begin). CheckCapture returns why
  // a capture cannot begin; from BeginCapture(the host's capture) until
  // EndCapture a step is enqueued, one in each capture, and not counted. After
  // a step EndCapture is COLLECTIVE: what was captured is of no use to any rank
  // where `local` is the error of one. BeforeReplay gives the step new values,
  // and counts it once it has run; the ranks agree on it as on a step.
  Status CheckCapture(const Deadline& deadline) const;
  void BeginCapture(uint64_t capture);
  Status EndCapture(const Status& local, const Deadline& deadline);
  bool captures() const { return capture_.has_value(); }
  // Returns an error where the host's capture in progress is not the one of
  // BeginCapture, or has become invalid. REQUIRES: captures().
  Status CheckSameCapture() const;
  Status BeforeReplay(const StatusOr<StepOptions>& given, const Status& known,
                      const Deadline& deadline);
  // Refuses replays from now on, because of `reason`: the captured step uses
  // memory that is not used any more.
  void ForgetCaptured(std::string_view reason);

  // Waits as Await, and for a stray launch that runs (GraphLaunches). After a
  // capture of several ranks, also for all that the host has given its stream,
  // unless that is captured: a launch may be among it. Local.
  Status AwaitLaunches(const Deadline& deadline) const;
  // Returns an error, once, where there was a stray launch: the parameters are
  // of no step. ForgetStrays is for other parameters.
  Status CheckNoStray() const;
  void ForgetStrays() { (void)runtime_->stepper().launches().TakeStray(); }

  // Waits for the last step, if nothing has waited for it yet, and counts it.
  // Returns its error, which is final; kDeadlineExceeded of a step that goes on
  // is not. Local.
  Status Await(const Deadline& deadline) const;
  // Returns the report of the last step that ended well, of Join too, for which
  // it waits. Local.
  StatusOr<StepReport> LastReport(const Deadline& deadline) const;
  // Takes part in the steps of other ranks, with gradients that are zero, until
  // all ranks have joined. COLLECTIVE. `timeout`: seconds, of each step.
  // `steps`: set to the number of those steps.
  Status Join(const Status& known, double timeout, int64_t* steps);

 private:
  // A step that was captured.
  struct Captured {
    StepForm form;
    StepBytes bytes;
    uint64_t bound_bytes = 0;  // Of copies from and to bound tensors.
  };

  Status CheckBegin(const StepOptions& options) const;
  // Enters a step, of which `local` is an error of this rank, and agrees on its
  // input. COLLECTIVE.
  StatusOr<StepInput> Enter(Activity activity,
                            const StatusOr<StepOptions>& given,
                            const Status& local, const Deadline& deadline,
                            int32_t* active);
  // Enqueues the step of a capture. COLLECTIVE.
  Status CaptureStep(const StatusOr<StepOptions>& given, const Status& known,
                     const Deadline& deadline, const StepReport* report);
  // Returns the error of a step that this rank alone knows.
  Status CheckStep(const StatusOr<StepOptions>& given,
                   const Status& known) const;
  Status CheckCaptureStep(const StatusOr<StepOptions>& given,
                          const Status& known, const StepReport* report) const;
  Status CheckReplay(const StatusOr<StepOptions>& given,
                     const Status& known) const;
  // Acts as AwaitLaunches, with errors that are final: for the rank's own step,
  // and before the next one. Of a replay, kDeadlineExceeded is not: the host's
  // stream may have been given much after it.
  Status TakeResult(const Deadline& deadline) const;
  // Acts as Units::EnterStep, with an error of the deadline that says where
  // this rank has not launched its graph.
  Status EnterRanks(const Proposal& proposal, const Status& local,
                    const Deadline& deadline, int32_t* leader);
  Status EnterAndRun(const StatusOr<StepOptions>& given, const Status& known,
                     const Deadline& deadline, StepReport* report);
  Status ZeroWholeGrads(const Deadline& deadline);
  // Run a step, or the beginning of one, after an agreement in which `leader`
  // proposed it. COLLECTIVE, as everything below. RunStep enqueues the step,
  // and leaves the report in pending_.
  Status RunBegin(const StepOptions& options, int32_t leader,
                  const Deadline& deadline);
  Status RunStep(const StepOptions& options, int32_t leader,
                 const Deadline& deadline, StepReport* report);

  const Dependencies deps_;
  StepAgreement agreement_;
  EngineRuntime* runtime_ = nullptr;
  // The options of Begin, until that step is done.
  std::optional<StepOptions> begun_;
  StepInput begun_input_ = {};
  int32_t begun_active_ = 0;
  // The report of a step until its result is taken.
  mutable std::optional<StepReport> pending_;
  mutable std::optional<StepReport> last_report_;
  bool returns_early_ = false;
  std::optional<uint64_t> capture_;      // In progress, as Stream::CaptureId.
  std::optional<uint64_t> captured_in_;  // The last that was given a step.
  // The ranks have entered a step together since BeginCapture.
  bool entered_ = false;
  // The step that was captured last.
  std::optional<Captured> captured_;
  // Why there is none.
  std::string_view not_captured_ = "no step was captured";
  // pending_ is of a replay, whose end no event tells yet.
  mutable bool replays_ = false;
  // The host has not launched the graph of the last replay.
  mutable bool dropped_ = false;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_STEP_COORDINATOR_H_
