// SPDX-License-Identifier: Apache-2.0

#include "core/observe/observer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/fd.h"
#include "core/observe/trace_file.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/observe/trace_reader.h"

namespace {

bool file_locks_work = true;
// How often a file was found locked.
std::atomic<int> locks_denied = 0;

}  // namespace

// Takes the place of libc's.
extern "C" int flock(int fd, int operation) noexcept {
  if (file_locks_work) {
    const auto result = static_cast<int>(::syscall(SYS_flock, fd, operation));
    if (result < 0 && errno == EWOULDBLOCK) ++locks_denied;
    return result;
  }
  errno = ENOSYS;
  return -1;
}

namespace shard::observer_test {
namespace {

using testing::CountByRank;
using testing::ExpectNested;
using testing::NamesIn;
using testing::ReadText;
using testing::ReadTrace;
using testing::TempFolder;

std::shared_ptr<Observer> Open(const ObserverSettings& settings, int rank = 0,
                               const Logger& host = Logger()) {
  auto observer = Observer::Open(settings, host, rank, 2);
  EXPECT_OK(observer);
  (*observer)->Start();
  return *std::move(observer);
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  for (const std::string_view line : Split(text, '\n')) {
    if (!line.empty()) lines.emplace_back(line);
  }
  return lines;
}

// Returns the number of events that the observer has dropped.
int UnrecordedOf(const Observer& observer) {
  const std::string text = observer.MetricsText();
  const size_t at = text.find("shard_unrecorded_total{");
  return at == std::string::npos
             ? -1
             : std::atoi(text.c_str() + text.find(' ', at) + 1);
}

TEST(ObserverTest, CountsCallsErrorsBytesAndSeconds) {
  const auto observer = Open({});
  observer->Record(EventId::kRead, {.bytes = 10}, 0, 2'000'000'000, Status());
  observer->Record(EventId::kRead, {.bytes = 5}, 0, 500'000'000,
                   Internal("broken"));
  const EventCounter counter = *observer->counters().Find("read");
  EXPECT_EQ(counter.calls, 2u);
  EXPECT_EQ(counter.errors, 1u);
  EXPECT_EQ(counter.bytes, 15u);
  EXPECT_EQ(counter.seconds, 2.5);
  observer->Count(EventId::kOverlapped, 7);
  EXPECT_EQ(observer->counters().Find("overlapped")->bytes, 7u);
  ExpectError(observer->counters().Find("reed"), StatusCode::kNotFound,
              {"'reed'", "reduce_scatter", "read"});
}

TEST(ObserverTest, NamesOfEventsAreTheirOwn) {
  std::set<std::string_view> names;
  for (const EventType& type : kEventTypes) {
    EXPECT_TRUE(names.insert(type.name).second) << type.name;
    EXPECT_EQ(type.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"),
              std::string_view::npos);
  }
}

TEST(ObserverTest, ASpanIsALineWithKeysAndValues) {
  const TempFolder folder;
  const std::string path = folder / "run.log";
  const auto observer =
      Open({.log_level = LogLevel::kInfo, .log_file = path}, 1);
  const time_t begin = ::time(nullptr);
  observer->Record(EventId::kSave, {.what = "my \"ckpt\"", .step = 7},
                   1'000'000'000, 2'500'000'001, Status());
  observer->Record(EventId::kLoad, {.what = "x"}, 0, 1,
                   Status(StatusCode::kNotFound, "no 'x'"));
  observer->Record(EventId::kStep, {}, 0, 1, Status());  // At debug.
  observer->Record(EventId::kBarrier, {}, 0, 1, Status());
  observer->Log(EventId::kPlanWarning, "one\ntwo");
  const std::vector<std::string> lines = LinesOf(ReadText(path));
  ASSERT_EQ(lines.size(), 4u);
  const std::string time =
      R"(time=20\d\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d\.\d{6}Z )";
  const std::string rest[] = {
      R"(level=info rank=1 event=save step=7 seconds=1\.500000001 )"
      R"(what="my \\"ckpt\\"" result=OK)",
      R"(level=info rank=1 event=load seconds=0\.000000001 what="x" )"
      R"(result=NOT_FOUND message="no 'x'")",
      R"(level=warning rank=1 event=plan_warning message="one")",
      R"(level=warning rank=1 event=plan_warning message="two")"};
  for (size_t l = 0; l < lines.size(); ++l) {
    EXPECT_TRUE(std::regex_match(lines[l], std::regex(time + rest[l])))
        << lines[l];
    tm utc = {};
    ::strptime(lines[l].c_str(), "time=%Y-%m-%dT%H:%M:%S", &utc);
    EXPECT_GE(::timegm(&utc), begin);
    EXPECT_LE(::timegm(&utc), ::time(nullptr));
  }
  EXPECT_EQ(observer->counters().Find("plan_warning")->calls, 1u);
}

TEST(ObserverTest, ASpanOfTheTraceHasItsArgumentsAndItsThread) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  auto observer = Open({.trace = path}, 1);
  std::thread([&] {
    ::pthread_setname_np(::pthread_self(), "other");
    observer->Record(EventId::kGather,
                     {.what = "phase", .unit = 2, .step = 3, .bytes = 4},
                     1'000'000, 3'500'000, Internal("broken"));
  }).join();
  observer->Log(EventId::kSkipped, "a message");
  observer.reset();
  nlohmann::json span, moment, ranks_name;
  std::map<std::string, int64_t> threads;
  for (const nlohmann::json& event : ReadTrace(path)) {
    if (event["name"] == "gather") span = event;
    if (event["name"] == "skipped") moment = event;
    if (event["name"] == "process_name") ranks_name = event;
    if (event["name"] == "thread_name") {
      threads[event["args"]["name"]] = event["tid"];
    }
  }
  EXPECT_EQ(span["args"], nlohmann::json::parse(R"({"what": "phase", "unit": 2,
      "step": 3, "bytes": 4, "error": "INTERNAL"})"));
  EXPECT_EQ(span["cat"], "unit");
  // Microseconds.
  EXPECT_EQ(span["ts"], 1000.0);
  EXPECT_EQ(span["dur"], 2500.0);
  EXPECT_EQ(moment["ph"], "i");
  EXPECT_EQ(moment["args"]["what"], "a message");
  EXPECT_EQ(moment["tid"], ::gettid());
  ASSERT_EQ(threads.size(), 2u);
  EXPECT_EQ(span["tid"], threads["other"]);
  EXPECT_NE(span["tid"], moment["tid"]);
  EXPECT_EQ(ranks_name["pid"], 1);
  EXPECT_EQ(ranks_name["args"]["name"],
            StrCat("rank 1 of 2, process ", ::getpid()));
}

TEST(ObserverTest, TheHostGetsMessagesOfItsLevel) {
  std::vector<std::string> messages;
  const Logger host(
      [](int32_t level, const char* message, void* to) {
        static_cast<std::vector<std::string>*>(to)->push_back(
            std::to_string(level) + " " + message);
      },
      LogLevel::kInfo, &messages);
  const auto observer = Open({}, 0, host);
  observer->Log(EventId::kPlanWarning, "too ", 4, "\nlines");
  observer->Log(EventId::kPlanText, "debug");
  observer->Record(EventId::kSave, {.step = 3}, 0, 1, Status());
  observer->Record(EventId::kStep, {.step = 4}, 0, 1, Status());
  EXPECT_EQ(messages,
            (std::vector<std::string>{
                "2 too 4\nlines",
                "3 rank=0 event=save step=3 seconds=0.000000001 result=OK"}));
}

TEST(ObserverTest, AHostThatThrowsIsNotTheEnd) {
  const Logger host([](int32_t, const char*, void*) { throw 1; },
                    LogLevel::kDebug, nullptr);
  const auto observer = Open({}, 0, host);
  observer->Log(EventId::kPlan, "x");
  observer->Record(EventId::kSave, {}, 0, 1, Status());
  EXPECT_EQ(UnrecordedOf(*observer), 2);
}

TEST(ObserverTest, SpansOfManyThreadsAreWrittenOrCounted) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  constexpr int kThreads = 4;
  constexpr int kSpans = 2000;
  int dropped[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    const auto observer = Open({.trace = path}, rank);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kSpans; ++i) {
          const Span outer(observer.get(), EventId::kAcquire, {.unit = i});
          const Span inner(observer.get(), EventId::kGather,
                           {.what = "\"\\\n\xff", .bytes = 1});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    dropped[rank] = UnrecordedOf(*observer);
  }
  const auto events = ReadTrace(path);
  const auto counts = CountByRank(events);
  for (int rank = 0; rank < 2; ++rank) {
    const int written =
        counts.at({rank, "acquire"}) + counts.at({rank, "gather"});
    EXPECT_EQ(written + dropped[rank], 2 * kThreads * kSpans);
    // More than one buffer holds.
    EXPECT_GT(written, 5000);
  }
  ExpectNested(events);
}

// A rank that waits for the others does not write, and does not grow.
TEST(ObserverTest, EventsBeyondTheBufferAreDroppedAndCounted) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  auto observer = *Observer::Open({.trace = path}, Logger(), 0, 2);
  for (int i = 0; i < 10000; ++i) {
    const Span span(observer.get(), EventId::kBarrier, {.what = "phase"});
  }
  EXPECT_EQ(ReadText(path), "");
  const int dropped = UnrecordedOf(*observer);
  EXPECT_GT(dropped, 1000);
  observer->Start();
  observer.reset();
  const auto counts = CountByRank(ReadTrace(path));
  EXPECT_EQ(counts.at({0, "barrier"}), 10000 - dropped);
}

