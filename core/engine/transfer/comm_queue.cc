// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/comm_queue.h"

#include "core/collectives/rank_work.h"
#include "core/observe/observer.h"

namespace shard {

Event CommQueue::Run(std::string_view what, uint64_t bytes,
                     std::function<Status()> work) {
  stream_->Wait(host_->Record(), Deadline::After(timeout_));
  stream_->Wait(compute_->Record(), Deadline::After(timeout_));
  const uint64_t number = EnqueueRankWork(comm_->host_waits(), stream_.get(),
                                          what, std::move(work));
  pending_.push_back({stream_->Record(), bytes, number});
  counters_.bytes += bytes;
  return pending_.back().event;
}

void CommQueue::AddTransferTime(double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  transfer_seconds_ += seconds;
}

void CommQueue::RetireFinished(bool overlapped) {
  while (!pending_.empty() && pending_.front().event.IsDone()) {
    if (overlapped) counters_.bytes_overlapped += pending_.front().bytes;
    pending_.pop_front();
  }
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
  if (pending_.empty()) return stream_->Synchronize(deadline);
  Status status;
  {
    HostWaits::Scope published(comm_->host_waits());
    published.Begin(pending_.back().number);
    Span exposed(comm_->observer(), EventId::kExposed, {},
                 &counters_.seconds_exposed);
    status = stream_->Synchronize(deadline);
    exposed.set_result(status);
  }
  RetireFinished(false);
  return status;
}

CommCounters CommQueue::TakeCounters() {
  CommCounters counters = std::exchange(counters_, CommCounters());
  const std::lock_guard<std::mutex> lock(mutex_);
  counters.seconds = std::exchange(transfer_seconds_, 0);
  return counters;
}

}  // namespace shard
