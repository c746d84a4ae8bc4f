// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/engine_runtime.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/transfer/collectives_memory.h"
#include "core/engine/transfer/plan_sets.h"

namespace shard {

namespace {

// The first error that one of this rank's own streams has told.
class OwnError {
 public:
  void Keep(const Status& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_.ok()) error_ = error;
  }
  // Returns the error; where there is none, another one.
  Status Or(const Status& other) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return error_.ok() ? other : error_;
  }

 private:
  mutable std::mutex mutex_;
  Status error_;  // GUARDED_BY(mutex_)
};

}  // namespace

StatusOr<std::unique_ptr<EngineRuntime>> EngineRuntime::Create(
    std::shared_ptr<const Plan> plan, Communicator* comm, Device* device,
    const Options& options, const EngineRuntime* before,
    const Deadline& deadline) {
  std::unique_ptr<EngineRuntime> runtime(new EngineRuntime);
  runtime->plan_ = std::move(plan);
  if (before != nullptr) runtime->proposals_ = before->proposals_;
  if (before != nullptr && ServesReductions(before->reduce_, *runtime->plan_)) {
    runtime->collectives_ = before->collectives_;
    runtime->reduce_ = before->reduce_;
  }
  if (runtime->proposals_ == nullptr) {
    SHARD_ASSIGN_OR_RETURN(runtime->proposals_, OpenProposals(comm, deadline));
  }
  SHARD_RETURN_IF_ERROR(
      runtime->AllocateMemory(comm, device, options, before, deadline));
  if (options.one_kernel && comm->world_size() > 1) {
    SHARD_ASSIGN_OR_RETURN(
        runtime->peers_,
        PeerStep::Create({runtime->plan_.get(), &*runtime->memory_, comm,
                          runtime->collectives_.get(), device,
                          options.allow_missing, options.overlap},
                         deadline));
  }
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm, "start streams",
                                      runtime->Connect(comm, device, options),
                                      deadline));
  return runtime;
}

Status EngineRuntime::AllocateMemory(Communicator* comm, Device* device,
                                     const Options& options,
                                     const EngineRuntime* before,
                                     const Deadline& deadline) {
  std::string why_not_shared;
  if (before != nullptr) {
    if (const auto registered = before->collectives().registered()) {
      why_not_shared = registered->why_not_shared;
    }
  }
  if (plan_->options().alignment_bytes % Collectives::kSharedAlignment != 0) {
    why_not_shared =
        StrCat("blocks are aligned to ", plan_->options().alignment_bytes,
               " bytes, and not to ", Collectives::kSharedAlignment);
  }
  const PlanSets sets(*plan_, comm->rank());
  for (;;) {
    if (collectives_ == nullptr) {
      reduce_ = ReduceMemoryOf(*plan_);
      SHARD_ASSIGN_OR_RETURN(collectives_,
                             OpenCollectives(comm, device, sets.ToOpen(),
                                             {.transport = options.transport,
                                              .order = OrderOf(*plan_),
                                              .reduce = reduce_,
                                              .why_not_shared = why_not_shared,
                                              .timeout = options.timeout},
                                             deadline));
    }
    SHARD_ASSIGN_OR_RETURN(
        EngineMemory memory,
        EngineMemory::Allocate(*plan_, comm, device, collectives_.get(),
                               before == nullptr ? nullptr : &before->memory(),
                               deadline));
    memory_.emplace(std::move(memory));
    // A failure here ends the collectives, which an engine that goes on with
    // another plan may still use.
    if (before != nullptr || comm->direct() || comm->world_size() == 1) {
      return Status();
    }
    // Slots are not shared: ranks may use different ones for a unit.
    const DeviceMemory* const shared[] = {&memory_->params(),
                                          &memory_->grads()};
    SHARD_ASSIGN_OR_RETURN(const bool goes_on,
                           collectives_->ShareMemory(comm, shared, deadline));
    if (goes_on) return Status();
    why_not_shared = collectives_->registered()->why_not_shared;
    memory_.reset();
    collectives_ = nullptr;
  }
}

Status EngineRuntime::BeginCapture() {
  Stream* const host = host_->get();
  for (Stream* const stream : CapturedStreams()) {
    if (const Status begun = stream->BeginCapture(host); !begun.ok()) {
      (void)EndCapture().ok();
      return begun;
    }
  }
  SetCaptures(true);
  return Status();
}

void EngineRuntime::SetCaptures(bool captures) {
  queue_->SetCaptures(captures);
  collectives_->SetCaptures(captures);
}

Status EngineRuntime::EndCapture() {
  SetCaptures(false);
  Status error = CaptureError();
  for (Stream* const stream : CapturedStreams()) stream->EndCapture();
  return error;
}

Status EngineRuntime::CaptureError() const {
  for (const Stream* const stream : CapturedStreams()) {
    SHARD_RETURN_IF_ERROR(stream->status());
  }
  return Status();
}

std::array<Stream*, 4> EngineRuntime::CapturedStreams() const {
  return {host_->get(), compute_.get(), moving_.get(), &queue_->stream()};
}

Status EngineRuntime::Synchronize(const Deadline& deadline) const {
  SHARD_RETURN_IF_ERROR(queue_->Drain(deadline));
  if (updates_ != nullptr) {
    SHARD_RETURN_IF_ERROR(updates_->Synchronize(deadline));
  }
  SHARD_RETURN_IF_ERROR(compute_->Synchronize(deadline));
  queue_->RetireFinished(true);
  return Status();
}

