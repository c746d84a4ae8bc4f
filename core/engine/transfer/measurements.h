// SPDX-License-Identifier: Apache-2.0
//
// Measurements: how long work of streams took. Each stream marks where the work
// begins and ends; once it has come there, the host's thread records an event
// of the observer, so that no stream waits for the host to look at a clock.
//
// Threads: any.

#ifndef SHARD_CORE_ENGINE_TRANSFER_MEASUREMENTS_H_
#define SHARD_CORE_ENGINE_TRANSFER_MEASUREMENTS_H_

#include <deque>
#include <memory>
#include <mutex>

#include "core/device/moment.h"
#include "core/observe/event.h"
#include "core/observe/observer.h"

namespace shard {

class Measurements {
 public:
  // `observer` outlives this.
  explicit Measurements(Observer* observer) : observer_(observer) {}
  // Records what has ended; what has begun and not ended is cancelled.
  ~Measurements();
  Measurements(const Measurements&) = delete;
  Measurements& operator=(const Measurements&) = delete;

  struct Measured {
    EventId event;
    EventArguments arguments;
    std::shared_ptr<const Moment> begin;
    std::shared_ptr<const Moment> end;  // Null: it was not enqueued.
    bool is_transfer;                   // Its time counts in TakeSeconds.
  };
  void Add(Measured measured);

  // Records what has ended, in the order of Add, up to the first that has not.
  void Record();

  // Returns the seconds that transfers took that were recorded since the last
  // call.
  double TakeSeconds();

 private:
  // Returns false where the work has not ended. `ends`: no more will end.
  bool RecordOne(const Measured& measured, bool ends);

  Observer* const observer_;
  std::mutex mutex_;
  // GUARDED_BY(mutex_):
  std::deque<Measured> pending_;
  double seconds_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_MEASUREMENTS_H_
