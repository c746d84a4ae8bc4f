// SPDX-License-Identifier: Apache-2.0
//
// Observer: records what one rank does. Each event (event.h) goes to four
// places: the counters, always; and, where the host or the environment asks for
// them, the log, the trace and the file of metrics. Beside events there are the
// last collectives (collective_ring.h), always, and a file of them, the dump.
//
//   Span span(comm->observer(), EventId::kUpdate, {.unit = unit});
//   ...                                       // Ends with the scope.
//
//   return Observe(observer, EventId::kSave, {.what = path}, [&] { ... });
//
// Open and Start open the files, before and after the ranks have met. Until
// Start the trace is kept in memory.
//
// Recording never fails and never waits for another rank: what cannot be
// written is dropped and counted, with one warning per file. The trace is given
// up then; the metrics and the dump are tried again. No lock is held while the
// host's log function runs. There is no thread: files are written by the calls
// that hosts make, at most every 50 ms (trace) and every 5 s (metrics), where a
// call fails, where the trace's buffer fills, and when the observer is
// destroyed; the dump by Start, after failures, and at the end. A child of fork
// records nothing.
//
// Threads: any.

#ifndef SHARD_CORE_OBSERVE_OBSERVER_H_
#define SHARD_CORE_OBSERVE_OBSERVER_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/monotonic_time.h"
#include "core/base/out_of_memory.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/observe/collective_ring.h"
#include "core/observe/counters.h"
#include "core/observe/event.h"
#include "core/observe/line_file.h"
#include "core/observe/logger.h"
#include "core/observe/settings.h"

namespace shard {

class RankFile;
class Trace;

class Observer {
 public:
  Observer(const Logger& host, int rank, int world_size);
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  // Takes the settings and opens the log. Errors name the path. Called once,
  // before anything is recorded.
  Status Open(const ObserverSettings& settings);

  // Opens the trace, the metrics and the dump, once the ranks have met: rank 0
  // first, which sets `*trace_number` to the number of its trace, then the
  // others with that number: see Trace::Start. Errors name the path. Called
  // once, while no other thread uses this.
  Status Start(int* trace_number);

  // Returns the time by which events are recorded.
  static int64_t Now() { return MonotonicTime(); }

  // Records an event that took from `begin` to `end`, in this thread or in the
  // work of a device's stream.
  void Record(EventId event, const EventArguments& arguments, int64_t begin,
              int64_t end, const Status& result,
              const DeviceTrack& track = {}) noexcept {
    counters_.Add(
        event, arguments.bytes > 0 ? static_cast<uint64_t>(arguments.bytes) : 0,
        end - begin, !result.ok());
    if (writes_) Write(event, arguments, begin, end, result, track);
  }

  // Adds to the counters of an event alone.
  void Count(EventId event, uint64_t bytes) {
    counters_.Add(event, bytes, 0, false);
  }

  // Returns true when messages of the event reach anyone. Callers ask before
  // they build a message that is expensive.
  bool Wants(EventId event) const {
    return host_.Wants(TypeOf(event).level) || WritesLine(TypeOf(event).level);
  }