Status EngineRuntime::WithLateRanks(const Status& status,
                                    const Deadline& deadline) const {
  if (status.code() != StatusCode::kDeadlineExceeded || status.rank() >= 0) {
    return status;
  }
  const Status late = collectives_->FindLate(deadline);
  if (late.ok()) return status;
  return Status(status.code(), StrCat(status.message(), "; ", late.message()),
                late.rank());
}

void EngineRuntime::WaitForStreams(const Deadline& deadline) const noexcept {
  const auto wait = [](const auto& work) {
    try {
      (void)work().ok();
    } catch (...) {  // NOLINT: no memory for the text of an error
    }
  };
  wait([&] { return queue_->Drain(deadline); });
  wait([&] { return moving_->Synchronize(deadline); });
  if (updates_ != nullptr) {
    wait([&] {
      const Status done = updates_->Synchronize(deadline);
      if (!done.ok()) updates_->Fail(done);
      return done;
    });
  }
  wait([&] { return compute_->Synchronize(deadline); });
  wait([&] { return host_->Synchronize(deadline); });
  host_->Settle(deadline);
  // Collectives are aborted after this, and what waits for them then runs.
  stepper_->DropUpdates();
}

Status EngineRuntime::Connect(Communicator* comm, Device* device,
                              const Options& options) {
  host_ = options.host;
  // A stream that fails drops work for which the other ranks wait. It fails on
  // a thread that holds what the watchdog of NCCL waits for. That sees the end
  // of the group, and may come to this rank's other streams before the error
  // does, which is theirs all the same.
  const auto own = std::make_shared<OwnError>();
  const auto create =
      [&](StreamKind kind) -> StatusOr<std::unique_ptr<Stream>> {
    SHARD_ASSIGN_OR_RETURN(auto stream, device->CreateStream(kind));
    stream->OnError([comm, own](const Status& error) {
      own->Keep(error);
      comm->AbortUnlogged(error);
    });
    return stream;
  };
  SHARD_ASSIGN_OR_RETURN(compute_, create(StreamKind::kCompute));
  SHARD_ASSIGN_OR_RETURN(moving_, create(StreamKind::kCompute));
  if (device->offload() != nullptr) {
    SHARD_ASSIGN_OR_RETURN(updates_, create(StreamKind::kCompute));
  }
  SHARD_ASSIGN_OR_RETURN(auto communication,
                         create(StreamKind::kCommunication));
  copies_ = std::make_unique<BoundCopies>(BoundCopies::Dependencies{
      plan_.get(), &*memory_, options.bound, host_, compute_.get()});
  SHARD_ASSIGN_OR_RETURN(
      transfers_,
      MakeTransfers({plan_.get(), &*memory_, comm, collectives_.get(), device,
                     options.allow_missing}));
  // Ranks that may lack gradients meet before each transfer.
  const bool meets =
      comm->direct() || options.allow_missing || !collectives_->RunsOnDevice();
  queue_ = std::make_unique<CommQueue>(
      comm, host_, compute_.get(), std::move(communication),
      meets ? WorkOfRanks::kCounted : WorkOfRanks::kOfDevice, options.timeout);
  published_.emplace(plan_->units().size());
  Units::Dependencies unit_deps;
  unit_deps.plan = plan_.get();
  unit_deps.memory = &*memory_;
  unit_deps.copies = copies_.get();
  unit_deps.comm = comm;
  unit_deps.proposals = proposals_.get();
  unit_deps.host = host_;
  unit_deps.compute = compute_.get();
  unit_deps.transfers = transfers_.get();
  unit_deps.queue = queue_.get();
  unit_deps.moving = moving_.get();
  unit_deps.published = &*published_;
  unit_deps.timeout = options.timeout;
  unit_deps.allow_missing = options.allow_missing;
  units_ = std::make_unique<Units>(unit_deps);
  Stepper::Dependencies step_deps;
  step_deps.plan = plan_.get();
  step_deps.memory = &*memory_;
  step_deps.copies = copies_.get();
  step_deps.comm = comm;
  step_deps.device = device;
  step_deps.host = host_;
  step_deps.compute = compute_.get();
  step_deps.collectives = collectives_.get();
  step_deps.peers = peers_.get();
  step_deps.transfers = transfers_.get();
  step_deps.queue = queue_.get();
  step_deps.published = &*published_;
  step_deps.updates = updates_.get();
  step_deps.timeout = options.timeout;
  step_deps.overlap =
      options.overlap && !comm->direct() && !plan_->shards_params();
  SHARD_ASSIGN_OR_RETURN(stepper_, Stepper::Create(step_deps));
  on_failure_ = collectives_->OnFailure(
      [streams = std::vector<Stream*>{compute_.get(), moving_.get(),
                                      &queue_->stream()},
       updates = updates_.get(), peers = peers_.get(),
       own](const Status& found) {
        const Status error = own->Or(found);
        for (Stream* const stream : streams) stream->Fail(error);
        if (updates != nullptr) updates->Fail(error);
        // Work that then ends is not taken for a step that has been made.
        if (peers != nullptr) peers->EndWaits();
      });
  return Status();
}

}  // namespace shard
