// SPDX-License-Identifier: Apache-2.0
//
// CommQueue: what runs on the communication stream while the host computes, in
// the order in which it was given, and how much of it the host waited for.
//
// Threads: one thread gives work and waits; the work itself runs on the
// stream's. While the queue is empty the communicator is the host thread's.

#ifndef SHARD_CORE_ENGINE_TRANSFER_COMM_QUEUE_H_
#define SHARD_CORE_ENGINE_TRANSFER_COMM_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"

namespace shard {

// Since the last step.
struct CommCounters {
  uint64_t bytes = 0;
  // Of those, what was through before the host asked for it.
  uint64_t bytes_overlapped = 0;
  double seconds = 0;          // Spent moving them.
  double seconds_exposed = 0;  // Of waiting for them on the host.
};

class CommQueue {
 public:
  // `comm`, `device` and `compute` outlive this. `timeout`: seconds of what has
  // no deadline.
  CommQueue(Communicator* comm, Device* device, Stream* compute,
            std::unique_ptr<Stream> stream, double timeout)
      : comm_(comm),
        device_(device),
        compute_(compute),
        timeout_(timeout),
        stream_(std::move(stream)) {}

  // After all that the host has written, and the compute stream was given, so
  // far. `what` outlives the work and
  // names it in errors; `work` calls Moved. An error is the stream's for good,
  // and ends the communicator: the other ranks would wait for what is dropped.
  Event Run(std::string_view what, uint64_t bytes,
            std::function<Status()> work);

  // By the work, on whichever thread: what it took to move tensors, without
  // the wait for other ranks to come.
  void Moved(double seconds);
  // The same for what the host's thread does itself: all of it is exposed.
  void MovedByHost(uint64_t bytes, double seconds);

  // What the host does next comes after `event`, one of Run's.
  Status Wait(const Event& event, const Deadline& deadline);
  // After everything.
  Status Drain(const Deadline& deadline);

  // The counters so far, which start anew. REQUIRES: drained.
  CommCounters Take();

 private:
  struct Item {
    Event event;
    uint64_t bytes;
  };
  // Moves items that are through from pending_; `asked` ones were waited for.
  void Settle(bool overlapped);

  Communicator* const comm_;
  Device* const device_;
  Stream* const compute_;
  const double timeout_;
  std::mutex mutex_;  // Guards moved_.
  double moved_ = 0;
  CommCounters counters_;
  std::deque<Item> pending_;
  // Last, so that its thread ends before what it uses.
  std::unique_ptr<Stream> stream_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_COMM_QUEUE_H_