TEST(ObserverTest, AFullDiskEndsTheTraceWithOneWarning) {
  const TempFolder folder;
  const std::string log = folder / "run.log";
  testing::InChild([&] {
    const auto observer = Open({.log_level = LogLevel::kWarning,
                                .log_file = log,
                                .trace = folder / "trace.json",
                                .metrics = folder / "m.prom"});
    testing::LowerLimit(RLIMIT_FSIZE, 1000);
    for (int i = 0; i < 20000; ++i) {
      const Span span(observer.get(), EventId::kBarrier, {.what = "phase"});
      if (i % 1000 == 0) {
        observer->Record(EventId::kStep, {}, 0, 1, Internal("flush"));
      }
    }
    int written = 0;
    for (const auto& [event, count] :
         CountByRank(ReadTrace(folder / "trace.json"))) {
      written += count;
    }
    // The two warnings are events too.
    EXPECT_EQ(written + UnrecordedOf(*observer), 20000 + 20 + 2);
  });
  ReadTrace(folder / "trace.json");
  const std::string text = ReadText(log);
  EXPECT_EQ(LinesOf(text).size(), 2u) << text;
  for (const char* what : {"trace", "metrics"}) {
    EXPECT_NE(
        text.find(StrCat("event=unobserved message=\"writing the ", what)),
        std::string::npos)
        << text;
  }
}

