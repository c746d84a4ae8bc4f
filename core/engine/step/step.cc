// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/engine/step/update.h"
#include "core/engine/transfer/stopwatch.h"
#include "core/observe/observer.h"

namespace shard {

namespace {

// The value of torch.nn.utils.clip_grad_norm_.
constexpr double kClipEpsilon = 1e-6;

}  // namespace

StatusOr<std::unique_ptr<Stepper>> Stepper::Create(const Dependencies& deps) {
  std::unique_ptr<Stepper> stepper(new Stepper(deps));
  SHARD_ASSIGN_OR_RETURN(stepper->norm_, deps.device->AllocateHost(
                                             sizeof(NormSum), "gradient norm"));
  stepper->gathered_.resize(static_cast<size_t>(deps.comm->world_size()));
  stepper->done_.resize(deps.plan->units().size());
  stepper->by_unit_.resize(deps.plan->units().size());
  stepper->buffers_.resize(deps.plan->units().size());
  const std::vector<EngineBuffer>& buffers = deps.memory->buffers();
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (!buffers[b].plan->trainable) continue;
    const auto unit = static_cast<size_t>(buffers[b].plan->unit);
    stepper->by_unit_[unit].push_back(stepper->ranges_.size());
    stepper->buffers_[unit].push_back(b);
    stepper->ranges_.emplace_back(*deps.plan, buffers[b], deps.comm->rank());
  }
  return stepper;
}

