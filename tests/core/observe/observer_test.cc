// SPDX-License-Identifier: Apache-2.0
//
// The events of a rank, its threads and its host. The files that they are
// written to: observer_files_test.cc.

#include "core/observe/observer.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/observe/observing.h"
#include "tests/core/observe/trace_reader.h"

namespace shard::observer_test {
namespace {

using testing::CountByRank;
using testing::ExpectNested;
using testing::LinesOf;
using testing::OpenObserver;
using testing::ReadText;
using testing::ReadTrace;
using testing::TempFolder;
using testing::UnrecordedOf;

TEST(ObserverTest, CountsCallsErrorsBytesAndSeconds) {
  const auto observer = OpenObserver({});
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
      OpenObserver({.log_level = LogLevel::kInfo, .log_file = path}, 1);
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
  auto observer = OpenObserver({.trace = path}, 1);
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
  const auto observer = OpenObserver({}, 0, host);
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
  const auto observer = OpenObserver({}, 0, host);
  observer->Log(EventId::kPlan, "x");
  observer->Record(EventId::kSave, {}, 0, 1, Status());
  EXPECT_EQ(UnrecordedOf(*observer), 2);
}

TEST(ObserverTest, SpansOfManyThreadsAreWrittenOrCounted) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  constexpr int kThreads = 4;
  constexpr int kSpans = 500;
  int dropped[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    const auto observer = OpenObserver({.trace = path}, rank);
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
    EXPECT_GT(written, 2300);
  }
  ExpectNested(events);
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
  host.observer = OpenObserver({.metrics = metrics}, 0, logger);
  // A folder where the file is written first.
  ASSERT_EQ(::mkdir((folder / "m.rank0.prom.tmp").c_str(), 0700), 0);
  host.observer->Record(EventId::kStep, {}, 0, 1, Status());
  EXPECT_EQ(host.warnings, 1);
}

TEST(ObserverTest, AChildOfForkRecordsNothing) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  auto observer = OpenObserver({.log_level = LogLevel::kDebug,
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

}  // namespace
}  // namespace shard::observer_test