// As on a network file system that is mounted without locks.
TEST(ObserverTest, AFileSystemWithoutLocksEndsTheTraceWithOneWarning) {
  const TempFolder folder;
  const std::string log = folder / "run.log";
  const std::string path = folder / "trace.json";
  file_locks_work = false;
  for (int rank = 0; rank < 2; ++rank) {
    const auto observer =
        Open({.log_level = LogLevel::kWarning, .log_file = log, .trace = path},
             rank);
    observer->Record(EventId::kStep, {}, 0, 1, Internal("flush"));
    observer->Record(EventId::kStep, {}, 0, 1, Internal("flush"));
    // The warning is an event too.
    EXPECT_EQ(UnrecordedOf(*observer), 3);
  }
  file_locks_work = true;
  EXPECT_EQ(ReadText(path), "");
  const std::vector<std::string> lines = LinesOf(ReadText(log));
  ASSERT_EQ(lines.size(), 2u);
  for (const std::string& line : lines) {
    EXPECT_NE(line.find("event=unobserved message=\"locking the trace '"),
              std::string::npos)
        << line;
  }
}

// A rank that is stopped within a write has the file for as long.
TEST(ObserverTest, MetricsAreNotWrittenMoreOftenWhereTheTraceMustWait) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  const auto observer = Open({.trace = path, .metrics = folder / "m.prom"});
  const auto stopped = TraceFile::Open(path, false);
  ASSERT_OK(stopped);
  ASSERT_OK(stopped->TryLock());
  observer->Record(EventId::kStep, {}, 0, 1, Status());
  const std::string before = ReadText(folder / "m.rank0.prom");
  for (int i = 0; i < 10000; ++i) {
    const Span span(observer.get(), EventId::kBarrier, {.what = "phase"});
  }
  EXPECT_GT(UnrecordedOf(*observer), 1000);
  EXPECT_EQ(ReadText(folder / "m.rank0.prom"), before);
  stopped->Unlock();
}