Status Stepper::Run(const StepInput& input, const std::vector<Event>& reduced,
                    const Deadline& deadline, StepReport* report) {
  const bool needs_norm = input.max_grad_norm > 0 || input.skip_nonfinite;
  double scale = input.gradient_scale;
  // The host may still write gradients, and read the parameters.
  deps_.compute->Wait(deps_.host->Record(), deadline);
  if (needs_norm) {
    {
      Stopwatch wait(&report->seconds_wait);
      SHARD_RETURN_IF_ERROR(deps_.queue->Drain(deadline));
    }
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
  SHARD_RETURN_IF_ERROR(
      UpdateUnits(input, scale, needs_norm, reduced, deadline, report));
  report->bytes_moved += std::exchange(eager_bytes_, 0);
  done_.assign(done_.size(), false);
  {
    Span finish(deps_.comm->observer(), EventId::kFinish, {},
                &report->seconds_wait);
    Status status;
    if (!deps_.overlap) status = deps_.queue->Drain(deadline);
    if (status.ok()) status = deps_.transfers->Finish(deadline);
    finish.set_result(status);
    if (!status.ok()) return status;
  }
  Stopwatch updating(&report->seconds_update);
  if (!deps_.overlap) return deps_.copies->RefreshTrainable(deadline);
  deps_.copies->MarkAllStale();
  return Status();
}

StatusOr<double> Stepper::GradientNorm(const StepInput& input,
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

StatusOr<double> Stepper::NormPass(NormType type, double p, double reference,
                                   bool reduced, const Deadline& deadline,
                                   StepReport* report) {
  auto* const mine = reinterpret_cast<NormSum*>(norm_.data());
  {
    Span reduce(deps_.comm->observer(), EventId::kNorm, {},
                &report->seconds_reduce);
    *mine = NormSum();
    for (const OwnedRange& range : ranges_) {
      report->bytes_moved +=
          range.AddNorm(type, p, reference, reduced, deps_.compute, mine);
    }
    SHARD_RETURN_IF_ERROR(deps_.compute->Synchronize(deadline));
  }
  Stopwatch wait(&report->seconds_wait);
  SHARD_RETURN_IF_ERROR(deps_.comm->AllGather(
      "step: global norm", mine, sizeof(*mine), gathered_.data(), deadline));
  NormSum all = {};
  for (const NormSum& part : gathered_) MergeNorm(part, &all);
  return FinishNorm(type, p, reference, all);
}

UpdateInput Stepper::UpdateInputOf(const StepInput& input, double scale,
                                   bool reduced) const {
  const PlanOptions& options = deps_.plan->options();
  UpdateInput update;
  update.step = input.step;
  update.param_steps = input.param_steps;
  update.scale = scale;
  update.clip_value = input.clip_value > 0
                          ? input.clip_value
                          : std::numeric_limits<double>::infinity();
  update.reduced = reduced;
  update.masters = options.masters;
  update.seed = options.seed;
  return update;
}

Status Stepper::UpdateUnits(const StepInput& input, double scale, bool reduced,
                            const std::vector<Event>& events,
                            const Deadline& deadline, StepReport* report) {
  const UpdateInput update = UpdateInputOf(input, scale, reduced);
  const size_t units = by_unit_.size();
  for (size_t i = 0; i < units; ++i) {
    // Units are updated in the order in which they are reduced, from the last;
    // with overlap, in the order in which the next forward pass will use them.
    const size_t u = deps_.overlap ? i : units - 1 - i;
    if (by_unit_[u].empty() || done_[u]) continue;
    const auto unit = static_cast<int32_t>(u);
    for (size_t k = by_unit_[u].size(); k-- > 0;) {
      {
        Stopwatch wait(&report->seconds_wait);
        SHARD_RETURN_IF_ERROR(
            deps_.queue->Wait(events[buffers_[u][k]], deps_.compute, deadline));
      }
      {
        Span updating(deps_.comm->observer(), EventId::kUpdate, {.unit = unit},
                      &report->seconds_update);
        const uint64_t bytes = UpdateRange(
            ranges_[by_unit_[u][k]], *input.optimizers, update, deps_.compute);
        updating.set_bytes(bytes);
        report->bytes_moved += bytes;
      }
      EnqueuePublish(unit, buffers_[u][k]);
    }
  }
  Stopwatch updating(&report->seconds_update);
  return deps_.compute->Synchronize(deadline);
}

void Stepper::Begin(const StepInput& input, const Deadline& deadline) {
  // Both streams update in one workspace, and the same parameters.
  deps_.eager->Wait(deps_.compute->Record(), deadline);
  begun_optimizers_ = *input.optimizers;
  begun_ = UpdateInputOf(input, input.gradient_scale, false);
}

Status Stepper::UpdateEagerly(
    int32_t unit, const std::vector<std::vector<const void*>>* in_place,
    const Deadline& deadline) {
  const std::vector<size_t>& ranges = by_unit_[static_cast<size_t>(unit)];
  for (size_t i = 0; in_place != nullptr && i < ranges.size(); ++i) {
    ranges_[ranges[i]].ReadFrom((*in_place)[i]);
  }
  {
    Span updating(deps_.comm->observer(), EventId::kEagerUpdate,
                  {.unit = unit});
    uint64_t bytes = 0;
    for (const size_t r : ranges) {
      bytes += UpdateRange(ranges_[r], begun_optimizers_, begun_, deps_.eager);
    }
    updating.set_bytes(bytes);
    eager_bytes_ += bytes;
    const Status updated = deps_.eager->Synchronize(deadline);
    updating.set_result(updated);
    if (!updated.ok()) return updated;
  }
  for (size_t i = 0; in_place != nullptr && i < ranges.size(); ++i) {
    ranges_[ranges[i]].ReadSum();
  }
  done_[static_cast<size_t>(unit)] = true;
  for (const size_t b : buffers_[static_cast<size_t>(unit)]) {
    SHARD_RETURN_IF_ERROR(Publish(b));
  }
  return Status();
}

Status Stepper::Publish(size_t buffer) {
  double seconds = 0;
  Status status;
  {
    Span publishing(
        deps_.comm->observer(), EventId::kPublish,
        {.unit = deps_.memory->buffers()[buffer].plan->unit,
         .bytes = static_cast<int64_t>(deps_.transfers->PublishBytes(buffer))},
        &seconds);
    status = deps_.transfers->Publish(buffer);
    if (status.ok()) {
      status = deps_.transfers->Wait(TransferDeadline(deps_.timeout));
    }
    publishing.set_result(status);
  }
  deps_.queue->AddTransferTime(seconds);
  return status;
}

void Stepper::EnqueuePublish(int32_t unit, size_t buffer) {
  const uint64_t bytes = deps_.transfers->PublishBytes(buffer);
  if (bytes == 0) return;
  // The queue runs in order, so the unit's parameters are published when its
  // last buffer is.
  deps_.published->Set(
      unit, deps_.queue->Run("publish the parameters of a buffer", bytes,
                             [this, buffer] { return Publish(buffer); }));
}

uint64_t Stepper::UpdateRange(const OwnedRange& range,
                              const std::vector<Optimizer>& optimizers,
                              const UpdateInput& input, Stream* stream) const {
  const Optimizer& optimizer = optimizers[static_cast<size_t>(range.group())];
  float* const workspace = deps_.memory->workspace();
  if (optimizer.tensor() == nullptr) {
    return UpdateElements(range, optimizer, input, stream);
  }
  if (optimizer.formula() == Formula::kMuon) {
    return UpdateMatrices(range, optimizer, input, workspace, stream);
  }
  return UpdateTensors(range, optimizer, input, workspace, stream);
}

}  // namespace shard
