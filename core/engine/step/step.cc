// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/step.h"

#include <chrono>
#include <thread>
#include <utility>

#include "core/base/strings.h"
#include "core/collectives/rank_work.h"
#include "core/comm/rank_set.h"
#include "core/engine/step/make_update_list.h"
#include "core/engine/step/step_bytes.h"
#include "core/engine/transfer/stopwatch.h"
#include "core/observe/observer.h"
#include "core/optim/optimizer.h"
#include "kernels/formula/muon.h"
#include "kernels/formula/registry.h"

namespace shard {

StatusOr<std::unique_ptr<Stepper>> Stepper::Create(const Dependencies& deps) {
  SHARD_ASSIGN_OR_RETURN(
      UpdateList list,
      MakeUpdateList(*deps.plan, *deps.memory, deps.comm->rank(),
                     deps.memory->workspace()));
  list.copy_timeout = deps.timeout;
  SHARD_RETURN_IF_ERROR(WithNeededMemory(deps.device->Prepare(&list),
                                         *deps.plan, *deps.comm, *deps.device));
  SHARD_ASSIGN_OR_RETURN(StepLatch latch,
                         StepLatch::Create(*deps.plan, deps.device));
  const auto ranks = static_cast<size_t>(deps.comm->world_size());
  SHARD_ASSIGN_OR_RETURN(
      DeviceMemory sums,
      deps.device->Allocate((1 + ranks) * sizeof(NormSum), "gradient norm"));
  return std::unique_ptr<Stepper>(
      new Stepper(deps, std::move(list), std::move(latch), std::move(sums)));
}

Stepper::Stepper(const Dependencies& deps, UpdateList list, StepLatch latch,
                 DeviceMemory sums)
    : deps_(deps),
      list_(std::move(list)),
      latch_(std::move(latch)),
      sums_(std::move(sums)),
      parts_(deps.plan->units().size()),
      updated_(deps.plan->units().size()) {
  on_failure_ =
      deps_.collectives->OnFailure([this](const Status&) { latch_.Poison(); });
  const std::vector<EngineBuffer>& buffers = deps.memory->buffers();
  size_t range = 0;
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (!buffers[b].plan->trainable) continue;
    parts_[static_cast<size_t>(buffers[b].plan->unit)].push_back({b, range++});
  }
}

Stepper::~Stepper() {
  if (launch_watch_ != nullptr) deps_.host->ExplainLate(nullptr);
  launch_watch_ = nullptr;
  latch_.launches().End();
}

Status Stepper::Run(const StepInput& input, bool meets, bool together,
                    const std::vector<Event>& reduced, const Deadline& deadline,
                    StepReport* report) {
  meeting_deadline_ = deadline;
  // The host may still write gradients, and read the parameters.
  deps_.compute->Wait(deps_.host->Record(), deadline);
  if (meets) {
    Stopwatch wait(&report->seconds_wait);
    EnqueueMeeting("step: gradients complete", [this] {
      return deps_.comm->Barrier("step: gradients complete", meeting_deadline_);
    });
  }
  if (begun_) {
    // Eager updates use the same workspace, and with overlap nothing else comes
    // after their publishing.
    Stopwatch wait(&report->seconds_wait);
    SHARD_RETURN_IF_ERROR(deps_.queue->WaitForAll(deps_.compute, deadline));
    if (deps_.updates != nullptr) {
      deps_.compute->Wait(deps_.updates->Record(), deadline);
    }
  } else {
    Latch(input, deadline);
  }
  bytes_ = StepBytes();
  if (input.needs_norm()) {
    {
      Stopwatch wait(&report->seconds_wait);
      SHARD_RETURN_IF_ERROR(deps_.queue->WaitForAll(deps_.compute, deadline));
    }
    SHARD_RETURN_IF_ERROR(EnqueueNorm(NormPass::kFirst, report));
    if (input.norm_type == NormType::kP) {
      SHARD_RETURN_IF_ERROR(EnqueueNorm(NormPass::kSecond, report));
    }
  }
  // Offloaded updates read the results of the norm from the host's block.
  latch_.Download(deps_.compute);
  // The streams of one rank have nothing to do beside updates, which then are
  // one launch; so are those that ranks make together.
  const bool alone = !begun_ && deps_.comm->world_size() == 1 &&
                     !deps_.compute->IsInline() &&
                     deps_.device->offload() == nullptr;
  const bool at_once = together || alone;
  SHARD_RETURN_IF_ERROR(
      at_once ? EnqueueUpdateOfAll(together, reduced, deadline, report)
              : EnqueueUpdates(reduced, deadline, report));
  begun_ = false;
  {
    Span finish(deps_.comm->observer(), EventId::kFinish, {},
                &report->seconds_wait);
    const Status status = EnqueueFinish(deadline);
    finish.set_result(status);
    if (!status.ok()) return status;
  }
  Stopwatch updating(&report->seconds_update);
  if (captures_) latch_.CountEnd(deps_.compute);
  // A skipped step has changed nothing, where that is known by now.
  const bool skipped = deps_.compute->IsInline() && latch_.host_block().skipped;
  if (deps_.overlap && !skipped) {
    deps_.copies->MarkAllStale();
  } else if (!skipped) {
    SHARD_RETURN_IF_ERROR(deps_.copies->RefreshTrainable(deadline));
  }
  finished_ = deps_.compute->Record();
  deps_.host->Wait(finished_, deadline);
  return deps_.host->status();
}