TEST(ObserverTest, TheLastEventsWaitForTheRankThatHasTheTrace) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  auto observer = Open({.trace = path});
  const auto other = TraceFile::Open(path, false);
  ASSERT_OK(other);
  ASSERT_OK(other->TryLock());
  observer->Record(EventId::kStep, {}, 0, 1, Status());
  const int denied = locks_denied;
  std::atomic<bool> closed = false;
  std::thread writer([&] {
    while (locks_denied < denied + 3 && !closed) std::this_thread::yield();
    other->Unlock();
  });
  observer.reset();
  closed = true;
  writer.join();
  EXPECT_EQ(CountByRank(ReadTrace(path)).at({0, "step"}), 1);
}

TEST(ObserverTest, ATraceThatAnotherRankHadIsWrittenByTheNextCall) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  const auto observer = Open({.trace = path});
  const auto other = TraceFile::Open(path, false);
  ASSERT_OK(other);
  ASSERT_OK(other->TryLock());
  observer->Record(EventId::kStep, {}, 0, 1, Status());
  EXPECT_EQ(ReadText(path), "");
  other->Unlock();
  observer->Record(EventId::kStep, {}, 2, 3, Status());
  EXPECT_EQ(CountByRank(ReadTrace(path)).at({0, "step"}), 2);
  // An error does not wait until the file is due.
  observer->Record(EventId::kStep, {}, 4, 5, Internal("at once"));
  EXPECT_EQ(CountByRank(ReadTrace(path)).at({0, "step"}), 3);
}

TEST(ObserverTest, LinesThatAFullDiskLacksAreCounted) {
  const auto observer =
      Open({.log_level = LogLevel::kWarning, .log_file = "/dev/full"});
  observer->Log(EventId::kPlanWarning, "one");
  observer->Log(EventId::kPlanWarning, "two");
  EXPECT_EQ(UnrecordedOf(*observer), 2);
}

TEST(ObserverTest, AStoppedReaderOfTheLogHoldsNoRank) {
  const TempFolder folder;
  const std::string path = folder / "fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ExpectError(Observer::Open({.log_level = LogLevel::kInfo, .log_file = path},
                             Logger(), 0, 1),
              StatusCode::kFailedPrecondition, {path, "nobody reads"});
  const Fd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  const Fd writer(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(writer.valid());
  testing::InChild([&] {
    ::dup2(writer.get(), STDERR_FILENO);
    const auto observer = Open({.log_level = LogLevel::kDebug});
    const std::string text(1000, 'x');
    int logged = 0;
    while (UnrecordedOf(*observer) == 0 && logged < 1000) {
      observer->Log(EventId::kPlan, text);
      ++logged;
    }
    EXPECT_GT(logged, 10);
    EXPECT_LT(logged, 1000);
    // Lines do not wait again, until the reader has made room.
    const int64_t begin = Observer::Now();
    for (int i = 0; i < 1000; ++i) observer->Log(EventId::kPlan, text);
    EXPECT_LT(Observer::Now() - begin, 10'000'000'000);
    EXPECT_EQ(UnrecordedOf(*observer), 1001);
    std::string read(1 << 20, '\0');
    EXPECT_GT(::read(reader.get(), read.data(), read.size()), 10000);
    observer->Log(EventId::kPlan, text);
    EXPECT_EQ(UnrecordedOf(*observer), 1001);
  });
}

// A host that throws out of its function would leave a lock locked, and one
// that waits in it for another thread would wait for ever.
TEST(ObserverTest, TheHostIsWarnedWithoutALock) {
  const TempFolder folder;
  struct Host {
    std::shared_ptr<Observer> observer;
    int warnings = 0;
  } host;
  const Logger logger(
      [](int32_t, const char*, void* to) {
        auto* const self = static_cast<Host*>(to);
        ++self->warnings;
        std::thread([&] {
          self->observer->Record(EventId::kStep, {}, 0, 1, Internal("at once"));
        }).join();
      },
      LogLevel::kWarning, &host);
  std::string metrics = folder / "m.prom";
  host.observer = Open({.metrics = metrics}, 0, logger);
  // A folder where the file is written first.
  ASSERT_EQ(::mkdir((folder / "m.rank0.prom.tmp").c_str(), 0700), 0);
  host.observer->Record(EventId::kStep, {}, 0, 1, Status());
  EXPECT_EQ(host.warnings, 1);
}

TEST(ObserverTest, AChildOfForkRecordsNothing) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  auto observer = Open({.log_level = LogLevel::kDebug,
                        .log_file = folder / "run.log",
                        .trace = path});
  { const Span span(observer.get(), EventId::kBarrier); }
  testing::InChild([&] {
    { const Span span(observer.get(), EventId::kStep); }
    observer->Log(EventId::kPlan, "of the child");
    observer.reset();
  });
  EXPECT_EQ(ReadText(folder / "run.log"), "");
  EXPECT_EQ(ReadText(path), "");
  observer.reset();
  EXPECT_EQ(CountByRank(ReadTrace(path)).size(), 1u);
}

