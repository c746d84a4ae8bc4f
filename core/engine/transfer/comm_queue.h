// SPDX-License-Identifier: Apache-2.0
//
// CommQueue: runs communication on a stream of its own while the host computes,
// in the order in which work was given, and measures how long the host waited
// for it.
//
// Threads: one thread gives work and waits; the work itself runs on the
// stream's thread. While the queue is empty the host's thread may use the
// communicator.

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

// Measurements of communication since the last step.
struct CommCounters {
  uint64_t bytes = 0;
  // The part of `bytes` that was moved before the host waited for it.
  uint64_t bytes_overlapped = 0;
  double seconds = 0;          // Spent moving bytes.
  double seconds_exposed = 0;  // Spent by the host in waiting.
};

class CommQueue {
 public:
  // `comm`, `device` and `compute` outlive this. `timeout`: seconds, of work
  // that has no deadline.
  CommQueue(Communicator* comm, Device* device, Stream* compute,
            std::unique_ptr<Stream> stream, double timeout)
      : comm_(comm),
        device_(device),
        compute_(compute),
        timeout_(timeout),
        stream_(std::move(stream)) {}

  // Enqueues `work`, which runs after everything that the host has written and
  // that the compute stream was given so far. `what` names the work in errors
  // and must outlive it; `work` calls AddTransferTime. After an error the
  // stream runs nothing more, and the communicator is ended: the other ranks
  // would wait for the dropped work.
  Event Run(std::string_view what, uint64_t bytes,
            std::function<Status()> work);

  // Adds the seconds that moving tensors took, without the wait for other ranks
  // to come. Called by the work, on any thread.
  void AddTransferTime(double seconds);
  // Adds bytes and seconds of transfers by the host's thread: all of their time
  // is exposed.
  void AddHostTransfer(uint64_t bytes, double seconds);

  // Waits for `event`, which Run has returned.
  Status Wait(const Event& event, const Deadline& deadline);
  // Waits for all work.
  Status Drain(const Deadline& deadline);

  // Returns the counters and sets them to 0. REQUIRES: drained.
  CommCounters TakeCounters();

 private:
  struct Item {
    Event event;
    uint64_t bytes;
    uint64_t number;  // Of HostWaits::AddWork.
  };
  // Removes finished items from pending_. `overlapped`: they were done before
  // the host waited for them.
  void RetireFinished(bool overlapped);
  // Returns the number of the work that ends with `event`; 0 when it is done.
  uint64_t NumberOf(const Event& event) const;

  Communicator* const comm_;
  Device* const device_;
  Stream* const compute_;
  const double timeout_;
  std::mutex mutex_;  // Guards transfer_seconds_.
  double transfer_seconds_ = 0;
  CommCounters counters_;
  std::deque<Item> pending_;
  // Destroyed first, so that its thread ends before the members that it uses.
  std::unique_ptr<Stream> stream_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_COMM_QUEUE_H_
