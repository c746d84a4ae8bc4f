// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/cuda_event.h"

#include <utility>

#include "core/base/strings.h"

namespace shard::cuda {

namespace {

constexpr std::string_view kRecord = "record an event";

}  // namespace

CudaEvent::CudaEvent(std::shared_ptr<StreamCore> core, EventKind kind)
    : core_(std::move(core)), kind_(kind), last_(core_->last()) {}

CudaEvent::~CudaEvent() {
  // The pool's mutex may be held for ever in a child of fork.
  if (event_ == nullptr || core_->IsForked()) return;
  core_->context()->ReturnEvent(event_, kind_);
}

StatusOr<std::shared_ptr<const CudaEvent>> CudaEvent::Record(
    const std::shared_ptr<StreamCore>& core, WorkQueue::Turn turn,
    EventKind kind) {
  const auto made = std::make_shared<CudaEvent>(core, kind);
  const Status recorded = core->context()->Run([&]() -> Status {
    SHARD_RETURN_IF_ERROR(core->CheckNotCaptured());
    SHARD_ASSIGN_OR_RETURN(made->event_, core->context()->TakeEvent(kind));
    return turn == WorkQueue::Turn::kNow ? made->RecordNow() : Status();
  });
  if (!recorded.ok()) return core->InContext(kRecord, recorded);
  if (turn == WorkQueue::Turn::kLater) {
    core->queue()->Push(kRecord, [made] {
      const StreamCore& stream = *made->core_;
      const Status status =
          stream.context()->Run([&] { return made->RecordNow(); });
      // Work goes on where its time cannot be taken.
      if (!status.ok()) made->is_lost_ = true;
      if (status.ok() || made->kind_ == EventKind::kTimed) return Status();
      return stream.InContext(kRecord, status);
    });
    made->given_ = core->queue()->Record();
  }
  return std::shared_ptr<const CudaEvent>(made);
}

Status CudaEvent::RecordNow() const {
  SHARD_CUDA_CALL(core_->context()->driver(), EventRecord, event_,
                  core_->native());
  return Status();
}

bool CudaEvent::IsDone() const {
  if (is_done_.load(std::memory_order_acquire)) return true;
  if (!given_.IsDone()) return false;
  // A stream that failed did not record the event.
  if (!given_.Synchronize(Deadline::After(0)).ok()) return true;
  bool done = true;
  const Status status = core_->context()->Run([&] {
    SHARD_ASSIGN_OR_RETURN(
        done, core_->context()->Await(event_, Deadline::After(0), nullptr));
    return Status();
  });
  if (!status.ok() || core_->is_poisoned()) return true;
  if (done) is_done_.store(true, std::memory_order_release);
  return done;
}

Status CudaEvent::Synchronize(const Deadline& deadline) const {
  if (is_done_.load(std::memory_order_acquire)) return Status();
  SHARD_RETURN_IF_ERROR(given_.Synchronize(deadline));
  bool done = false;
  const Status status = core_->context()->Run([&] {
    SHARD_ASSIGN_OR_RETURN(
        done, core_->context()->Await(event_, deadline,
                                      [this] { return core_->is_poisoned(); }));
    return Status();
  });
  // The device may have come to the event without what it waits for.
  if (core_->is_poisoned()) return core_->poison();
  if (!status.ok()) {
    const Status failed = core_->InContext(last_, status);
    core_->Fail(failed);
    return failed;
  }
  if (!done) {
    return DeadlineExceeded(
        "stream '", core_->name(), "' of ", core_->context()->name(),
        " was not done within ", deadline.seconds(), " s: the device is at '",
        last_,
        "' or at work before it; look at what it waits for, or give it "
        "a longer timeout");
  }
  is_done_.store(true, std::memory_order_release);
  return Status();
}

StatusOr<std::optional<int64_t>> CudaEvent::TimeBy(
    const DeviceClock::Anchor& anchor) const {
  std::optional<int64_t> time;
  if (core_->IsForked() || !given_.IsDone()) return time;
  SHARD_RETURN_IF_ERROR(given_.Synchronize(Deadline::After(0)));
  if (is_lost_) return Unavailable("the event was not recorded");
  SHARD_RETURN_IF_ERROR(core_->context()->Run([&] {
    SHARD_ASSIGN_OR_RETURN(time, anchor.TimeOf(event_));
    return Status();
  }));
  if (!time.has_value()) SHARD_RETURN_IF_ERROR(core_->status());
  return time;
}

Status CudaEvent::MakeWait(const StreamCore& stream) const {
  SHARD_RETURN_IF_ERROR(given_.Synchronize(Deadline::After(0)));
  const Status status = stream.context()->Run([&]() -> Status {
    SHARD_RETURN_IF_ERROR(stream.CheckNotCaptured());
    SHARD_CUDA_CALL(stream.context()->driver(), StreamWaitEvent,
                    stream.native(), event_, 0);
    return Status();
  });
  return status.ok() ? status : stream.InContext("wait", status);
}

}  // namespace shard::cuda
