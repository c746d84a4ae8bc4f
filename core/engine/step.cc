// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/engine/stopwatch.h"
#include "kernels/cpu/fused_step.h"

namespace shard {

namespace {

// As torch.nn.utils.clip_grad_norm_ has it.
constexpr double kClipEpsilon = 1e-6;

}  // namespace

DirectStep::DirectStep(Communicator* comm,
                       const std::vector<EngineBuffer>* buffers)
    : comm_(comm) {
  const int rank = comm->rank();
  for (const EngineBuffer& buffer : *buffers) {
    const int64_t shard = buffer.plan->layout.shard_numel();
    if (!buffer.plan->trainable || shard == 0) continue;
    const int64_t begin = rank * shard;
    Range range;
    for (int w = 0; w < comm->world_size(); ++w) {
      range.sources.push_back(buffer.grad_data(w) + begin);
    }
    range.own_grads = buffer.grad_data(rank) + begin;
    range.param = buffer.param_data() + begin;
    range.states = buffer.states.data();
    range.num_states = buffer.states.size();
    range.count = static_cast<size_t>(shard);
    ranges_.push_back(std::move(range));
  }
}

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
  double squares = 0;
  for (const Range& range : ranges_) {
    const size_t sources = range.sources.size();
    squares += ReduceSquares(range.sources.data(), sources, range.own_grads,
                             range.count);
    report->bytes_moved += range.count * sizeof(float) * (sources + 1);
  }
  return squares;
}

void DirectStep::Update(const StepInput& input, double scale, bool reduced,
                        StepReport* report) {
  for (const Range& range : ranges_) {
    std::vector<const void*> sources(range.sources.begin(),
                                     range.sources.end());
    if (reduced) sources = {range.own_grads};
    const std::vector<void*> states(range.states,
                                    range.states + range.num_states);
    FusedStepArgs args;
    args.gradients = {sources.data(), sources.size(), DType::kF32};
    args.gradient_scale = scale;
    args.param = range.param;
    args.states = states.data();
    args.count = range.count;
    FusedStep(input.optimizer->formula(), input.optimizer->hypers().data(),
              input.step, args);
    report->bytes_moved += range.count * sizeof(float) *
                           (sources.size() + 2 + 2 * range.num_states);
  }
}

}  // namespace shard