  // Records an event with a message, which is dropped where memory runs out.
  template <typename... Pieces>
  void Log(EventId event, const Pieces&... pieces) {
    counters_.Add(event, 0, 0, false);
    if (!Wants(event) && trace_ == nullptr) return;
    try {
      WriteMessage(event, StrCat(pieces...));
    } catch (...) {
      unlogged_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  const EventCounters& counters() const { return counters_; }

  // Returns the counters in the text format of Prometheus.
  std::string MetricsText() const;

  CollectiveRing& collectives() { return collectives_; }

  // Returns the last collectives as the JSON document that a dump is. `reason`:
  // "opened", "failed" or "closed" in files.
  std::string DumpText(std::string_view reason = "requested") const;

  // Writes the dump, where there is one, after a collective has failed or the
  // group has ended: the first time at once, later once a second at most. It
  // keeps the first error.
  void DumpFailure(const Status& error);

 private:
  bool WritesLine(LogLevel level) const {
    return lines_.has_value() && level != LogLevel::kOff && level <= level_;
  }
  void Write(EventId event, const EventArguments& arguments, int64_t begin,
             int64_t end, const Status& result,
             const DeviceTrack& track) noexcept;
  void WriteMessage(EventId event, const std::string& message);
  // Writes a line of the log, or counts it as dropped. REQUIRES: lines_.
  void WriteLine(std::string_view line);
  // Writes a line of the log, and passes its end to the host.
  void LogSpan(EventId event, const EventArguments& arguments, int64_t begin,
               int64_t end, const Status& result);
  // Each writes its file when that is due, or `at_once`. `now`: of Now().
  void FlushTrace(int64_t now, bool at_once);
  void WriteMetrics(int64_t now, bool at_once);
  // Replaces the dump.
  void WriteDump(std::string_view reason);
  // Warns of the first error of a file.
  void WarnOnce(const Status& status, std::atomic<bool>* warned);

  const Logger host_;
  const int rank_;
  const int world_size_;
  const pid_t owner_;
  EventCounters counters_;
  CollectiveRing collectives_;

  // Set by Open, and constant from then on.
  LogLevel level_ = LogLevel::kOff;
  std::optional<LineFile> lines_;
  std::unique_ptr<Trace> trace_;
  std::string metrics_path_;  // As in the settings; "" for none.
  std::string dump_path_;     // Likewise.
  bool writes_ = false;       // Whether Record has more to do than count.
  // Set by Start.
  std::unique_ptr<RankFile> metrics_;  // Written under metrics_mutex_.
  std::unique_ptr<RankFile> dump_;     // Written under dump_mutex_.

  std::atomic<uint64_t> unlogged_ = 0;
  std::atomic<bool> line_dropped_ = false;  // Whether the last line was.
  // Times of Now().
  std::atomic<int64_t> next_flush_ = 0;
  std::atomic<int64_t> next_metrics_ = 0;
  std::atomic<int64_t> next_dump_ = 0;
  std::mutex metrics_mutex_;
  std::mutex dump_mutex_;
  mutable std::mutex failure_mutex_;
  Status failure_;  // The first of DumpFailure. GUARDED_BY(failure_mutex_)
  std::atomic<bool> warned_of_trace_ = false;
  std::atomic<bool> warned_of_metrics_ = false;
  std::atomic<bool> warned_of_dump_ = false;
};

// Records the time of a scope as an event.
class Span {
 public:
  // `observer` outlives this. `seconds`, if any, is increased by the time.
  Span(Observer* observer, EventId event, const EventArguments& arguments = {},
       double* seconds = nullptr)
      : observer_(observer),
        event_(event),
        arguments_(arguments),
        seconds_(seconds) {}
  ~Span() {
    const int64_t end = Observer::Now();
    if (seconds_ != nullptr) {
      *seconds_ += static_cast<double>(end - begin_) * 1e-9;
    }
    observer_->Record(event_, arguments_, begin_, end, result_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  void set_step(int64_t step) { arguments_.step = step; }
  void set_bytes(uint64_t bytes) {
    arguments_.bytes = static_cast<int64_t>(bytes);
  }
  void set_result(const Status& result) { result_ = result; }

 private:
  Observer* const observer_;
  const EventId event_;
  EventArguments arguments_;
  double* const seconds_;
  Status result_;
  const int64_t begin_ = Observer::Now();
};

namespace internal {

inline const Status& StatusOf(const Status& status) { return status; }
template <typename T>
const Status& StatusOf(const StatusOr<T>& result) {
  return result.status();
}

}  // namespace internal

// Calls `call`, which returns a Status or a StatusOr, as an event.
template <typename Call>
auto Observe(Observer* observer, EventId event, const EventArguments& arguments,
             Call&& call) {
  Span span(observer, event, arguments);
  try {
    auto result = std::forward<Call>(call)();
    span.set_result(internal::StatusOf(result));
    return result;
  } catch (...) {
    span.set_result(OutOfMemoryStatus());
    throw;
  }
}

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_OBSERVER_H_
