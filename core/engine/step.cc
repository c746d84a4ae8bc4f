// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/engine/stopwatch.h"
#include "core/engine/update.h"

namespace shard {

namespace {

// As torch.nn.utils.clip_grad_norm_ has it.
constexpr double kClipEpsilon = 1e-6;

}  // namespace

DirectStep::DirectStep(Communicator* comm, const Plan& plan,
                       const std::vector<EngineBuffer>& buffers,
                       float* workspace, std::optional<Blas> blas)
    : comm_(comm),
      options_(&plan.options()),
      workspace_(workspace),
      blas_(std::move(blas)),
      gathered_(static_cast<size_t>(comm->world_size())) {
  for (const EngineBuffer& buffer : buffers) {
    if (!buffer.plan->trainable) continue;
    ranges_.emplace_back(plan, buffer, comm->rank(), comm->world_size());
  }
}

Status DirectStep::Run(const StepInput& input, const Deadline& deadline,
                       StepReport* report) {
  const bool needs_norm = input.max_grad_norm > 0 || input.skip_nonfinite;
  double scale = input.gradient_scale;
  if (needs_norm) {
    SHARD_ASSIGN_OR_RETURN(const double norm,
                           GradientNorm(input, deadline, report));
    report->grad_norm = norm * std::abs(scale);
    if (!std::isfinite(report->grad_norm)) {
      // The norm is the same on every rank, and so is this decision.
      report->skipped = true;
      return Status();
    }
    if (input.max_grad_norm > 0) {
      scale *= std::min(
          1.0, input.max_grad_norm / (report->grad_norm + kClipEpsilon));
    }
  }
  {
    Stopwatch update(&report->seconds_update);
    Update(input, scale, needs_norm, report);
  }
  Stopwatch wait(&report->seconds_wait);
  return comm_->Barrier("step: parameters published", deadline);
}

StatusOr<double> DirectStep::GradientNorm(const StepInput& input,
                                          const Deadline& deadline,
                                          StepReport* report) {
  if (input.norm_type != NormType::kP) {
    return NormPass(input.norm_type, 0, 0, false, deadline, report);
  }
  SHARD_ASSIGN_OR_RETURN(
      const double largest,
      NormPass(NormType::kInf, 0, 0, false, deadline, report));
  if (!std::isfinite(largest) || largest == 0) return largest;
  return NormPass(input.norm_type, input.norm_p, largest, true, deadline,
                  report);
}

StatusOr<double> DirectStep::NormPass(NormType type, double p, double reference,
                                      bool reduced, const Deadline& deadline,
                                      StepReport* report) {
  NormSum mine = {};
  {
    Stopwatch reduce(&report->seconds_reduce);
    for (const Range& range : ranges_) {
      report->bytes_moved += range.AddNorm(type, p, reference, reduced, &mine);
    }
  }
  Stopwatch wait(&report->seconds_wait);
  SHARD_RETURN_IF_ERROR(comm_->AllGather(
      "step: global norm", &mine, sizeof(mine), gathered_.data(), deadline));
  NormSum all = {};
  for (const NormSum& part : gathered_) MergeNorm(part, &all);
  return FinishNorm(type, p, reference, all);
}

void DirectStep::Update(const StepInput& input, double scale, bool reduced,
                        StepReport* report) {
  UpdateInput update;
  update.step = input.step;
  update.scale = scale;
  update.clip_value = input.clip_value > 0
                          ? input.clip_value
                          : std::numeric_limits<double>::infinity();
  update.reduced = reduced;
  update.masters = options_->masters;
  update.seed = options_->seed;
  for (const Range& range : ranges_) {
    const auto group = static_cast<size_t>(range.group());
    report->bytes_moved +=
        UpdateRange(range, (*input.optimizers)[group], update);
  }
}

uint64_t DirectStep::UpdateRange(const Range& range, const Optimizer& optimizer,
                                 const UpdateInput& input) const {
  if (optimizer.tensor() == nullptr) {
    return UpdateElements(range, optimizer, input);
  }
  if (optimizer.formula() == Formula::kMuon) {
    return UpdateMatrices(range, optimizer, input, *blas_, workspace_);
  }
  return UpdateTensors(range, optimizer, input, workspace_);
}

}  // namespace shard
