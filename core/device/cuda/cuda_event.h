// SPDX-License-Identifier: Apache-2.0
//
// CudaEvent: an event of the driver, and the point of a stream's queue at which
// the driver was given it. It is done when the device has come to it.

#ifndef SHARD_CORE_DEVICE_CUDA_CUDA_EVENT_H_
#define SHARD_CORE_DEVICE_CUDA_CUDA_EVENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/cuda/device_clock.h"
#include "core/device/cuda/stream_core.h"
#include "core/device/event.h"

namespace shard::cuda {

class CudaEvent final : public EventState {
 public:
  // Records an event after all that the stream was given so far. REQUIRES:
  // turn() is `turn`, and not kNever.
  static StatusOr<std::shared_ptr<const CudaEvent>> Record(
      const std::shared_ptr<StreamCore>& core, WorkQueue::Turn turn,
      EventKind kind);
  CudaEvent(std::shared_ptr<StreamCore> core, EventKind kind);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool IsDone() const override;
  Status Synchronize(const Deadline& deadline) const override;

  // Returns the point at which the driver has been given the event.
  const Event& given() const { return given_; }
  // Returns when the device came to the event, as the anchor does; nothing in a
  // child of fork; the error of a stream that failed before. REQUIRES: a timed
  // event.
  StatusOr<std::optional<int64_t>> TimeBy(
      const DeviceClock::Anchor& anchor) const;
  // Returns whether the device may have come to the event without what it waits
  // for.
  bool is_poisoned() const { return core_->is_poisoned(); }
  // Makes the work that `stream` is given from here on run after the event.
  // REQUIRES: given() is done.
  Status MakeWait(const StreamCore& stream) const;

 private:
  Status RecordNow() const;

  const std::shared_ptr<StreamCore> core_;
  const EventKind kind_;
  CuEvent event_ = nullptr;
  Event given_;
  const std::string last_;  // The work that the stream was given before.
  // The driver did not take it: it has its record of another use.
  std::atomic<bool> is_lost_ = false;
  mutable std::atomic<bool> is_done_ = false;
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_CUDA_EVENT_H_
