// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/device_clock.h"

#include <cmath>

#include "core/base/monotonic_time.h"
#include "core/base/process_id.h"
#include "core/device/cuda/context.h"

namespace shard::cuda {

namespace {

constexpr int64_t kLongest = 1'000'000'000;  // Nanoseconds that anchors last.
// Seconds. A host's call is held up for so long where the driver has one queue
// for all streams, and work in it is stuck before the anchor.
constexpr double kMoment = 0.1;

}  // namespace

DeviceClock::Anchor::Anchor(Context* context)
    : context_(context), owner_(ProcessId()) {}

DeviceClock::Anchor::~Anchor() {
  // The pool's mutex may be held for ever in a child of fork.
  if (event_ == nullptr || ProcessId() != owner_) return;
  context_->ReturnEvent(event_, EventKind::kTimed);
}

StatusOr<std::optional<int64_t>> DeviceClock::Anchor::TimeOf(
    CuEvent event) const {
  SHARD_ASSIGN_OR_RETURN(bool done,
                         context_->Await(event, Deadline::After(0), nullptr));
  if (done && !is_done_.load(std::memory_order_acquire)) {
    // The device has come to it, or is about to: it had nothing else to do.
    SHARD_ASSIGN_OR_RETURN(
        done, context_->Await(event_, Deadline::After(kMoment), nullptr));
    if (done) is_done_.store(true, std::memory_order_release);
  }
  if (!done) return std::optional<int64_t>();
  float milliseconds = 0;
  SHARD_CUDA_CALL(context_->driver(), EventElapsedTime, &milliseconds, event_,
                  event);
  // Negative where the event came first.
  return std::optional<int64_t>(time_ + std::llround(milliseconds * 1e6));
}

StatusOr<std::shared_ptr<const DeviceClock::Anchor>> DeviceClock::Now() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (anchor_ != nullptr && MonotonicTime() - anchor_->time_ < kLongest) {
    return anchor_;
  }
  if (stream_ == nullptr) {
    SHARD_CUDA_CALL(context_->driver(), StreamCreate, &stream_,
                    kStreamNonBlocking);
  }
  const auto made = std::make_shared<Anchor>(context_);
  SHARD_ASSIGN_OR_RETURN(made->event_, context_->TakeEvent(EventKind::kTimed));
  SHARD_CUDA_CALL(context_->driver(), EventRecord, made->event_, stream_);
  made->time_ = MonotonicTime();
  anchor_ = made;
  return anchor_;
}

void DeviceClock::End() noexcept {
  anchor_.reset();
  if (stream_ != nullptr) context_->api().StreamDestroy(stream_);
  stream_ = nullptr;
}

}  // namespace shard::cuda
