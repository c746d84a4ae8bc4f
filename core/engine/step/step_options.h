// SPDX-License-Identifier: Apache-2.0
//
// StepOptions: the options of one step, their checks, and the entry on which
// ranks agree before they step.

#ifndef SHARD_CORE_ENGINE_STEP_STEP_OPTIONS_H_
#define SHARD_CORE_ENGINE_STEP_STEP_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "core/base/facts.h"
#include "core/base/status.h"
#include "core/engine/transfer/agreement.h"
#include "core/optim/loss_scaler.h"
#include "kernels/cpu/norm.h"

namespace shard {

// The options of a step; shard_step_options in shard.h documents the fields. 0
// is the default of every field. The options must be the same on every rank.
struct StepOptions {
  double max_grad_norm = 0;
  double grad_norm_type = 0;
  double clip_value = 0;
  double grad_divisor = 0;
  double loss_scale = 0;
  double timeout = 0;
  bool skip_nonfinite = false;
  bool average_active = false;
};

// The values of the engine that options are combined with.
struct StepSetting {
  int world_size;
  double trainable_numel;
  const LossScaler* loss_scaler;
};

// Returns an error for `options` that are wrong. Local.
Status CheckStepOptions(const StepOptions& options, const StepSetting& setting);

// Compares the options of Step with those of BeginStep. kInvalidArgument unless
// `options` are all defaults, or equal to `begun`.
Status CheckSameStep(const StepOptions& options, const StepOptions& begun);

NormType NormTypeOf(double p);
double LossScaleOf(const StepOptions& options, const StepSetting& setting);
// Returns the divisor of the sum of the ranks' gradients, the loss scale left
// out. `active`: ranks that have not joined.
double GradDivisorOf(const StepOptions& options, const StepSetting& setting,
                     int active);

// Returns the entry that ranks compare. `hypers`: Hypers::Fingerprint52.
// `step`: the number of the step to do.
StepEntry EntryOf(const StepOptions& options, const StepSetting& setting,
                  double hypers, int64_t step);
// Returns the options that an entry was made of, without the timeout.
StepOptions OptionsOf(const StepEntry& entry);

// Compare the proposals to step, or to begin a step. SameEntries:
// whether the ranks that have not joined come with the same entries, `hypers`
// left out, and have zeroed equally often, as have ranks that joined and
// discarded gradients. SameHypers: whether they come with the same `hypers`.
bool SameEntries(const std::vector<Proposal>& proposals);
bool SameHypers(const std::vector<Proposal>& proposals);

// Writes the facts of one rank's proposal that SameEntries compares.
void DescribeEntry(const Proposal& proposal, FactSink* sink);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_STEP_OPTIONS_H_
