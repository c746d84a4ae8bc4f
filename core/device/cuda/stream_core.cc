// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/stream_core.h"

#include <unistd.h>

#include <utility>

#include "core/base/strings.h"

namespace shard::cuda {

namespace {

// Seconds that the end of a stream waits for what the device has begun; and the
// fewest: an event that was recorded just now is not done on an idle device
// either.
constexpr double kEndTimeout = 30;
constexpr double kLeastEndTimeout = 1;

Deadline EndDeadline(const Deadline& given) {
  const Deadline most = Deadline::After(kEndTimeout);
  const Deadline least = Deadline::After(kLeastEndTimeout);
  if (given.Remaining() > most.Remaining()) return most;
  return given.Remaining() < least.Remaining() ? least : given;
}

}  // namespace

StreamCore::StreamCore(std::shared_ptr<Context> context, std::string_view name)
    : context_(std::move(context)), name_(name), owner_(::getpid()) {}

StreamCore::~StreamCore() { End(); }

StatusOr<std::shared_ptr<StreamCore>> StreamCore::Create(
    std::shared_ptr<Context> context, std::string_view name) {
  std::shared_ptr<StreamCore> core(new StreamCore(std::move(context), name));
  SHARD_ASSIGN_OR_RETURN(
      core->queue_,
      WorkQueue::Start(core->context_->monitor(), name, Pauses()));
  SHARD_RETURN_IF_ERROR(core->context_->Run([&] {
    SHARD_CUDA_CALL(core->context_->driver(), StreamCreate, &core->native_,
                    kStreamNonBlocking);
    return Status();
  }));
  return core;
}

std::shared_ptr<StreamCore> StreamCore::Wrap(std::shared_ptr<Context> context,
                                             CuStream native,
                                             std::string_view name) {
  std::shared_ptr<StreamCore> core(new StreamCore(std::move(context), name));
  core->native_ = native;
  return core;
}

void StreamCore::End() noexcept {
  if (IsForked()) {
    // Its thread does not exist here, and its mutex may be held for ever.
    static_cast<void>(queue_.release());
    return;
  }
  std::unique_ptr<WorkQueue> queue;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    on_error_ = nullptr;
    queue = std::move(queue_);
  }
  // The host's stream stays, and what is on it is the host's.
  if (queue == nullptr) return;
  queue.reset();
  if (native_ == nullptr) return;
  if (!Settle(Deadline::After(kEndTimeout))) return;
  const Context::Current current(*context_);
  context_->api().StreamDestroy(native_);
}

bool StreamCore::Settle(const Deadline& deadline) noexcept {
  // In a child of fork nothing runs.
  if (IsForked()) return true;
  // No memory is freed in any case.
  if (context_->is_abandoned()) return false;
  // One failed call does not say that the work goes on, but an abandoned
  // context stays so: the second try decides.
  const Deadline end = EndDeadline(deadline);
  if (HasEnded(end)) return true;
  if (!context_->is_abandoned() && HasEnded(end)) return true;
  context_->Abandon();
  return false;
}

bool StreamCore::HasEnded(const Deadline& deadline) noexcept {
  const Context::Current current(*context_);
  try {
    // Another thread may find meanwhile that work does not end, as an abort of
    // NCCL does.
    const StatusOr<bool> done =
        AwaitAll(deadline, [this] { return context_->is_abandoned(); });
    return done.ok() ? *done : context_->IsLost();
  } catch (...) {  // NOLINT: out of memory
    return false;
  }
}

bool StreamCore::IsForked() const { return ::getpid() != owner_; }

void StreamCore::OnError(std::function<void(const Status&)> handler) {
  if (queue_ != nullptr) {
    queue_->OnError(std::move(handler));
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  on_error_ = std::move(handler);
}

void StreamCore::Fail(const Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Nothing has run, and the engine's memory is as it was.
  if (is_captured()) {
    if (capture_error_.ok()) capture_error_ = status;
    return;
  }
  if (queue_ != nullptr) {
    queue_->Fail(status);
    return;
  }
  if (!error_.ok()) return;
  error_ = status;
  if (on_error_) on_error_(status);
}

void StreamCore::Poison(const Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (poison_.ok()) poison_ = status;
  }
  Fail(status);
  poisoned_.store(true, std::memory_order_release);
}