TEST(ObserverTest, MetricsAreWrittenAtOnceForErrorsAndElseEveryFewSeconds) {
  const TempFolder folder;
  const std::string path = folder / "m.rank0.prom";
  auto observer = Open({.metrics = folder / "m.prom"});
  const auto written = [&] {
    constexpr std::string_view kSample = "event=\"step\"} ";
    const std::string text = ReadText(path);
    const size_t at = text.find(kSample);
    return at == std::string::npos
               ? -1
               : std::atoi(text.c_str() + at + kSample.size());
  };
  EXPECT_EQ(written(), 0);
  observer->Record(EventId::kStep, {}, 0, 1, Status());
  EXPECT_EQ(written(), 1);
  observer->Record(EventId::kStep, {}, 0, 1, Status());
  EXPECT_EQ(written(), 1);
  observer->Record(EventId::kStep, {}, 0, 1, Internal("broken"));
  EXPECT_EQ(written(), 3);
  observer->Record(EventId::kStep, {}, 0, 1, Status());
  EXPECT_EQ(written(), 3);
  observer.reset();
  EXPECT_EQ(written(), 4);
}

TEST(ObserverTest, MetricsStayWhereTheyWereOpened) {
  const TempFolder folder;
  const TempFolder other;
  testing::InChild([&] {
    ASSERT_EQ(::chdir(folder.path().c_str()), 0);
    const auto observer = Open({.metrics = "m.prom"});
    ASSERT_EQ(::chdir(other.path().c_str()), 0);
    observer->Record(EventId::kStep, {}, 0, 1, Internal("at once"));
  });
  EXPECT_NE(ReadText(folder / "m.rank0.prom").find("event=\"step\"} 1\n"),
            std::string::npos);
  EXPECT_TRUE(NamesIn(other.path()).empty());
}

TEST(ObserverTest, MetricsAreTextOfPrometheus) {
  const TempFolder folder;
  {
    const auto observer = Open({.metrics = folder / "m.prom"}, 1);
    observer->Record(EventId::kRead, {.bytes = 10}, 0, 2'500'000'000, Status());
  }
  const std::string text = ReadText(folder / "m.rank1.prom");
  EXPECT_EQ(NamesIn(folder.path()).size(), 1u);
  const std::regex comment("# (HELP|TYPE) shard_[a-z_]+ .+");
  const std::regex sample(
      R"(shard_[a-z_]+\{rank="1"(,category="[a-z]+",event="[a-z_]+")?\} )"
      R"([0-9.e+-]+)");
  std::set<std::string> families;
  std::string family;
  for (const std::string& line : LinesOf(text)) {
    EXPECT_TRUE(std::regex_match(line, comment) ||
                std::regex_match(line, sample))
        << line;
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family;
    } else if (line[0] != '#') {
      EXPECT_EQ(line.substr(0, line.find('{')), family);
    }
  }
  EXPECT_EQ(families.size(), 6u);
  EXPECT_NE(text.find("shard_event_seconds_total{rank=\"1\",category=\"io\","
                      "event=\"read\"} 2.5\n"),
            std::string::npos);
}

}  // namespace
}  // namespace shard::observer_test
