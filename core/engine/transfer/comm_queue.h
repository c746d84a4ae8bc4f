// SPDX-License-Identifier: Apache-2.0
//
// CommQueue: runs communication on a stream of its own while the host computes,
// in the order in which work was given, and measures how long the host waited
// for it.
//
// Threads: one thread gives work and waits; the work itself runs on the
// stream's thread. Where work of the queue meets the ranks, the host's thread
// may use the communicator while the queue is empty, and the compute stream has
// no meeting left (Stepper).

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
#include "core/device/event.h"
#include "core/device/host_stream.h"
#include "core/device/stream.h"

namespace shard {

// Measurements of communication since the last step.
struct CommCounters {
  uint64_t bytes = 0;
  // The part of `bytes` that was moved before the host waited for it.
  uint64_t bytes_overlapped = 0;
  double seconds = 0;          // Spent moving bytes.
  double seconds_exposed = 0;  // Spent by the host's thread in waiting.
};

class CommQueue {
 public:
  // `comm`, `host` and `compute` outlive this. `stream` ends the communicator
  // when it fails (Stream::OnError). `timeout`: seconds, see Run.
  CommQueue(Communicator* comm, HostStream* host, Stream* compute,
            std::unique_ptr<Stream> stream, double timeout)
      : comm_(comm),
        host_(host),
        compute_(compute),
        timeout_(timeout),
        stream_(std::move(stream)) {}

  // Enqueues `work`, which runs after everything that the host's stream and the
  // compute stream were given so far. These have `timeout` seconds for it from
  // this call on, at which they had all of it; `work` limits its own waits. The
  // time of earlier work of the queue does not count: a wait for what is done
  // ends at once.
  //
  // `what` names the work in errors and must outlive it; `work` calls
  // AddTransferTime. After an error the stream runs nothing more.
  Event Run(std::string_view what, uint64_t bytes,
            std::function<Status()> work);

  // Adds the seconds that moving tensors took, without the wait for other ranks
  // to come. Called by the work, on any thread.
  void AddTransferTime(double seconds);

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

  // Removes work that is done. `overlapped`: before the host waited for it.
  void RetireFinished(bool overlapped);
  // Returns the counters and sets them to 0. The time of work that is not done
  // is that of the next call.
  CommCounters TakeCounters();

 private:
  struct Item {
    Event event;
    uint64_t bytes;
    uint64_t number;  // Of HostWaits::AddWork.
  };
  // Returns the number of the work that ends with `event`; 0 when it is done.
  uint64_t NumberOf(const Event& event) const;

  Communicator* const comm_;
  HostStream* const host_;
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
