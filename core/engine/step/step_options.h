// SPDX-License-Identifier: Apache-2.0
//
// StepOptions: what a host says about one step, what is allowed of it, and
// what ranks agree on before they step.

#ifndef SHARD_CORE_ENGINE_STEP_STEP_OPTIONS_H_
#define SHARD_CORE_ENGINE_STEP_STEP_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "core/base/facts.h"
#include "core/base/status.h"
#include "core/engine/transfer/meeting.h"
#include "core/optim/loss_scaler.h"
#include "kernels/cpu/norm.h"

namespace shard {

// 0 is the default of every field. They must be the same on every rank; docs of
// the fields: shard_step_options in shard.h.
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

// What an engine adds to them.
struct StepSetting {
  int world_size;
  double trainable_numel;
  const LossScaler* loss_scaler;
};

// What is wrong with `options` on this rank alone.
Status CheckStepOptions(const StepOptions& options, const StepSetting& setting);

// Of a step that was begun with `begun`: kInvalidArgument unless `options` are
// all defaults, or the same.
Status CheckSameStep(const StepOptions& options, const StepOptions& begun);

NormType NormTypeOf(double p);
double LossScaleOf(const StepOptions& options, const StepSetting& setting);
// What the sum of the ranks' gradients is divided by, the loss's scale left
// out. `active`: ranks that have not joined.
double GradDivisorOf(const StepOptions& options, const StepSetting& setting,
                     int active);

// `hypers`: Hypers::Fingerprint52. `step`: the number of the step to do.
StepEntry EntryOf(const StepOptions& options, const StepSetting& setting,
                  double hypers, int64_t step);
// The options that an entry was made of, but for the timeout.
StepOptions OptionsOf(const StepEntry& entry);

// Of a meeting to step, or to begin one: whether the ranks that have not joined
// come with the same entries, `hypers` left out, and have zeroed equally often,
// as have those that joined and threw gradients away;
// and whether they come with the same `hypers`.
bool SameEntries(const std::vector<Note>& notes);
bool SameHypers(const std::vector<Note>& notes);

// What SameEntries compares of one rank's note.
void DescribeEntry(const Note& note, FactSink* sink);

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_STEP_OPTIONS_H_