Status StreamCore::poison() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return poison_;
}

Status StreamCore::status() const {
  if (Status failed = CaptureError(); !failed.ok()) return failed;
  if (queue_ != nullptr) return queue_->status();
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

WorkQueue::Turn StreamCore::turn() const {
  if (!CaptureError().ok()) return WorkQueue::Turn::kNever;
  if (queue_ != nullptr) return queue_->turn();
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_.ok() ? WorkQueue::Turn::kNow : WorkQueue::Turn::kNever;
}

Status StreamCore::CheckNotCaptured() const {
  // Nobody else captures a stream of libshard's.
  if (queue_ != nullptr || is_captured()) return Status();
  CuCaptureStatus status = CuCaptureStatus::kNone;
  const CuResult result = context_->api().StreamIsCapturing(native_, &status);
  constexpr std::string_view kRemedy =
      "; call libshard before the capture begins, after it has ended, or "
      "between capture_begin and capture_end of an engine";
  if (result == CuResult::kStreamCaptureImplicit) {
    return FailedPrecondition(
        "the host captures a CUDA graph, beside which the legacy default "
        "stream "
        "cannot be used",
        kRemedy, ", or give it another stream");
  }
  SHARD_RETURN_IF_ERROR(
      context_->driver()->ToStatus(result, "cuStreamIsCapturing"));
  if (status == CuCaptureStatus::kNone) return Status();
  return FailedPrecondition(
      "the host captures the work of its stream as a CUDA graph", kRemedy);
}

StatusOr<uint64_t> StreamCore::CaptureId() const {
  CuCaptureStatus status = CuCaptureStatus::kNone;
  uint64_t id = 0;
  const CuResult result =
      context_->api().StreamGetCaptureInfo(native_, &status, &id);
  // The driver says so of the legacy stream while any other is captured, and
  // leaves the status alone.
  if (result != CuResult::kStreamCaptureImplicit) {
    SHARD_RETURN_IF_ERROR(
        context_->driver()->ToStatus(result, "cuStreamGetCaptureInfo"));
    if (status == CuCaptureStatus::kActive) return id;
    if (status == CuCaptureStatus::kInvalidated) {
      return FailedPrecondition(
          "the capture of the host's stream became invalid by a call that it "
          "forbids, as one that allocates memory or waits; leave the call out, "
          "and capture anew");
    }
  }
  return FailedPrecondition(
      "the host's stream is not captured; give the engine a stream with "
      "set_stream, and begin its capture (cudaStreamBeginCapture) first");
}

Status StreamCore::BeginCapture(const StreamCore& host) {
  SHARD_RETURN_IF_ERROR(host.CaptureId().status());
  const std::lock_guard<std::mutex> lock(mutex_);
  captured_ = host.native_;
  return Status();
}

void StreamCore::EndCapture() {
  Status found;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    captured_.reset();
    capture_error_ = Status();
    found = poison_;
  }
  // An error that was found elsewhere is not that of the capture alone.
  if (!found.ok()) Fail(found);
}

Status StreamCore::CaptureError() const {
  if (!is_captured()) return Status();
  const std::lock_guard<std::mutex> lock(mutex_);
  return capture_error_;
}

Status StreamCore::CheckRuns() const {
  if (!is_captured()) return Status();
  return FailedPrecondition(
      "captured work does not run, so nothing can wait for it; call "
      "capture_end first");
}

StatusOr<bool> StreamCore::AwaitAll(const Deadline& deadline,
                                    const std::function<bool()>& stop) {
  SHARD_RETURN_IF_ERROR(CheckRuns());
  SHARD_RETURN_IF_ERROR(CheckNotCaptured());
  SHARD_ASSIGN_OR_RETURN(const CuEvent event, context_->TakeEvent());
  const auto await = [&]() -> StatusOr<bool> {
    SHARD_CUDA_CALL(context_->driver(), EventRecord, event, native_);
    return context_->Await(event, deadline, stop);
  };
  StatusOr<bool> done = await();
  context_->ReturnEvent(event);
  return done;
}

Status StreamCore::InContext(std::string_view what,
                             const Status& status) const {
  return status.WithContext(
      StrCat("stream '", name_, "' of ", context_->name(), ", '", what, "'"));
}

}  // namespace shard::cuda
