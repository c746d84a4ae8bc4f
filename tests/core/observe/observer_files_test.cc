// SPDX-License-Identifier: Apache-2.0
//
// The files of an observer: when they are written, and what happens where they
// cannot be, or must wait.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/fd.h"
#include "core/base/strings.h"
#include "core/observe/observer.h"
#include "core/observe/trace_file.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/observe/observing.h"
#include "tests/core/observe/trace_reader.h"

namespace {

bool file_locks_work = true;
// How often a file was found locked.
std::atomic<int> locks_denied = 0;

}  // namespace

// Takes the place of libc's.
extern "C" int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (command == F_OFD_SETLK && !file_locks_work) {
    errno = ENOLCK;
    return -1;
  }
  const auto result =
      static_cast<int>(::syscall(SYS_fcntl, fd, command, argument));
  if (command == F_OFD_SETLK && result < 0 && errno == EAGAIN) ++locks_denied;
  return result;
}

namespace shard::observer_files_test {
namespace {

using testing::CountByRank;
using testing::LinesOf;
using testing::NamesIn;
using testing::OpenObserver;
using testing::ReadText;
using testing::ReadTrace;
using testing::TempFolder;
using testing::UnrecordedOf;

// A rank that waits for the others does not write, and does not grow.
TEST(ObserverFilesTest, EventsBeyondTheBufferAreDroppedAndCounted) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  auto observer = std::make_shared<Observer>(Logger(), 0, 2);
  ASSERT_OK(observer->Open({.trace = path}));
  for (int i = 0; i < 10000; ++i) {
    const Span span(observer.get(), EventId::kBarrier, {.what = "phase"});
  }
  EXPECT_EQ(ReadText(path), "");
  const int dropped = UnrecordedOf(*observer);
  EXPECT_GT(dropped, 1000);
  int number = 0;
  ASSERT_OK(observer->Start(&number));
  EXPECT_EQ(number, 1);
  observer.reset();
  const auto counts = CountByRank(ReadTrace(path));
  EXPECT_EQ(counts.at({0, "barrier"}), 10000 - dropped);
}

TEST(ObserverFilesTest, AFullDiskEndsTheTraceWithOneWarning) {
  const TempFolder folder;
  const std::string log = folder / "run.log";
  testing::InChild([&] {
    const auto observer = OpenObserver({.log_level = LogLevel::kWarning,
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
TEST(ObserverFilesTest, AFileSystemWithoutLocksEndsTheTraceWithOneWarning) {
  const TempFolder folder;
  const std::string log = folder / "run.log";
  const std::string path = folder / "trace.json";
  file_locks_work = false;
  for (int rank = 0; rank < 2; ++rank) {
    const auto observer = OpenObserver(
        {.log_level = LogLevel::kWarning, .log_file = log, .trace = path},
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
TEST(ObserverFilesTest, MetricsAreNotWrittenMoreOftenWhereTheTraceMustWait) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  const auto observer =
      OpenObserver({.trace = path, .metrics = folder / "m.prom"});
  const auto stopped = TraceFile::Join(path, 1);
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

TEST(ObserverFilesTest, TheLastEventsWaitForTheRankThatHasTheTrace) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  auto observer = OpenObserver({.trace = path});
  const auto other = TraceFile::Join(path, 1);
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

TEST(ObserverFilesTest, ATraceThatAnotherRankHadIsWrittenByTheNextCall) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  const auto observer = OpenObserver({.trace = path});
  const auto other = TraceFile::Join(path, 1);
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

TEST(ObserverFilesTest, LinesThatAFullDiskLacksAreCounted) {
  const auto observer =
      OpenObserver({.log_level = LogLevel::kWarning, .log_file = "/dev/full"});
  observer->Log(EventId::kPlanWarning, "one");
  observer->Log(EventId::kPlanWarning, "two");
  EXPECT_EQ(UnrecordedOf(*observer), 2);
}

TEST(ObserverFilesTest, AStoppedReaderOfTheLogHoldsNoRank) {
  const TempFolder folder;
  const std::string path = folder / "fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  Observer unread(Logger(), 0, 1);
  ExpectError(unread.Open({.log_level = LogLevel::kInfo, .log_file = path}),
              StatusCode::kFailedPrecondition, {path, "nobody reads"});
  const Fd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  const Fd writer(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(writer.valid());
  testing::InChild([&] {
    ::dup2(writer.get(), STDERR_FILENO);
    const auto observer = OpenObserver({.log_level = LogLevel::kDebug});
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

TEST(ObserverFilesTest,
     MetricsAreWrittenAtOnceForErrorsAndElseEveryFewSeconds) {
  const TempFolder folder;
  const std::string path = folder / "m.rank0.prom";
  auto observer = OpenObserver({.metrics = folder / "m.prom"});
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

TEST(ObserverFilesTest, MetricsStayWhereTheyWereOpened) {
  const TempFolder folder;
  const TempFolder other;
  testing::InChild([&] {
    ASSERT_EQ(::chdir(folder.path().c_str()), 0);
    const auto observer = OpenObserver({.metrics = "m.prom"});
    ASSERT_EQ(::chdir(other.path().c_str()), 0);
    observer->Record(EventId::kStep, {}, 0, 1, Internal("at once"));
  });
  EXPECT_NE(ReadText(folder / "m.rank0.prom").find("event=\"step\"} 1\n"),
            std::string::npos);
  EXPECT_TRUE(NamesIn(other.path()).empty());
}

// Two communicators, or four processes, of one rank. Their samples differ too,
// because Prometheus refuses two of the same labels.
TEST(ObserverFilesTest, ObserversOfOneRankHaveMetricsOfTheirOwn) {
  const TempFolder folder;
  std::vector<std::shared_ptr<Observer>> observers;
  for (int i = 1; i <= 3; ++i) {
    observers.push_back(OpenObserver({.metrics = folder / "m.prom"}));
    observers.back()->Count(EventId::kOverlapped, static_cast<uint64_t>(i));
  }
  observers.clear();
  const auto expect = [&](const std::string& name, const std::string& labels,
                          int bytes) {
    const std::string text = ReadText(folder / name);
    EXPECT_NE(text.find(StrCat("shard_event_bytes_total{", labels,
                               ",category=\"unit\",event=\"overlapped\"} ",
                               bytes, "\n")),
              std::string::npos)
        << name << ": " << text;
  };
  expect("m.rank0.prom", "rank=\"0\"", 1);
  expect("m.rank0.2.prom", "rank=\"0\",file=\"2\"", 2);
  expect("m.rank0.3.prom", "rank=\"0\",file=\"3\"", 3);
}

TEST(ObserverFilesTest, MetricsAreTextOfPrometheus) {
  const TempFolder folder;
  {
    const auto observer = OpenObserver({.metrics = folder / "m.prom"}, 1);
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
}  // namespace shard::observer_files_test
