// SPDX-License-Identifier: Apache-2.0
//
// StepAgreement: the agreement of all ranks on a step, from their proposals:
// its options, the hyperparameters and the parameters that are stepped. What
// differs is an error of all ranks, which names it. Ranks in join take the
// values of the rank that leads.
//
// Threads: one at a time, as the engine.

#ifndef SHARD_CORE_ENGINE_STEP_STEP_AGREEMENT_H_
#define SHARD_CORE_ENGINE_STEP_STEP_AGREEMENT_H_

#include <cstdint>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/engine/step/counters.h"
#include "core/engine/step/hypers.h"
#include "core/engine/step/step.h"
#include "core/engine/step/step_options.h"
#include "core/engine/transfer/agreement.h"
#include "core/engine/units/units.h"
#include "core/flat/plan.h"

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

class StepAgreement {
 public:
  struct Dependencies {
    Communicator* comm;
    Hypers* hypers;
    Counters* counters;
    MissingGrads missing_grads;
  };

  // All of `deps` must outlive this.
  explicit StepAgreement(const Dependencies& deps) : deps_(deps) {}

  // Agrees on steps of these units from now on, which must live until the next
  // call or the end of this.
  void SetUnits(const Plan* plan, const Units* units);

  // Returns what a step is made with, beside its options.
  StepSetting setting() const;
  // Returns the proposal of this rank for `activity`.
  Proposal ProposalFor(Activity activity, const StepOptions& options) const;

  // Agrees on the input of the step that `leader` has proposed, with these
  // options, in the last meeting of the units. COLLECTIVE. `active`: set to the
  // number of ranks that have not joined. The input points into `deps`, which
  // have the agreed values.
  StatusOr<StepInput> Agree(const StepOptions& options, int32_t leader,
                            const Deadline& deadline, int32_t* active);
  // Compares the options alone: for a step that was begun. COLLECTIVE.
  Status AgreeOnEntries(int32_t leader, const Deadline& deadline);

 private:
  // Compares hyperparameters; ranks that joined take the leader's values.
  Status AgreeOnHypers(int32_t leader, const Deadline& deadline);
  // Chooses the parameters that are stepped, and the number of each one's step.
  Status ChooseParamSteps(const Deadline& deadline);

  const Dependencies deps_;
  const Plan* plan_ = nullptr;
  const Units* units_ = nullptr;
  double trainable_numel_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_STEP_AGREEMENT_H_
