// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/device_clock.h"

#include <cmath>

#include "core/base/monotonic_time.h"
#include "core/base/process_id.h"
#include "core/device/cuda/context.h"

namespace shard::cuda {

namespace {

constexpr int64_t kLongest = 1'000'000'000;  // Nanoseconds that anchors last.

}  // namespace

DeviceClock::Anchor::Anchor(Context* context, CuEvent event)
    : context_(context), owner_(ProcessId()), event_(event) {}

DeviceClock::Anchor::~Anchor() {
  // The pool's mutex may be held for ever in a child of fork.
  if (ProcessId() != owner_) return;
  context_->ReturnEvent(event_, EventKind::kTimed);
}

StatusOr<std::optional<int64_t>> DeviceClock::Anchor::TimeOf(
    CuEvent event) const {
  if (!is_done_.load(std::memory_order_acquire)) {
    SHARD_ASSIGN_OR_RETURN(
        const bool done, context_->Await(event_, Deadline::After(0), nullptr));
    if (!done) return std::optional<int64_t>();
    is_done_.store(true, std::memory_order_release);
  }
  float milliseconds = 0;
  const CuResult result =
      context_->api().EventElapsedTime(&milliseconds, event_, event);
  if (result == CuResult::kNotReady) return std::optional<int64_t>();
  SHARD_RETURN_IF_ERROR(
      context_->driver()->ToStatus(result, "cuEventElapsedTime"));
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
  SHARD_ASSIGN_OR_RETURN(const CuEvent event,
                         context_->TakeEvent(EventKind::kTimed));
  const auto made = std::make_shared<Anchor>(context_, event);
  SHARD_CUDA_CALL(context_->driver(), EventRecord, event, stream_);
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
