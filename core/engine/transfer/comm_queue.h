// SPDX-License-Identifier: Apache-2.0
//
// CommQueue: the stream of communication, which runs while the host computes,
// in the order in which work was given, and measures how long the host waited
// for it.
//
// Threads: one thread gives work and waits; the work itself runs on the
// stream's thread. Where work of the queue meets the ranks, the host's thread
// may use the communicator while the queue is empty, and the compute stream has
// no meeting left (Stepper).

#ifndef SHARD_CORE_ENGINE_TRANSFER_COMM_QUEUE_H_
#define SHARD_CORE_ENGINE_TRANSFER_COMM_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/device/event.h"
#include "core/device/host_stream.h"
#include "core/device/stream.h"
#include "core/engine/transfer/measurements.h"
#include "core/observe/observer.h"

namespace shard {

// Measurements of communication since the last step.
struct CommCounters {
  uint64_t bytes = 0;
  // The part of `bytes` that was moved before the host waited for it.
  uint64_t bytes_overlapped = 0;
  double seconds = 0;          // Spent moving bytes.
  double seconds_exposed = 0;  // Spent by the host's thread in waiting.
};

// Whether threads of the library meet other ranks in the work of a queue, which
// then counts it for those ranks (EnqueueRankWork). Elsewhere the device moves
// the tensors, and does not wait for a thread; an error of what is enqueued
// ends work before it, too (Stream::Fail).
enum class WorkOfRanks { kCounted, kOfDevice };

class CommQueue {
 public:
  // `comm`, `host` and `compute` outlive this. `stream` ends the communicator
  // when it fails (Stream::OnError). `timeout`: seconds, see Run.
  CommQueue(Communicator* comm, HostStream* host, Stream* compute,
            std::unique_ptr<Stream> stream, WorkOfRanks work, double timeout);
  ~CommQueue();

  // Enqueues transfers of `bytes` bytes: in this thread, `enqueue` gives the
  // queue's stream the work, which runs after everything that the host's stream
  // and the compute stream were given so far. These have `timeout` seconds for
  // it from this call on, at which they had all of it, or until the deadline of
  // AllowUntil; the work limits its own waits. The time of earlier work of the
  // queue does not count: a wait for what is done ends at once.
  //
  // Returns an event after the transfers. An error of `enqueue` fails the
  // stream. After an error the stream runs nothing more.
  using Enqueue = std::function<Status(Stream* stream)>;
  Event Run(uint64_t bytes, const Enqueue& enqueue);

  // Sets whether work is part of a graph from here on. It is not measured then,
  // and nobody waits for it.
  void SetCaptures(bool captures) { captures_ = captures; }

  // Gives the streams before Run until `deadline`, where that is later: that of
  // a step, which the compute stream may still be doing.
  void AllowUntil(const Deadline& deadline) { allowed_ = deadline; }

  // Enqueue what `enqueue` does as an event of the observer, which begins and
  // ends on the stream. A transfer also adds to the time that moving tensors
  // takes; that of a device once the host has looked (RetireFinished,
  // TakeCounters). Any thread, for the queue's stream or one that its work
  // waits for.
  Status Transfer(EventId event, const EventArguments& arguments,
                  Stream* stream, const Enqueue& enqueue) const {
    return Measure(event, arguments, true, stream, enqueue);
  }
  Status Observe(EventId event, const EventArguments& arguments, Stream* stream,
                 const Enqueue& enqueue) const {
    return Measure(event, arguments, false, stream, enqueue);
  }

  // Makes the next work of `stream` come after `event`, which Run has returned.
  // Where the stream is inline this blocks: the time is exposed, and the wait
  // published (HostWaits). Returns the stream's error, if it has failed by now.
  Status Wait(const Event& event, Stream* stream, const Deadline& deadline);
  // The same for all work.
  Status WaitForAll(Stream* stream, const Deadline& deadline) {
    if (pending_.empty()) return stream_->status();
    const Event last = pending_.back().event;
    return Wait(last, stream, deadline);
  }
  // Waits for all work.
  Status Drain(const Deadline& deadline);

  // Returns the stream of the queue.
  Stream& stream() const { return *stream_; }

  // Removes work that is done, and records what devices have done.
  // `overlapped`: before the host waited for it.
  void RetireFinished(bool overlapped);
  // Returns the counters and sets them to 0. The time of work that is not done
  // is that of the next call.
  CommCounters TakeCounters();

 private:
  struct Item {
    Event event;
    uint64_t bytes;
    uint64_t number;  // Of HostWaits::AddWork; 0: it was not counted.
  };

  Status Measure(EventId event, const EventArguments& arguments,
                 bool is_transfer, Stream* stream,
                 const Enqueue& enqueue) const;
  // Returns the number of the work that ends with `event`; 0 when it is done,
  // or was not counted.
  uint64_t NumberOf(const Event& event) const;

  Communicator* const comm_;
  HostStream* const host_;
  Stream* const compute_;
  const WorkOfRanks work_;
  const double timeout_;
  Deadline allowed_ = Deadline::After(0);
  bool captures_ = false;
  const std::shared_ptr<Measurements> measurements_;
  CommCounters counters_;
  std::deque<Item> pending_;
  // Destroyed first, so that its thread ends before the members that it uses.
  std::unique_ptr<Stream> stream_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_COMM_QUEUE_H_
