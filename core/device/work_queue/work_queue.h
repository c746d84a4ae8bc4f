// SPDX-License-Identifier: Apache-2.0
//
// WorkQueue: a queue of host functions that its own thread runs one after the
// other.
//
// Work is numbered from 1 in the order of pushing, and `completed` is the
// number of the last one done. So an event is a queue and a number, and
// recording an event enqueues nothing. The first error stays, from when it is
// found, before the handler of errors tells others: work after it is dropped
// but still counted, and events from its number on have the error.
//
// All queues of a device share one Monitor, so that a queue which waits for the
// event of another queue is also woken by its own destructor. A piece of work
// that is pushed wakes the queue's thread alone, and one that ends those that
// wait for this queue: a host with several ranks on a device has many threads.
//
// The thread blocks all signals, which are the host's. Exceptions do not leave
// it: where memory runs out, the queue fails.
//
// The destructor drops the work that has not begun, ends a wait, and joins the
// thread once the running work has returned. In a child of fork it does
// nothing.
//
// Thread-safe, but for the destructor.

#ifndef SHARD_CORE_DEVICE_WORK_QUEUE_WORK_QUEUE_H_
#define SHARD_CORE_DEVICE_WORK_QUEUE_WORK_QUEUE_H_

#include <pthread.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/event.h"

namespace shard {

struct Monitor {
  std::mutex mutex;
};

// The pause before each piece of work: none, or up to `longest` seconds, each
// in half of the cases.
struct Pauses {
  double longest = 0;  // 0: no pauses.
  uint64_t seed = 0;
};

class WorkQueue {
 public:
  // Starts a queue. `name`, of at most 15 characters, becomes the thread's.
  // kResourceExhausted when no thread can be started.
  static StatusOr<std::unique_ptr<WorkQueue>> Start(
      std::shared_ptr<Monitor> monitor, std::string_view name,
      const Pauses& pauses);
  ~WorkQueue();

  std::string_view name() const;

  // As Stream::OnError.
  void OnError(std::function<void(const Status&)> handler);

  void Push(std::string_view what, std::function<Status()> work);
  // Pushes work that is done when `event` is. REQUIRES: an event of a queue
  // with this Monitor.
  void PushWait(const Event& event, const Deadline& deadline);

  // The fate of work that is not pushed.
  enum class Turn {
    kNow,    // All work was done: a caller may do its own at once.
    kLater,  // Other work comes first.
    kNever,  // The queue has failed.
  };
  Turn turn() const;

  // Fails the queue, as work that returns the error does: for errors that are
  // found elsewhere.
  void Fail(const Status& status);

  // Returns whether the queue is being destroyed. Work that waits for something
  // outside of the queue asks, and ends.
  bool IsStopping() const;

  // Returns an event after all that was pushed so far.
  Event Record() const;

  // Waits for Record(). Only the text of an error allocates.
  Status Synchronize(const Deadline& deadline) const;

  // Returns the first error so far.
  Status status() const;

 private:
  struct State;
  class QueueEvent;

  explicit WorkQueue(std::shared_ptr<State> state);
  static void* Main(void* state);

  // Its events keep it alive longer than the queue.
  const std::shared_ptr<State> state_;
  const pid_t owner_;
  bool started_ = false;
  pthread_t thread_ = {};
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_WORK_QUEUE_WORK_QUEUE_H_