Status Stepper::EnqueueFinish(const Deadline& deadline) {
  if (!deps_.overlap) {
    SHARD_RETURN_IF_ERROR(deps_.queue->WaitForAll(deps_.compute, deadline));
  }
  // Ranks that share no memory do not meet; overlap is theirs alone.
  if (deps_.comm->direct()) {
    EnqueueMeeting("step: parameters published", [this] {
      return deps_.transfers->Finish(meeting_deadline_);
    });
  }
  return deps_.compute->status();
}

Status Stepper::WatchLaunches(const Deadline& deadline) {
  if (deps_.comm->world_size() == 1 || launch_watch_ != nullptr) {
    return Status();
  }
  SHARD_ASSIGN_OR_RETURN(
      launch_watch_,
      LaunchWatch::Start(deps_.comm, deps_.collectives, latch_.launches(),
                         deps_.timeout, deadline));
  deps_.host->ExplainLate(
      [this](const Deadline& late) { return AwaitStray(late); });
  return Status();
}

Status Stepper::LaunchError() const {
  Status failed = deps_.compute->status();
  const int rank = deps_.comm->rank();
  if (failed.code() != StatusCode::kDeadlineExceeded || failed.rank() != rank ||
      launch_watch_ == nullptr) {
    return failed;
  }
  // The others may have waited for this rank, which has waited for its stream.
  const bool is_own = launch_watch_->is_lone() || latch_.launches().HasStray();
  return is_own ? LoneLaunch(StatusCode::kFailedPrecondition, rank) : failed;
}

Status Stepper::AwaitStray(const Deadline& deadline) const {
  const GraphLaunches& launches = latch_.launches();
  if (launch_watch_ == nullptr || !launches.OneTooManyRuns()) return Status();
  // Where both come to their deadline, the watch knows more.
  const Deadline end = deadline.Later(std::chrono::milliseconds(500));
  for (; launches.OneTooManyRuns();
       std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    SHARD_RETURN_IF_ERROR(LaunchError());
    if (end.Expired()) {
      return DeadlineExceeded(
          "a graph that was launched without before_replay, or twice after "
          "one, has not ended within ",
          deadline.seconds(), " s");
    }
  }
  return LaunchError();
}

Status Stepper::AwaitResult(const Deadline& deadline,
                            StepReport* report) const {
  {
    Stopwatch updating(&report->seconds_update);
    SHARD_RETURN_IF_ERROR(finished_.Synchronize(deadline));
  }
  const StepBlock& block = latch_.host_block();
  report->skipped = block.skipped;
  report->grad_norm = block.grad_norm;
  report->bytes_moved += bytes_.norm[0];
  if (NeedsSecondPass(block)) report->bytes_moved += bytes_.norm[1];
  if (!block.skipped) {
    report->bytes_moved += bytes_.update;
    return Status();
  }
  // A host that knows that a step changed nothing acquires nothing anew.
  return deps_.overlap ? deps_.queue->Drain(deadline) : Status();
}

Status Stepper::EnqueueNorm(NormPass pass, StepReport* report) {
  {
    Span reduce(deps_.comm->observer(), EventId::kNorm, {},
                &report->seconds_reduce);
    uint64_t bytes = 0;
    deps_.compute->FillZeros(sums(), sizeof(NormSum));
    for (size_t r = 0; r < list_.ranges.size(); ++r) {
      deps_.compute->AddToNorm(list_, r, pass, latch_.kernels_block(), sums());
      bytes += NormBytes(list_, list_.ranges[r], pass);
    }
    bytes_.norm[static_cast<size_t>(pass)] = bytes;
  }
  Stopwatch wait(&report->seconds_wait);
  const CollectiveDeadline scope(deps_.collectives, meeting_deadline_);
  deps_.collectives->AllGatherBlocks(
      "step: global norm", RankSet::All(deps_.comm->world_size()), sums(),
      sizeof(NormSum), sums() + 1, deps_.compute);
  deps_.compute->FinishNorm(pass, sums() + 1,
                            static_cast<size_t>(deps_.comm->world_size()),
                            latch_.kernels_block());
  return deps_.compute->status();
}

