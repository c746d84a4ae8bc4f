// SPDX-License-Identifier: Apache-2.0

#include "core/observe/observer.h"

#include <unistd.h>

#include <chrono>
#include <mutex>
#include <utility>

#include "core/base/json_writer.h"
#include "core/base/process_id.h"
#include "core/observe/rank_file.h"
#include "core/observe/text_line.h"
#include "core/observe/trace.h"

namespace shard {

namespace {

constexpr int64_t kFlushInterval = 50'000'000;       // Nanoseconds.
constexpr int64_t kMetricsInterval = 5'000'000'000;  // Nanoseconds.
constexpr int64_t kDumpInterval = 1'000'000'000;     // Nanoseconds.

// Appends a number with at least `digits` digits.
TextLine& AppendPadded(TextLine& line, int64_t number, int digits) {
  int64_t power = 1;
  for (int d = 1; d < digits; ++d) power *= 10;
  for (; power > 0; power /= 10) line << number / power % 10;
  return line;
}

// Appends the time of the calendar, in UTC: "2026-11-23T14:05:09.123456Z".
void AppendTime(TextLine& line) {
  using std::chrono::floor;
  const auto now =
      floor<std::chrono::microseconds>(std::chrono::system_clock::now());
  const auto day = floor<std::chrono::days>(now);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(now - day);
  AppendPadded(line, int{date.year()}, 4) << "-";
  AppendPadded(line, static_cast<unsigned>(date.month()), 2) << "-";
  AppendPadded(line, static_cast<unsigned>(date.day()), 2) << "T";
  AppendPadded(line, time.hours().count(), 2) << ":";
  AppendPadded(line, time.minutes().count(), 2) << ":";
  AppendPadded(line, time.seconds().count(), 2) << ".";
  AppendPadded(line, time.subseconds().count(), 6) << "Z";
}

// Begins a line of the log.
void BeginLine(TextLine& line, EventId event, int rank) {
  const EventType& type = TypeOf(event);
  line << "time=";
  AppendTime(line);
  line << " level=" << kLogLevelNames[static_cast<size_t>(type.level)]
       << " rank=" << int64_t{rank} << " event=" << type.name;
}

// Appends what a line of the log says of a span, each with a space before it.
void AppendSpan(TextLine& line, const EventArguments& arguments, int64_t begin,
                int64_t end, const Status& result) {
  if (arguments.step >= 0) line << " step=" << arguments.step;
  if (arguments.unit >= 0) line << " unit=" << arguments.unit;
  if (arguments.bytes >= 0) line << " bytes=" << arguments.bytes;
  (line << " seconds=").AppendFixed(end - begin, 9);
  if (!arguments.what.empty()) {
    (line << " what=").AppendQuoted(arguments.what);
  }
  line << " result=" << StatusCodeName(result.code());
  if (!result.ok()) (line << " message=").AppendQuoted(result.message());
}

// Returns true for the first thread that comes when a file is due, or
// `at_once`, and sets the time of the next write.
bool IsDue(std::atomic<int64_t>* next, int64_t interval, int64_t now,
           bool at_once) {
  int64_t when = next->load(std::memory_order_relaxed);
  return (at_once || now >= when) &&
         next->compare_exchange_strong(when, now + interval);
}

}  // namespace

Observer::Observer(const Logger& host, int rank, int world_size)
    : host_(host),
      rank_(rank),
      world_size_(world_size),
      owner_(ProcessId()),
      writes_(host.Wants(LogLevel::kInfo)) {}

Observer::~Observer() {
  if (ProcessId() != owner_) return;
  if (trace_ != nullptr) {
    WarnOnce(trace_->Flush(true).status(), &warned_of_trace_);
  }
  WriteMetrics(Now(), true);
  WriteDump("closed");
}

Status Observer::Open(const ObserverSettings& settings) {
  if (settings.log_level != LogLevel::kOff) {
    SHARD_ASSIGN_OR_RETURN(lines_, LineFile::Open(settings.log_file));
    level_ = settings.log_level;
  }
  if (!settings.trace.empty()) {
    trace_ = std::make_unique<Trace>(settings.trace, rank_, world_size_);
  }
  metrics_path_ = settings.metrics;
  dump_path_ = settings.dump;
  writes_ = writes_ || lines_.has_value() || trace_ != nullptr ||
            !metrics_path_.empty();
  return Status();
}

Status Observer::Start(int* trace_number) {
  if (trace_ != nullptr) SHARD_RETURN_IF_ERROR(trace_->Start(trace_number));
  if (!metrics_path_.empty()) {
    SHARD_ASSIGN_OR_RETURN(metrics_, RankFile::Open("the metrics", "shard.prom",
                                                    metrics_path_, rank_));
    SHARD_RETURN_IF_ERROR(metrics_->Replace(MetricsText()));
  }
  if (dump_path_.empty()) return Status();
  SHARD_ASSIGN_OR_RETURN(
      dump_, RankFile::Open("the dump", "dump.json", dump_path_, rank_));
  // A dump of an earlier run must not be taken for one of this run.
  return dump_->Replace(DumpText("opened"));
}

void Observer::Write(EventId event, const EventArguments& arguments,
                     int64_t begin, int64_t end, const Status& result,
                     const DeviceTrack& track) noexcept {
  if (ProcessId() != owner_) return;
  if (trace_ != nullptr) {
    trace_->Add(event, arguments, begin, end,
                result.ok() ? "" : StatusCodeName(result.code()), track);
  }
  const LogLevel level = TypeOf(event).level;
  if (level == LogLevel::kOff) {
    if (trace_ != nullptr && trace_->is_filling()) FlushTrace(end, true);
    return;
  }
  if (Wants(event)) LogSpan(event, arguments, begin, end, result);
  FlushTrace(end, !result.ok());
  WriteMetrics(end, !result.ok());
}

void Observer::LogSpan(EventId event, const EventArguments& arguments,
                       int64_t begin, int64_t end, const Status& result) {
  const EventType& type = TypeOf(event);
  if (WritesLine(type.level)) {
    TextLine line;
    BeginLine(line, event, rank_);
    AppendSpan(line, arguments, begin, end, result);
    line << "\n";
    WriteLine(line.view());
  }
  if (host_.Wants(type.level)) {
    TextLine line;
    line << "rank=" << int64_t{rank_} << " event=" << type.name;
    AppendSpan(line, arguments, begin, end, result);
    line << std::string_view("\0", 1);
    try {
      host_.Log(type.level, line.view().data());
    } catch (...) {  // A host's function must not throw; the event is over.
      unlogged_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

void Observer::WriteLine(std::string_view line) {
  // A reader that has stopped is waited for once, until there is room again.
  const bool waits = !line_dropped_.load(std::memory_order_relaxed);
  const bool written = lines_->Write(line, waits);
  line_dropped_.store(!written, std::memory_order_relaxed);
  if (!written) unlogged_.fetch_add(1, std::memory_order_relaxed);
}

void Observer::WriteMessage(EventId event, const std::string& message) {
  if (ProcessId() != owner_) return;
  const LogLevel level = TypeOf(event).level;
  if (trace_ != nullptr) {
    const int64_t now = Now();
    trace_->Add(event, {.what = message}, now, now, "", {});
  }
  if (WritesLine(level)) {
    // A text of several lines is several lines of the log too.
    for (const std::string_view part : Split(message, '\n')) {
      TextLine line;
      BeginLine(line, event, rank_);
      (line << " message=").AppendQuoted(part) << "\n";
      WriteLine(line.view());
    }
  }
  host_.Log(level, message.c_str());
}

std::string Observer::MetricsText() const {
  std::string labels = StrCat("rank=\"", rank_, "\"");
  // Two files of one rank must not have the same samples.
  if (metrics_ != nullptr && metrics_->number() > 1) {
    StrAppend(&labels, ",file=\"", metrics_->number(), "\"");
  }
  std::string text;
  counters_.AppendTo(&text, labels);
  const auto append = [&](std::string_view metric, std::string_view type,
                          std::string_view help, uint64_t value) {
    StrAppend(&text, "# HELP ", metric, " ", help, "\n# TYPE ", metric, " ",
              type, "\n", metric, "{", labels, "} ", value, "\n");
  };
  append("shard_world_size", "gauge", "Ranks of the run.",
         static_cast<uint64_t>(world_size_));
  append("shard_unrecorded_total", "counter",
         "Events that the trace and the log lack.",
         unlogged_.load(std::memory_order_relaxed) +
             (trace_ == nullptr ? 0 : trace_->dropped()));
  return text;
}

void Observer::FlushTrace(int64_t now, bool at_once) {
  if (trace_ == nullptr || !IsDue(&next_flush_, kFlushInterval, now, at_once)) {
    return;
  }
  const StatusOr<bool> flushed = trace_->Flush(false);
  WarnOnce(flushed.status(), &warned_of_trace_);
  // Another rank had the file: the next call tries again.
  if (flushed.ok() && !*flushed) next_flush_ = now;
}

void Observer::WriteMetrics(int64_t now, bool at_once) {
  if (metrics_ == nullptr ||
      !IsDue(&next_metrics_, kMetricsInterval, now, at_once)) {
    return;
  }
  Status written;
  {
    const std::unique_lock<std::mutex> lock(metrics_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;  // Another thread is writing them.
    written =
        CatchOutOfMemory([&] { return metrics_->Replace(MetricsText()); });
  }
  WarnOnce(written, &warned_of_metrics_);
}

std::string Observer::DumpText(std::string_view reason) const {
  Status error;
  {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    error = failure_;
  }
  const int64_t unix_now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::system_clock::now().time_since_epoch())
          .count();
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  JsonWriter json;
  json.BeginObject();
  json.Field("format", "shard_dump");
  json.Field("version", 1);
  json.Field("rank", rank_);
  json.Field("world_size", world_size_);
  json.Field("host", static_cast<const char*>(host));
  json.Field("pid", owner_);
  json.Field("time", static_cast<double>(unix_now) * 1e-9);
  json.Field("reason", reason);
  json.Key("error");
  if (error.ok()) {
    json.Null();
  } else {
    json.BeginObject();
    json.Field("code", StatusCodeName(error.code()));
    json.Field("rank", error.rank());
    json.Field("message", error.message());
    json.EndObject();
  }
  collectives_.AppendTo(&json, unix_now - Now());
  json.EndObject();
  return StrCat(json.text(), "\n");
}

void Observer::DumpFailure(const Status& error) {
  if (ProcessId() != owner_) return;
  bool is_first = false;
  // Without memory for it, a later error is the first one of the dump.
  const Status kept = CatchOutOfMemory([&] {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    is_first = failure_.ok();
    if (is_first) failure_ = error;
    return Status();
  });
  if (IsDue(&next_dump_, kDumpInterval, Now(), is_first)) WriteDump("failed");
}

void Observer::WriteDump(std::string_view reason) {
  if (dump_ == nullptr) return;
  Status written;
  {
    const std::unique_lock<std::mutex> lock(dump_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;  // Another thread is writing it.
    written =
        CatchOutOfMemory([&] { return dump_->Replace(DumpText(reason)); });
  }
  WarnOnce(written, &warned_of_dump_);
}

void Observer::WarnOnce(const Status& status, std::atomic<bool>* warned) {
  if (status.ok() || warned->exchange(true)) return;
  Log(EventId::kUnobserved, status.message());
}

}  // namespace shard
