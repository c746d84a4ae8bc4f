// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/engine/stopwatch.h"
#include "kernels/cpu/fused_step.h"

namespace shard {

namespace {

// As torch.nn.utils.clip_grad_norm_ has it.
constexpr double kClipEpsilon = 1e-6;

// Every rank's gradients of the range of rank `owner`.
std::vector<const float*> SourcesOf(const EngineBuffer& buffer, int owner) {
  const FlatLayout& layout = buffer.plan->layout;
  std::vector<const float*> sources;
  for (int w = 0; w < layout.world_size(); ++w) {
    sources.push_back(buffer.grad_data(w) + owner * layout.shard_numel());
  }
  return sources;
}

}  // namespace

Status DirectStep::Run(const StepInput& input, const Deadline& deadline,
                       StepReport* report) {
  const bool needs_norm = input.max_grad_norm > 0 || input.skip_nonfinite;
  double scale = input.gradient_scale;
  if (needs_norm) {
    double squares = 0;
    {
      Stopwatch reduce(&report->seconds_reduce);
      squares = Reduce(report);
    }
    {
      Stopwatch wait(&report->seconds_wait);
      SHARD_RETURN_IF_ERROR(
          AllReduceSum(comm_, "step: global norm", &squares, 1, deadline));
    }
    report->grad_norm = std::sqrt(squares) * std::abs(scale);
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

double DirectStep::Reduce(StepReport* report) {
  const int rank = comm_->rank();
  double squares = 0;
  for (const EngineBuffer& buffer : *buffers_) {
    const FlatLayout& layout = buffer.plan->layout;
    if (!buffer.plan->trainable || layout.shard_numel() == 0) continue;
    const auto count = static_cast<size_t>(layout.shard_numel());
    const std::vector<const float*> sources = SourcesOf(buffer, rank);
    float* sum = buffer.grad_data(rank) + rank * layout.shard_numel();
    squares += ReduceSquares(sources.data(), sources.size(), sum, count);
    report->bytes_moved += count * sizeof(float) * (sources.size() + 1);
  }
  return squares;
}

void DirectStep::Update(const StepInput& input, double scale, bool reduced,
                        StepReport* report) {
  const int rank = comm_->rank();
  for (const EngineBuffer& buffer : *buffers_) {
    const FlatLayout& layout = buffer.plan->layout;
    if (!buffer.plan->trainable || layout.shard_numel() == 0) continue;
    std::vector<const float*> sources = SourcesOf(buffer, rank);
    if (reduced) sources = {sources[static_cast<size_t>(rank)]};
    FusedStepArgs args;
    args.sources = sources.data();
    args.num_sources = sources.size();
    args.gradient_scale = scale;
    args.param = buffer.param_data() + rank * layout.shard_numel();
    args.states = buffer.states.data();
    args.count = static_cast<size_t>(layout.shard_numel());
    FusedStep(input.optimizer->formula(), input.optimizer->hypers().data(),
              input.step, args);
    report->bytes_moved += args.count * sizeof(float) *
                           (sources.size() + 2 + 2 * buffer.states.size());
  }
}

}  // namespace shard
