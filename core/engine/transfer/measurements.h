// SPDX-License-Identifier: Apache-2.0
//
// Measurements: how long work of streams took, as events of the observer.
//
// A thread of the host that does a stream's work records it where it works. A
// device that does the work does not wait for the host to look at a clock: the
// stream marks where the work begins and ends, and the thread that uses the
// engine records it once the device has come there.

#ifndef SHARD_CORE_ENGINE_TRANSFER_MEASUREMENTS_H_
#define SHARD_CORE_ENGINE_TRANSFER_MEASUREMENTS_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "core/base/status.h"
#include "core/device/moment.h"
#include "core/device/stream.h"
#include "core/observe/event.h"
#include "core/observe/observer.h"

namespace shard {

// Shared with work of streams that may end after the owner.
class Measurements {
 public:
  // `observer` outlives this.
  explicit Measurements(Observer* observer);
  // Records what has ended; what has begun and not ended is cancelled.
  ~Measurements();
  Measurements(const Measurements&) = delete;
  Measurements& operator=(const Measurements&) = delete;

  struct Subject {
    EventId event;
    EventArguments arguments;
    bool is_transfer;  // Its time counts in TakeSeconds.
  };

  // Enqueues what `enqueue` does, and measures it. Any thread.
  static Status Measure(const std::shared_ptr<Measurements>& to,
                        const Subject& subject, Stream* stream,
                        const std::function<Status(Stream* stream)>& enqueue);

  // Records what devices have done, in the order of Measure, up to the first
  // work that has not ended. One thread at a time, here and below.
  void Record();

  // Returns the seconds that transfers took that were recorded since the last
  // call.
  double TakeSeconds();

 private:
  class OnThread;

  // Work of a device.
  struct Marked {
    Subject subject;
    DeviceTrack track;
    std::shared_ptr<const Moment> begin;
    std::shared_ptr<const Moment> end;  // Null: it was not enqueued.
  };

  void AddSeconds(double seconds);
  // Returns false where the work has not ended. `ends`: no more will end.
  bool RecordOne(const Marked& marked, bool ends);

  Observer* const observer_;
  const pid_t owner_;
  // By stream, where its last event ended: a stream's events do not overlap,
  // though the device's clock is not exact. Used by Record.
  std::map<const void*, int64_t> ends_;
  std::mutex mutex_;
  std::deque<Marked> pending_;  // GUARDED_BY(mutex_)
  double seconds_ = 0;          // GUARDED_BY(mutex_)
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_MEASUREMENTS_H_
