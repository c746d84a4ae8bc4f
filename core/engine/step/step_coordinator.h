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
#include "core/comm/communicator.h"
#include "core/engine/step/counters.h"
#include "core/engine/step/engine_runtime.h"
#include "core/engine/step/hypers.h"
#include "core/engine/step/step.h"
#include "core/engine/step/step_options.h"

namespace shard {

// The treatment of parameters that got no gradient since the last step. The
// values are those of shard_missing_grads in shard.h.
enum class MissingGrads : int32_t {
  kError = 0,
  kZero = 1,  // Their gradients are zeros.
  // Parameters without a gradient on any rank stay as they are, states and step
  // count too. Gradients that only some ranks have are zeros on the other
  // ranks.
  kSkip = 2,
};

class StepCoordinator {
 public:
  struct Dependencies {
    Communicator* comm;
    Hypers* hypers;
    Counters* counters;
    MissingGrads missing_grads;
  };

  // All of `deps` must outlive this.
  explicit StepCoordinator(const Dependencies& deps) : deps_(deps) {}

  // Uses `runtime` from now on, which must live until the next SetRuntime or
  // the end of this. REQUIRES: no step is begun.
  void SetRuntime(EngineRuntime* runtime);

  // Returns kFailedPrecondition, naming the call `what`, while a step is begun:
  // some units are updated then, and others are not.
  Status CheckNotBegun(std::string_view what) const;
  // Returns the same error also while units are in use or gradients are ready.
  Status CheckBetweenSteps(std::string_view what) const;

  // Discards accumulated gradients and their ready declarations, and fills
  // whole gradients with zeros. Local.
  Status ZeroGrad(const Deadline& deadline);

  // Begin a step, and do one. COLLECTIVE, as Join. `known`: an error of the
  // call on this rank alone. Options that this rank could not read, or that are
  // out of range, are an error on all ranks.
  Status Begin(const StatusOr<StepOptions>& given, const Status& known,
               const Deadline& deadline);
  Status Step(const StatusOr<StepOptions>& given, const Status& known,
              const Deadline& deadline, StepReport* report);
  // Takes part in the steps of other ranks, with gradients that are zero, until
  // all ranks have joined. COLLECTIVE. `timeout`: seconds, of each step.
  // `steps`: set to the number of those steps.
  Status Join(const Status& known, double timeout, int64_t* steps);

 private:
  StepSetting Setting() const;
  // Returns the proposal of this rank for `activity`.
  Proposal ProposalFor(Activity activity, const StepOptions& options) const;
  Status CheckBegin(const StepOptions& options) const;
  Status ZeroWholeGrads(const Deadline& deadline);
  // Run a step, or the beginning of one, after an agreement in which `leader`
  // proposed it. COLLECTIVE, as everything below.
  Status RunBegin(const StepOptions& options, int32_t leader,
                  const Deadline& deadline);
  Status RunStep(const StepOptions& options, int32_t leader,
                 const Deadline& deadline, StepReport* report);
  // Agrees on the input of the step.
  StatusOr<StepInput> Prepare(const StepOptions& options, int32_t leader,
                              const Deadline& deadline, int32_t* active);
  Status AgreeOnEntries(int32_t leader, const Deadline& deadline);
  // Compares hyperparameters; ranks that joined take the leader's values.
  Status AgreeOnHypers(int32_t leader, const Deadline& deadline);
  // Chooses the parameters that are stepped, and the number of each one's step.
  Status ChooseParamSteps(const Deadline& deadline);

  const Dependencies deps_;
  EngineRuntime* runtime_ = nullptr;
  double trainable_numel_ = 0;
  // The options of Begin, until that step is done.
  std::optional<StepOptions> begun_;
  StepInput begun_input_ = {};
  int32_t begun_active_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_STEP_COORDINATOR_H_