template <typename Meeting>
void Stepper::EnqueueMeeting(std::string_view what, const Meeting& meeting) {
  // The functions capture one pointer, and allocate nothing.
  static_assert(sizeof(meeting) == sizeof(this));
  if (deps_.comm->world_size() == 1) return;
  if (deps_.compute->IsInline()) {
    deps_.compute->Call(what, meeting);
    return;
  }
  // Another thread meets the ranks: this host may wait elsewhere meanwhile.
  EnqueueRankWork(deps_.comm->host_waits(), deps_.compute, what, meeting);
}

Status Stepper::EnqueueUpdateOfAll(bool together,
                                   const std::vector<Event>& events,
                                   const Deadline& deadline,
                                   StepReport* report) {
  const UpdateList& list = together ? deps_.peers->list() : list_;
  uint64_t bytes = 0;
  {
    Stopwatch wait(&report->seconds_wait);
    for (const std::vector<Part>& unit : parts_) {
      for (const Part& part : unit) {
        if (!together) {
          SHARD_RETURN_IF_ERROR(
              deps_.queue->Wait(events[part.buffer], deps_.compute, deadline));
        }
        bytes += BytesOf(list, part, nullptr);
      }
    }
  }
  Span updating(deps_.comm->observer(), EventId::kUpdate, {},
                &report->seconds_update);
  CheckGradients(deps_.compute);
  if (together) {
    const CollectiveDeadline scope(deps_.collectives, meeting_deadline_);
    deps_.collectives->RunTogether("step", deps_.compute, [&] {
      deps_.compute->UpdateAll(list, latch_.blocks());
    });
  } else {
    deps_.compute->UpdateAll(list, latch_.blocks());
  }
  updating.set_bytes(bytes);
  bytes_.update += bytes;
  return Status();
}

Status Stepper::EnqueueUpdates(const std::vector<Event>& events,
                               const Deadline& deadline, StepReport* report) {
  const size_t units = parts_.size();
  // After a norm all gradients are there, and so the step is done as a whole.
  const bool has_norm = latch_.host_block().has_norm;
  if (has_norm) CheckGradients(deps_.compute);
  for (size_t i = 0; i < units; ++i) {
    // Units are updated in the order in which they are reduced, from the last;
    // with overlap, in the order in which the next forward pass will use them.
    const size_t u = deps_.overlap ? i : units - 1 - i;
    // Updates of the queue were published there.
    if (updated_[u] && deps_.updates == nullptr) continue;
    const auto unit = static_cast<int32_t>(u);
    for (size_t k = parts_[u].size(); k-- > 0;) {
      const Part& part = parts_[u][k];
      if (updated_[u]) {
        EnqueuePublish(unit, part.buffer);
        continue;
      }
      {
        Stopwatch wait(&report->seconds_wait);
        SHARD_RETURN_IF_ERROR(
            deps_.queue->Wait(events[part.buffer], deps_.compute, deadline));
      }
      {
        Span updating(deps_.comm->observer(), EventId::kUpdate, {.unit = unit},
                      &report->seconds_update);
        const uint64_t bytes = BytesOf(list_, part, nullptr);
        if (!has_norm) CheckGradients(deps_.compute);
        deps_.compute->Update(list_, part.range, latch_.blocks(), nullptr);
        updating.set_bytes(bytes);
        bytes_.update += bytes;
      }
      EnqueuePublish(unit, part.buffer);
    }
  }
  bytes_.update += std::exchange(eager_bytes_, 0);
  updated_.assign(updated_.size(), false);
  return Status();
}

uint64_t Stepper::BytesOf(const UpdateList& list, const Part& part,
                          const GradientSources* gradients) const {
  const StepBlock& block = latch_.host_block();
  const UpdateRange& range = list.ranges[part.range];
  return UpdateBytes(list, range, block,
                     gradients == nullptr
                         ? list.GradientsOf(range, block.has_norm)
                         : *gradients,
                     deps_.plan->buffers()[part.buffer].grad_dtype);
}

void Stepper::Latch(const StepInput& input, const Deadline& deadline) {
  latch_.Latch(input);
  latched_ = latch_.Upload(deps_.compute);
  latch_deadline_ = deadline;
}

void Stepper::CheckGradients(Stream* stream) const {
  // Offloaded updates are work of a stream that fails itself.
  if (on_failure_ == nullptr || deps_.updates != nullptr) return;
  latch_.UploadPoison(stream);
}

