// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/measurements.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/process_id.h"

namespace shard {

namespace {

// The result of work that a stream has dropped.
Status Dropped() {
  return Cancelled("it failed, or work of the stream before it");
}

}  // namespace

// An event that begins and ends in work of a stream, in its thread.
class Measurements::OnThread {
 public:
  OnThread(std::shared_ptr<Measurements> to, const Subject& subject)
      : to_(std::move(to)),
        subject_(subject),
        // Made in advance, for the destructor.
        dropped_(Dropped()) {}
  // The stream drops what is behind work that fails.
  ~OnThread() {
    if (span_) span_->set_result(dropped_);
  }
  OnThread(const OnThread&) = delete;
  OnThread& operator=(const OnThread&) = delete;

  void Begin() {
    span_.emplace(to_->observer_, subject_.event, subject_.arguments,
                  &seconds_);
  }
  void End() {
    span_.reset();
    if (subject_.is_transfer) to_->AddSeconds(seconds_);
  }

 private:
  const std::shared_ptr<Measurements> to_;
  const Subject subject_;
  const Status dropped_;
  double seconds_ = 0;
  std::optional<Span> span_;
};

Measurements::Measurements(Observer* observer)
    : observer_(observer), owner_(ProcessId()) {}

Measurements::~Measurements() {
  // In a child of fork nothing ends, and the device is not asked.
  if (ProcessId() != owner_) return;
  try {
    for (const Marked& marked : pending_) RecordOne(marked, true);
  } catch (...) {  // NOLINT: where memory runs out, the rest is not recorded
  }
}

Status Measurements::Measure(
    const std::shared_ptr<Measurements>& to, const Subject& subject,
    Stream* stream, const std::function<Status(Stream* stream)>& enqueue) {
  if (auto begin = stream->Mark(nullptr)) {
    const Status enqueued = enqueue(stream);
    auto end = enqueued.ok() ? stream->Mark(begin.get()) : nullptr;
    const std::lock_guard<std::mutex> lock(to->mutex_);
    to->pending_.push_back(
        {subject, {stream, stream->name()}, std::move(begin), std::move(end)});
    return enqueued;
  }
  const auto measured = std::make_shared<OnThread>(to, subject);
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

void Measurements::Record() {
  // No lock is held while the device is asked, and the observer told.
  for (;;) {
    const Marked* next = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (pending_.empty()) return;
      // Stays where it is: others only add behind it.
      next = &pending_.front();
    }
    if (!RecordOne(*next, false)) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    pending_.pop_front();
  }
}

double Measurements::TakeSeconds() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(seconds_, 0);
}

void Measurements::AddSeconds(double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  seconds_ += seconds;
}

bool Measurements::RecordOne(const Marked& marked, bool ends) {
  const Subject& subject = marked.subject;
  const std::optional<int64_t> begin = marked.begin->time();
  // A stream that has failed has dropped the work.
  if (!begin.has_value()) return ends || marked.begin->is_dropped();
  std::optional<int64_t> end;
  bool is_dropped = marked.end == nullptr;
  if (!is_dropped) {
    end = marked.end->time();
    is_dropped = marked.end->is_dropped();
    if (!end.has_value() && !is_dropped && !ends) return false;
  }
  const bool is_done = end.has_value() && !is_dropped;
  const int64_t nanoseconds =
      std::max<int64_t>(end.value_or(Observer::Now()) - *begin, 0);
  int64_t& last = ends_[marked.track.stream];
  const int64_t from = std::max(*begin, last);
  last = from + nanoseconds;
  observer_->Record(subject.event, subject.arguments, from, last,
                    is_done ? Status() : Dropped(), marked.track);
  if (is_done && subject.is_transfer) {
    AddSeconds(static_cast<double>(nanoseconds) * 1e-9);
  }
  return true;
}

}  // namespace shard
