// SPDX-License-Identifier: Apache-2.0
//
// Event: a point in the work of a stream (core/device/stream.h). An event is
// done when all work that was enqueued before it has run, and stays done.
//
// An event carries the status of its stream at that point: an error of the
// stream makes its events done, with that error, so that every waiting thread
// is woken and gets the error. All that ran before a done event is visible to a
// thread that saw the event done.
//
// A value, cheap to copy; it may outlive its stream and its device.
// Thread-safe.

#ifndef SHARD_CORE_DEVICE_EVENT_H_
#define SHARD_CORE_DEVICE_EVENT_H_

#include <chrono>
#include <memory>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/status.h"

namespace shard {

// A device's own form of an event that is not done yet. Thread-safe.
class EventState {
 public:
  virtual ~EventState() = default;
  virtual bool IsDone() const = 0;
  virtual Status Synchronize(const Deadline& deadline) const = 0;
};

class Event {
 public:
  // Makes an event that is done, without an error.
  Event() = default;
  // Makes an event that is done, with the stream's `status`.
  explicit Event(Status status) : status_(std::move(status)) {}
  explicit Event(std::shared_ptr<const EventState> state)
      : state_(std::move(state)) {}

  // Returns true when the event is done. Does not block.
  bool IsDone() const { return state_ == nullptr || state_->IsDone(); }

  // Blocks the calling thread until the event is done, and returns its status;
  // kDeadlineExceeded names the work that the stream is doing.
  Status Synchronize(const Deadline& deadline) const {
    return state_ == nullptr ? status_ : state_->Synchronize(deadline);
  }

  // Returns the device's own form of the event, for devices; null for an event
  // that was made done.
  const EventState* state() const { return state_.get(); }

 private:
  Status status_;
  std::shared_ptr<const EventState> state_;
};

// Returns when a stream gives up a wait for an event: half a second after the
// deadline. The work before the event often has that deadline, too, and an
// error that says more, such as which rank is late.
inline Deadline EndOfWait(const Deadline& deadline) {
  return deadline.Later(std::chrono::milliseconds(500));
}

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_EVENT_H_
