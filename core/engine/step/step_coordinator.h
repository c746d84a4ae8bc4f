// SPDX-License-Identifier: Apache-2.0
//
// StepCoordinator: takes a step with all ranks. They meet, agree on options,
// hyperparameters and the parameters that are stepped; the Stepper does the
// step; the coordinator counts it. A rank without input follows in Join.
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
#include "core/device/device.h"
#include "core/engine/step/assembly.h"
#include "core/engine/step/counters.h"
#include "core/engine/step/hypers.h"
#include "core/engine/step/step.h"
#include "core/engine/step/step_options.h"

namespace shard {

// What becomes of parameters that got no gradient since the last step. The
// values are those of shard_missing_grads in shard.h.
enum class MissingGrads : int32_t {
  kError = 0,
  kZero = 1,  // Their gradients are zeros.
  // Those that got none on any rank are as before the step, states and step
  // count too. Others are zeros on the ranks that have none.
  kSkip = 2,
};

class StepCoordinator {
 public:
  struct Parts {
    Communicator* comm;
    Device* device;
    Hypers* hypers;
    Counters* counters;
    MissingGrads missing_grads;
  };

  // All of `parts` outlive this.
  explicit StepCoordinator(const Parts& parts) : parts_(parts) {}

  // Steps with `assembly`, which outlives this or the next Adopt. REQUIRES: no
  // step is begun.
  void Adopt(Assembly* assembly);

  // Returns kFailedPrecondition, which names the call `what`, while a step is
  // begun: some units are updated then, and others are not.
  Status CheckNotBegun(std::string_view what) const;
  // The same while units are in use or gradients are ready.
  Status CheckBetweenSteps(std::string_view what) const;

  // Throws away what was accumulated and declared ready, and fills whole
  // gradients with zeros. Local.
  Status ZeroGrad(const Deadline& deadline);

  // COLLECTIVE, all three. `known`: what is wrong with the call on this rank
  // alone. Options that this rank could not read, or that are out of range, are
  // an error on all ranks.
  Status Begin(const StatusOr<StepOptions>& given, const Status& known,
               const Deadline& deadline);
  Status Step(const StatusOr<StepOptions>& given, const Status& known,
              const Deadline& deadline, StepReport* report);
  // Does this rank's part of the others' steps, with gradients that are zero,
  // until all ranks have joined. `timeout`: seconds, of each step. `steps`: how
  // many those were.
  Status Join(const Status& known, double timeout, int64_t* steps);

 private:
  StepSetting Setting() const;
  // The note of a meeting to which this rank comes for `activity`.
  Note NoteOf(Activity activity, const StepOptions& options) const;
  Status CheckBegin(const StepOptions& options) const;
  Status ZeroWholeGrads(const Deadline& deadline);
  // COLLECTIVE, all below, after a meeting in which `leader` steps or begins a
  // step.
  Status RunBegin(const StepOptions& options, int32_t leader,
                  const Deadline& deadline);
  Status RunStep(const StepOptions& options, int32_t leader,
                 const Deadline& deadline, StepReport* report);
  // Agrees on what is stepped with.
  StatusOr<StepInput> Prepare(const StepOptions& options, int32_t leader,
                              const Deadline& deadline, int32_t* active);
  Status AgreeOnEntries(int32_t leader, const Deadline& deadline);
  // Ranks that joined take the leader's values.
  Status AgreeOnHypers(int32_t leader, const Deadline& deadline);
  // Which parameters do a step, and which one.
  Status ChooseParamSteps(const Deadline& deadline);

  const Parts parts_;
  Assembly* assembly_ = nullptr;
  double trainable_numel_ = 0;
  // What Begin was given, until that step is done.
  std::optional<StepOptions> begun_;
  StepInput begun_input_ = {};
  int32_t begun_active_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_STEP_COORDINATOR_H_
