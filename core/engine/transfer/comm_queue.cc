// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/comm_queue.h"

#include <utility>

#include "core/collectives/rank_work.h"

namespace shard {

CommQueue::CommQueue(Communicator* comm, HostStream* host, Stream* compute,
                     std::unique_ptr<Stream> stream, WorkOfRanks work,
                     double timeout)
    : comm_(comm),
      host_(host),
      compute_(compute),
      work_(work),
      timeout_(timeout),
      measurements_(std::make_shared<Measurements>(comm->observer())),
      stream_(std::move(stream)) {}

CommQueue::~CommQueue() = default;

Event CommQueue::Run(uint64_t bytes, const Enqueue& enqueue) {
  const Deadline own = Deadline::After(timeout_);
  const Deadline& given =
      allowed_.Remaining() > own.Remaining() ? allowed_ : own;
  stream_->Wait(host_->Record(), given);
  stream_->Wait(compute_->Record(), given);
  const Status enqueued = enqueue(stream_.get());
  if (captures_) {
    if (!enqueued.ok()) stream_->Fail(enqueued);
    return stream_->Record();
  }
  uint64_t number = 0;
  if (work_ == WorkOfRanks::kCounted) {
    number = EnqueueRankWork(comm_->host_waits(), stream_.get(),
                             "end transfers", [enqueued] { return enqueued; });
  } else if (!enqueued.ok()) {
    stream_->Fail(enqueued);
  }
  pending_.push_back({stream_->Record(), bytes, number});
  counters_.bytes += bytes;
  return pending_.back().event;
}

Status CommQueue::Measure(EventId event, const EventArguments& arguments,
                          bool is_transfer, Stream* stream,
                          const Enqueue& enqueue) const {
  if (captures_) return enqueue(stream);
  return Measurements::Measure(measurements_, {event, arguments, is_transfer},
                               stream, enqueue);
}

void CommQueue::RetireFinished(bool overlapped) {
  while (!pending_.empty() && pending_.front().event.IsDone()) {
    if (overlapped) counters_.bytes_overlapped += pending_.front().bytes;
    pending_.pop_front();
  }
  // Behind what has ended, so that no transfer is removed and not recorded.
  measurements_->Record();
}

uint64_t CommQueue::NumberOf(const Event& event) const {
  for (const Item& item : pending_) {
    if (item.event.state() == event.state()) return item.number;
  }
  return 0;
}

Status CommQueue::Wait(const Event& event, Stream* stream,
                       const Deadline& deadline) {
  RetireFinished(true);
  // The host goes on where the stream alone waits. Its peers could take such a
  // wait for a deadlock, if it were published only for a moment.
  if (event.IsDone() || !stream->IsInline()) {
    stream->Wait(event, deadline);
    return stream->status();
  }
  Status status;
  {
    HostWaits::Scope published(comm_->host_waits());
    if (const uint64_t number = NumberOf(event); number > 0) {
      published.Begin(number);
    }
    Span exposed(comm_->observer(), EventId::kExposed, {},
                 &counters_.seconds_exposed);
    stream->Wait(event, deadline);
    status = stream->status();
    exposed.set_result(status);
  }
  RetireFinished(false);
  return status;
}

Status CommQueue::Drain(const Deadline& deadline) {
  RetireFinished(true);
  if (pending_.empty()) return stream_->status();
  Status status;
  {
    HostWaits::Scope published(comm_->host_waits());
    if (const uint64_t number = pending_.back().number; number > 0) {
      published.Begin(number);
    }
    Span exposed(comm_->observer(), EventId::kExposed, {},
                 &counters_.seconds_exposed);
    status = stream_->Synchronize(deadline);
    exposed.set_result(status);
  }
  RetireFinished(false);
  return status;
}

CommCounters CommQueue::TakeCounters() {
  measurements_->Record();
  CommCounters counters = std::exchange(counters_, CommCounters());
  counters.seconds = measurements_->TakeSeconds();
  return counters;
}

}  // namespace shard
