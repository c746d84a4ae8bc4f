// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/comm_queue.h"

#include <mutex>
#include <optional>
#include <utility>

#include "core/collectives/rank_work.h"

namespace shard {

// The seconds that moving tensors took. Threads: any.
class CommQueue::Time {
 public:
  void Add(double seconds) {
    const std::lock_guard<std::mutex> lock(mutex_);
    seconds_ += seconds;
  }
  double Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(seconds_, 0);
  }

 private:
  std::mutex mutex_;
  double seconds_ = 0;
};

// An event of the observer that begins and ends in work of a stream.
class CommQueue::Measured {
 public:
  Measured(Observer* observer, EventId event, const EventArguments& arguments,
           std::shared_ptr<Time> time)
      : observer_(observer),
        event_(event),
        arguments_(arguments),
        time_(std::move(time)),
        // Made in advance, for the destructor.
        dropped_(Cancelled("it failed, or work of the stream before it")) {}
  // The stream drops what is behind work that fails.
  ~Measured() {
    if (span_) span_->set_result(dropped_);
  }
  Measured(const Measured&) = delete;
  Measured& operator=(const Measured&) = delete;

  void Begin() { span_.emplace(observer_, event_, arguments_, &seconds_); }
  void End() {
    span_.reset();
    if (time_ != nullptr) time_->Add(seconds_);
  }

 private:
  Observer* const observer_;
  const EventId event_;
  const EventArguments arguments_;
  const std::shared_ptr<Time> time_;
  const Status dropped_;
  double seconds_ = 0;
  std::optional<Span> span_;
};

CommQueue::CommQueue(Communicator* comm, HostStream* host, Stream* compute,
                     std::unique_ptr<Stream> stream, double timeout)
    : comm_(comm),
      host_(host),
      compute_(compute),
      timeout_(timeout),
      time_(std::make_shared<Time>()),
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
  const uint64_t number =
      EnqueueRankWork(comm_->host_waits(), stream_.get(), "end transfers",
                      [enqueued] { return enqueued; });
  pending_.push_back({stream_->Record(), bytes, number});
  counters_.bytes += bytes;
  return pending_.back().event;
}

Status CommQueue::Measure(EventId event, const EventArguments& arguments,
                          const std::shared_ptr<Time>& time, Stream* stream,
                          const Enqueue& enqueue) const {
  if (captures_) return enqueue(stream);
  const auto measured =
      std::make_shared<Measured>(comm_->observer(), event, arguments, time);
  stream->Call("begin to measure", [measured] {
    measured->Begin();
    return Status();
  });
  SHARD_RETURN_IF_ERROR(enqueue(stream));
  stream->Call("end to measure", [measured] {
    measured->End();
    return Status();
  });
  return Status();
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
  if (pending_.empty()) return stream_->status();
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
  counters.seconds = time_->Take();
  return counters;
}

}  // namespace shard
