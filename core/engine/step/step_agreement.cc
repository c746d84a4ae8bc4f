// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/step_agreement.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/comm/check_agreement.h"

namespace shard {

void StepAgreement::SetUnits(const Plan* plan, const Units* units) {
  plan_ = plan;
  units_ = units;
  trainable_numel_ = 0;
  for (const FlatBufferPlan& buffer : plan->buffers()) {
    if (buffer.trainable) {
      trainable_numel_ += static_cast<double>(buffer.layout.numel());
    }
  }
}

StepSetting StepAgreement::setting() const {
  return {deps_.comm->world_size(), trainable_numel_,
          &deps_.counters->loss_scaler()};
}

Proposal StepAgreement::ProposalFor(Activity activity,
                                    const StepOptions& options) const {
  Proposal proposal;
  proposal.activity = activity;
  proposal.step = EntryOf(options, setting(), deps_.hypers->Fingerprint52(),
                          deps_.counters->step() + 1);
  return proposal;
}

StatusOr<StepInput> StepAgreement::Agree(const StepOptions& options,
                                         int32_t leader,
                                         const Deadline& deadline,
                                         int32_t* active) {
  const std::vector<Proposal>& proposals = units_->proposals();
  SHARD_RETURN_IF_ERROR(AgreeOnEntries(leader, deadline));
  *active = 0;
  for (const Proposal& proposal : proposals) *active += proposal.active;
  SHARD_RETURN_IF_ERROR(AgreeOnHypers(leader, deadline));
  SHARD_RETURN_IF_ERROR(ChooseParamSteps(deadline));
  StepInput input;
  input.optimizers = &deps_.hypers->optimizers();
  input.step = deps_.counters->step() + 1;
  input.param_steps = deps_.counters->next_steps();
  input.gradient_scale = 1.0 / (GradDivisorOf(options, setting(), *active) *
                                LossScaleOf(options, setting()));
  input.max_grad_norm = options.max_grad_norm;
  input.norm_type = NormTypeOf(options.grad_norm_type);
  input.norm_p = options.grad_norm_type;
  input.clip_value = options.clip_value;
  input.skip_nonfinite =
      options.skip_nonfinite || deps_.counters->loss_scaler().dynamic();
  return input;
}

Status StepAgreement::AgreeOnEntries(int32_t leader, const Deadline& deadline) {
  const std::vector<Proposal>& proposals = units_->proposals();
  if (SameEntries(proposals)) return Status();
  Proposal mine = proposals[static_cast<size_t>(deps_.comm->rank())];
  // Ranks in join take the options of the others, and may take their step
  // count.
  if (mine.activity == Activity::kJoin) {
    const Proposal& led = proposals[static_cast<size_t>(leader)];
    mine.step = led.step;
    if (mine.zeroed == kNeverZeroed) mine.zeroed = led.zeroed;
  }
  return CheckAgreement(
      deps_.comm, "the step",
      [&mine](FactSink* sink) { DescribeEntry(mine, sink); }, deadline);
}

Status StepAgreement::AgreeOnHypers(int32_t leader, const Deadline& deadline) {
  const std::vector<Proposal>& proposals = units_->proposals();
  const double led = proposals[static_cast<size_t>(leader)].step.hypers;
  if (!SameHypers(proposals)) {
    // Ranks in join may have different values.
    const bool joined =
        proposals[static_cast<size_t>(deps_.comm->rank())].activity ==
        Activity::kJoin;
    const auto describe = [this](FactSink* sink) {
      deps_.hypers->Describe(sink);
    };
    return CheckAgreement(deps_.comm, "the hyperparameters of the step",
                          static_cast<uint64_t>(deps_.hypers->Fingerprint52()),
                          joined ? DescribeFacts() : describe, deadline);
  }
  const bool all =
      std::all_of(proposals.begin(), proposals.end(),
                  [&](const Proposal& n) { return n.step.hypers == led; });
  if (all) return Status();
  // Ranks in join do not see the changes that hosts make on other ranks.
  const std::vector<double> mine = deps_.hypers->Values();
  std::vector<double> values(mine.size() * proposals.size());
  SHARD_RETURN_IF_ERROR(deps_.comm->AllGather(
      "step: hyperparameters for join", mine.data(),
      mine.size() * sizeof(double), values.data(), deadline));
  deps_.hypers->SetValues(values.data() +
                          mine.size() * static_cast<size_t>(leader));
  return Status();
}

Status StepAgreement::ChooseParamSteps(const Deadline& deadline) {
  const Plan& plan = *plan_;
  if (deps_.missing_grads != MissingGrads::kSkip) {
    deps_.counters->ChooseAll(plan);
    return Status();
  }
  // One bit per parameter: whether this rank has a gradient.
  const UnitStates& states = units_->states();
  const Proposal& mine =
      units_->proposals()[static_cast<size_t>(deps_.comm->rank())];
  const size_t bytes = (plan.NumStored() + 7) / 8;
  std::vector<uint8_t> bits(bytes);
  for (size_t p = 0; p < plan.places().size(); ++p) {
    if (plan.places()[p].buffer < 0 || mine.active == 0) continue;
    if (!states.HasGrad(static_cast<ParamId>(p))) continue;
    const auto position = static_cast<size_t>(plan.places()[p].position);
    bits[position / 8] |= static_cast<uint8_t>(1 << position % 8);
  }
  const auto ranks = static_cast<size_t>(deps_.comm->world_size());
  std::vector<uint8_t> gathered(bytes * ranks);
  SHARD_RETURN_IF_ERROR(deps_.comm->AllGather("step: parameters with gradients",
                                              bits.data(), bytes,
                                              gathered.data(), deadline));
  deps_.counters->Choose(plan, [&](size_t position) {
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