StepForm Stepper::LatchReplay(const StepInput& input, const StepBytes& bytes) {
  bytes_ = bytes;
  latch_.Latch(input);
  return FormOf(input);
}

StepForm Stepper::FormOf(const StepInput& input) const {
  StepForm form;
  form.has_norm = input.needs_norm();
  form.has_second_pass = form.has_norm && input.norm_type == NormType::kP;
  form.by_param = input.param_steps != nullptr;
  form.num_rows = latch_.num_rows();
  for (const Optimizer& optimizer : *input.optimizers) {
    const bool muon = optimizer.formula() == Formula::kMuon;
    form.ns_steps.push_back(
        muon ? static_cast<int>(optimizer.hypers()[Muon::kNsSteps]) : 0);
  }
  return form;
}

std::string StepForm::DifferenceTo(const StepForm& other) const {
  const auto norm = [](const StepForm& form) {
    return form.has_second_pass ? "a norm with a p of its own"
           : form.has_norm      ? "a norm of the gradients"
                                : "no norm of the gradients";
  };
  if (has_norm != other.has_norm || has_second_pass != other.has_second_pass) {
    return StrCat("it has ", norm(other), ", and this step ", norm(*this));
  }
  if (by_param != other.by_param || num_rows != other.num_rows) {
    const auto steps = [](const StepForm& form) {
      return form.by_param ? StrCat("steps of different numbers, with ",
                                    form.num_rows, " rows of constants")
                           : std::string("one step");
    };
    return StrCat("its parameters did ", steps(other), ", and do ",
                  steps(*this), " now");
  }
  for (size_t g = 0; g < ns_steps.size(); ++g) {
    const int captured = g < other.ns_steps.size() ? other.ns_steps[g] : 0;
    if (ns_steps[g] == captured) continue;
    return StrCat("param group ", g, " had ns_steps=", captured, ", and has ",
                  ns_steps[g], " now");
  }
  return "";
}

void Stepper::Begin(const StepInput& input, const Deadline& deadline) {
  Latch(input, deadline);
  begun_ = true;
}

Status Stepper::UpdateEagerly(
    int32_t unit, const std::vector<std::vector<const void*>>* in_place,
    Stream* stream) {
  const std::vector<Part>& parts = parts_[static_cast<size_t>(unit)];
  std::vector<GradientSources> given(in_place == nullptr ? 0 : parts.size());
  uint64_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (in_place != nullptr) {
      const std::vector<const void*>& sources = (*in_place)[i];
      given[i] = {sources.data(), sources.size(),
                  deps_.plan->buffers()[parts[i].buffer].grad_dtype};
    }
    bytes +=
        BytesOf(list_, parts[i], in_place == nullptr ? nullptr : &given[i]);
  }
  Stream* const to = deps_.updates == nullptr ? stream : deps_.updates;
  if (to != stream) to->Wait(stream->Record(), Deadline::After(deps_.timeout));
  SHARD_RETURN_IF_ERROR(deps_.queue->Observe(
      EventId::kEagerUpdate,
      {.unit = unit, .bytes = static_cast<int64_t>(bytes)}, to,
      [&](Stream* updating) {
        updating->Wait(latched_, latch_deadline_);
        CheckGradients(updating);
        for (size_t i = 0; i < parts.size(); ++i) {
          updating->Update(list_, parts[i].range, latch_.blocks(),
                           in_place == nullptr ? nullptr : &given[i]);
        }
        return Status();
      }));
  eager_bytes_ += bytes;
  updated_[static_cast<size_t>(unit)] = true;
  if (to != stream) return Status();
  for (const Part& part : parts) {
    SHARD_RETURN_IF_ERROR(Publish(part.buffer, stream));
  }
  return Status();
}

Status Stepper::Publish(size_t buffer, Stream* stream) {
  const uint64_t bytes = deps_.transfers->PublishBytes(buffer);
  if (bytes == 0) return Status();
  return deps_.queue->Transfer(
      EventId::kPublish,
      {.unit = deps_.memory->buffers()[buffer].plan->unit,
       .bytes = static_cast<int64_t>(bytes)},
      stream, [&](Stream* measured) {
        return deps_.transfers->Publish(buffer, measured);
      });
}

void Stepper::EnqueuePublish(int32_t unit, size_t buffer) {
  const uint64_t bytes = deps_.transfers->PublishBytes(buffer);
  if (bytes == 0) return;
  // The queue runs in order, so the unit's parameters are published when its
  // last buffer is.
  deps_.published->Set(unit, deps_.queue->Run(bytes, [&](Stream* queue) {
    return Publish(buffer, queue);
  }));
}

}  // namespace shard
