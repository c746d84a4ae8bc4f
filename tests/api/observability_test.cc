// SPDX-License-Identifier: Apache-2.0
//
// Log, trace and counters as a host and its user see them.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/observe/trace_reader.h"
#include "tests/ranks/ranks.h"

namespace shard_api_testing {
namespace {

using shard::testing::CountByRank;
using shard::testing::ExpectAllPassed;
using shard::testing::ExpectNested;
using shard::testing::InChild;
using shard::testing::NamesIn;
using shard::testing::Rank;
using shard::testing::ReadText;
using shard::testing::ReadTrace;
using shard::testing::TempFolder;
using ::testing::HasSubstr;

using Options = std::function<void(shard_comm_options*)>;

Comm OpenAs(int rank, int world_size, const std::string& url,
            const Options& set = nullptr) {
  shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = 30;
  if (set) set(&options);
  shard_comm* comm = nullptr;
  EXPECT_OK(shard_comm_open(url.c_str(), &options, &comm));
  return Comm(comm);
}

void Train(shard_comm* comm, int steps, const std::string& checkpoints) {
  const Engine engine = TrainingEngine(comm);
  for (int s = 0; s < steps; ++s) {
    FillGrad(engine.get(), 1.0f);
    EXPECT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
  }
  if (checkpoints.empty()) return;
  EXPECT_OK(shard_checkpoint_save(engine.get(), checkpoints.c_str(), nullptr,
                                  nullptr));
  EXPECT_OK(shard_checkpoint_load(engine.get(), checkpoints.c_str(), nullptr,
                                  nullptr));
}

void ExpectSpansOf(int rank, int steps,
                   const std::vector<nlohmann::json>& events) {
  const auto counts = CountByRank(events);
  EXPECT_EQ(counts.at({rank, "step"}), steps);
  EXPECT_EQ(counts.at({rank, "enter"}), steps);
  EXPECT_GE(counts.at({rank, "update"}), steps);
  EXPECT_GE(counts.at({rank, "publish"}), steps);
  for (const char* name :
       {"open", "create_engine", "all_gather", "all_gather_blocks",
        "reduce_scatter", "save", "write", "load", "read"}) {
    EXPECT_EQ(counts.count({rank, name}), 1u) << name << " of rank " << rank;
  }
}

TEST(TraceTest, HasSpansOfAllThreads) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  const std::string url = UniqueUrl(2) + "&direct=0";
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const Comm comm = OpenAs(
          rank, 2, url, [&](auto* options) { options->trace = path.c_str(); });
      Train(comm.get(), 5, folder / "ckpt");
      EXPECT_OK(shard_comm_barrier(comm.get(), 0));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto events = ReadTrace(path);
  for (int rank = 0; rank < 2; ++rank) ExpectSpansOf(rank, 5, events);
  ExpectNested(events);
}

TEST(TraceTest, HasSpansOfAllProcesses) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  const std::string url = "shm:" + shard::testing::UniqueName() + "?direct=0";
  ExpectAllPassed(shard::testing::RunRanks(3, [&](const Rank& me) {
    ::setenv("SHARD_TRACE", path.c_str(), 1);
    const Comm comm = OpenAs(me.rank(), 3, url);
    Train(comm.get(), 5, folder / "ckpt");
    EXPECT_OK(shard_comm_shutdown(comm.get(), 0));
  }));
  const auto events = ReadTrace(path);
  for (int rank = 0; rank < 3; ++rank) ExpectSpansOf(rank, 5, events);
  ExpectNested(events);
}

// Neither a rank that is killed nor one that exits with its handles open takes
// what was written before.
TEST(TraceTest, OutlivesItsRanks) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  const std::string url = "shm:" + shard::testing::UniqueName();
  constexpr int kSteps = 20;
  const auto results = shard::testing::RunRanks(2, [&](const Rank& me) {
    shard_comm* const comm = OpenAs(me.rank(), 2, url, [&](auto* options) {
                               options->trace = path.c_str();
                             }).release();
    shard_engine* const engine = TrainingEngine(comm).release();
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_OK(shard_engine_step(engine, nullptr, nullptr));
    }
    if (me.rank() == 1) ::raise(SIGKILL);
    EXPECT_FAILS(shard_engine_step(engine, nullptr, nullptr), SHARD_RANK_LOST);
    ::_exit(0);
  });
  EXPECT_TRUE(results[0].passed()) << results[0].ToString();
  const auto events = ReadTrace(path);
  const auto counts = CountByRank(events);
  EXPECT_EQ(counts.at({0, "step"}), kSteps + 1);
  EXPECT_EQ(counts.count({1, "open"}), 1u);
  int lost = 0;
  for (const nlohmann::json& event : events) {
    if (event.at("args").value("error", "") == "RANK_LOST") ++lost;
  }
  EXPECT_GE(lost, 1);
}

// A job and the programs that it starts have one environment.
TEST(TraceTest, OfAChildIsAFileOfItsOwn) {
  const TempFolder folder;
  const std::string path = folder / "trace.json";
  const auto open = [&] {
    return OpenAs(
        0, 1, "local:", [&](auto* options) { options->trace = path.c_str(); });
  };
  Comm parent = open();
  EXPECT_OK(shard_comm_barrier(parent.get(), 0));
  InChild([&] { Train(open().get(), 2, ""); });
  EXPECT_OK(shard_comm_barrier(parent.get(), 0));
  parent.reset();
  const auto counts = CountByRank(ReadTrace(path));
  EXPECT_EQ(counts.at({0, "barrier"}), 2);
  EXPECT_EQ(counts.count({0, "step"}), 0u);
  const auto of_child = CountByRank(ReadTrace(folder / "trace.2.json"));
  EXPECT_EQ(of_child.at({0, "step"}), 2);
}

// Runs `body` in a process whose standard error output is a file, and returns
// the contents of that file.
std::string ErrorOutputOf(const std::function<void()>& body) {
  const TempFolder folder;
  const std::string path = folder / "stderr";
  InChild([&] {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ASSERT_GE(fd, 0);
    ::dup2(fd, STDERR_FILENO);
    body();
  });
  return ReadText(path);
}

TEST(LogTest, NothingIsWrittenUnlessAsked) {
  const TempFolder folder;
  EXPECT_EQ(ErrorOutputOf([&] {
              ASSERT_EQ(::chdir(folder.path().c_str()), 0);
              for (const char* name : {"SHARD_LOG", "SHARD_LOG_FILE",
                                       "SHARD_TRACE", "SHARD_METRICS"}) {
                ::unsetenv(name);
              }
              Train(OpenAs(0, 1, "local:").get(), 2, "");
            }),
            "");
  EXPECT_TRUE(NamesIn(folder.path()).empty());
}

TEST(LogTest, IsOneLinePerEvent) {
  const TempFolder folder;
  const std::string text = ErrorOutputOf([&] {
    ::setenv("SHARD_LOG", "debug", 1);
    Train(OpenAs(0, 1, "local:").get(), 2, folder / "ckpt");
  });
  const std::regex line(
      R"(time=\S+ level=(error|warning|info|debug) rank=0 event=([a-z_]+))"
      R"(( [a-z]+=([^ "]+|"([^"\\]|\\.)*"))+)");
  std::map<std::string, int> events;
  size_t begin = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    std::smatch match;
    const std::string one = text.substr(begin, end - begin);
    ASSERT_TRUE(std::regex_match(one, match, line)) << one;
    ++events[match[2]];
  }
  EXPECT_EQ(begin, text.size()) << "a line without an end";
  EXPECT_EQ(events["step"], 2);
  EXPECT_EQ(events["save"], 1);
  EXPECT_EQ(events["load"], 1);
  EXPECT_EQ(events["open"], 1);
  EXPECT_EQ(events.count("barrier"), 0u);
}

// Errors are returned, and the host logs them or not. The plan has one warning.
TEST(LogTest, AHostThatGivesNoLevelGetsWarningsAlone) {
  std::vector<int32_t> levels;
  const Comm comm = OpenAs(0, 1, "local:", [&](auto* options) {
    options->log = [](int32_t level, const char*, void* to) {
      static_cast<std::vector<int32_t>*>(to)->push_back(level);
    };
    options->log_user_data = &levels;
  });
  const Engine engine = TrainingEngine(comm.get());
  EXPECT_OK(shard_comm_abort(comm.get(), "the host has failed"));
  EXPECT_FAILS(shard_engine_step(engine.get(), nullptr, nullptr),
               SHARD_POISONED, "the host has failed");
  EXPECT_EQ(levels, std::vector<int32_t>{SHARD_LOG_WARNING});
}

TEST(LogTest, HasALineForAnAbort) {
  const std::string text = ErrorOutputOf([] {
    ::setenv("SHARD_LOG", "info", 1);
    const Comm comm = OpenAs(0, 1, "local:");
    EXPECT_OK(shard_comm_abort(comm.get(), "the loss is nan"));
  });
  EXPECT_THAT(text, HasSubstr(" level=info rank=0 event=abort message=\"the "
                              "group ends here: the loss is nan\"\n"));
}

TEST(LogTest, HasALineForASkippedStep) {
  const std::string text = ErrorOutputOf([] {
    ::setenv("SHARD_LOG", "info", 1);
    const Comm comm = OpenAs(0, 1, "local:");
    const Engine engine = TrainingEngine(comm.get());
    shard_step_options options = SHARD_STEP_OPTIONS_INIT;
    options.skip_nonfinite = 1;
    for (const float grad : {1.0f, INFINITY}) {
      FillGrad(engine.get(), grad);
      EXPECT_OK(shard_engine_step(engine.get(), &options, nullptr));
    }
    shard_counter counter = SHARD_COUNTER_INIT;
    EXPECT_OK(shard_comm_counter(comm.get(), "skipped", &counter));
    EXPECT_EQ(counter.calls, 1u);
  });
  EXPECT_THAT(text,
              HasSubstr(" level=info rank=0 event=skipped message=\"a step "
                        "after step 1 was skipped, with loss scale 1: "
                        "gradients are not finite\"\n"));
}

TEST(LogTest, AClosedPipeIsNotTheEnd) {
  InChild([] {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ::close(ends[0]);
    ::signal(SIGPIPE, SIG_DFL);
    ::dup2(ends[1], STDERR_FILENO);
    ::setenv("SHARD_LOG", "debug", 1);
    Train(OpenAs(0, 1, "local:").get(), 2, "");
  });
}

TEST(EnvironmentTest, ValuesThatCannotBeAreErrors) {
  const TempFolder folder;
  const struct {
    const char* name;
    std::string value;
    shard_code code;
  } cases[] = {
      {"SHARD_LOG", "verbose", SHARD_INVALID_ARGUMENT},
      {"SHARD_LOG_FILE", folder.path(), SHARD_FAILED_PRECONDITION},
      {"SHARD_LOG_FILE", folder / "no/log", SHARD_NOT_FOUND},
      {"SHARD_TRACE", folder.path(), SHARD_FAILED_PRECONDITION},
      {"SHARD_TRACE", folder / "no/trace", SHARD_NOT_FOUND},
      {"SHARD_METRICS", folder / "no/metrics", SHARD_NOT_FOUND},
      {"SHARD_DUMP", folder / "no/dump", SHARD_NOT_FOUND},
      {"SHARD_METRICS", folder.path(), SHARD_FAILED_PRECONDITION},
      {"SHARD_METRICS", folder / "new/", SHARD_FAILED_PRECONDITION},
      {"SHARD_TRACE", folder / std::string(5000, 'x'), SHARD_INVALID_ARGUMENT},
  };
  for (const auto& [name, value, code] : cases) {
    InChild([&, name = name, value = value, code = code] {
      ::setenv(name, value.c_str(), 1);
      shard_comm* comm = Garbage<shard_comm>();
      EXPECT_FAILS(shard_comm_open("local:", nullptr, &comm), code, value);
      EXPECT_EQ(comm, nullptr);
    });
  }
}

// Nor does a rank wait for one that has failed before they met.
TEST(EnvironmentTest, AFileThatOneRankCannotOpenIsAnErrorOfAll) {
  const TempFolder folder;
  const std::string path = folder / "no/file";
  for (const int poor : {0, 1}) {
    for (const auto member :
         {&shard_comm_options::trace, &shard_comm_options::metrics,
          &shard_comm_options::dump}) {
      const std::string url = UniqueUrl(2);
      const auto open = [&](int rank) {
        shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
        options.rank = rank;
        options.world_size = 2;
        options.timeout = 30;
        if (rank == poor) options.*member = path.c_str();
        shard_comm* comm = Garbage<shard_comm>();
        EXPECT_FAILS(shard_comm_open(url.c_str(), &options, &comm),
                     SHARD_NOT_FOUND, "rank " + std::to_string(poor), path);
        EXPECT_EQ(comm, nullptr);
      };
      std::thread other(open, 1);
      open(0);
      other.join();
    }
  }
}

TEST(MetricsTest, ProcessesThatAreGivenOneFileHaveOneEach) {
  const TempFolder folder;
  const std::string path = folder / "m.prom";
  const std::string url = "shm:" + shard::testing::UniqueName();
  ExpectAllPassed(shard::testing::RunRanks(4, [&](const Rank& me) {
    const Comm all = OpenAs(me.rank(), 4, url);
    ::setenv("SHARD_METRICS", path.c_str(), 1);
    const Comm alone = OpenAs(0, 1, "local:");
    Train(alone.get(), 1 + me.rank(), "");
    // Each has its file until all have one.
    EXPECT_OK(shard_comm_shutdown(all.get(), 0));
  }));
  EXPECT_EQ(NamesIn(folder.path()),
            (std::set<std::string>{"m.rank0.prom", "m.rank0.2.prom",
                                   "m.rank0.3.prom", "m.rank0.4.prom"}));
  std::set<std::string> samples;
  for (const std::string& name : NamesIn(folder.path())) {
    std::smatch match;
    const std::string text = ReadText(folder / name);
    ASSERT_TRUE(std::regex_search(
        text, match, std::regex("calls_total.*event=\"step\"\\} ([0-9]+)\n")))
        << text;
    samples.insert(match[1]);
  }
  EXPECT_EQ(samples, (std::set<std::string>{"1", "2", "3", "4"}));
}

TEST(CountersTest, CountWhatTheRankDoes) {
  const TempFolder folder;
  RunRanks(2, [&](int rank, shard_comm* comm) {
    Train(comm, 3, folder / "ckpt");
    const auto counter = [&](const char* event) {
      shard_counter result = SHARD_COUNTER_INIT;
      EXPECT_OK(shard_comm_counter(comm, event, &result));
      return result;
    };
    EXPECT_EQ(counter("step").calls, 3u);
    EXPECT_EQ(counter("step").errors, 0u);
    EXPECT_GT(counter("step").seconds, 0);
    EXPECT_EQ(counter("save").calls, 1u);
    // Rank 0 owns all elements of so small a model.
    EXPECT_EQ(counter("write").bytes > 0, rank == 0);
    EXPECT_EQ(counter("read").bytes > 0, rank == 0);
    EXPECT_GT(counter("barrier").calls, 0u);
    EXPECT_EQ(counter("skipped").calls, 0u);
    EXPECT_OK(shard_comm_barrier(comm, 0));
  });
}

TEST(CountersTest, WrongArgumentsAreErrors) {
  const Comm comm = OpenLocal();
  shard_counter counter = SHARD_COUNTER_INIT;
  counter.calls = 7;
  EXPECT_FAILS(shard_comm_counter(comm.get(), "steps", &counter),
               SHARD_NOT_FOUND, "'steps'", "step, ", "reduce_scatter");
  EXPECT_EQ(counter.calls, 0u);
  EXPECT_FAILS(shard_comm_counter(nullptr, "step", &counter),
               SHARD_INVALID_ARGUMENT, "comm");
  EXPECT_FAILS(shard_comm_counter(comm.get(), nullptr, &counter),
               SHARD_INVALID_ARGUMENT, "event");
  EXPECT_FAILS(shard_comm_counter(comm.get(), "step", nullptr),
               SHARD_INVALID_ARGUMENT, "counter");
  counter.struct_size = 7;
  EXPECT_FAILS(shard_comm_counter(comm.get(), "step", &counter),
               SHARD_INVALID_ARGUMENT, "shard_counter.struct_size");
  size_t length = 5;
  EXPECT_FAILS(shard_comm_metrics(nullptr, nullptr, 0, &length),
               SHARD_INVALID_ARGUMENT, "comm");
  EXPECT_EQ(length, 0u);
  EXPECT_FAILS(shard_comm_metrics(comm.get(), nullptr, 0, nullptr),
               SHARD_INVALID_ARGUMENT, "length");
  length = 5;
  EXPECT_FAILS(shard_comm_dump(nullptr, nullptr, 0, &length),
               SHARD_INVALID_ARGUMENT, "comm");
  EXPECT_EQ(length, 0u);
  EXPECT_FAILS(shard_comm_dump(comm.get(), nullptr, 0, nullptr),
               SHARD_INVALID_ARGUMENT, "length");
}

nlohmann::json DumpOf(const shard_comm* comm) {
  size_t length = 0;
  EXPECT_OK(shard_comm_dump(comm, nullptr, 0, &length));
  // Another collective may have begun meanwhile.
  std::string text(length + 4096, '\0');
  EXPECT_OK(shard_comm_dump(comm, text.data(), text.size(), &length));
  text.resize(length);
  return nlohmann::json::parse(text, nullptr, false);
}

// Another thread of the host asks while one waits.
TEST(DumpTest, HasTheCollectiveThatWaits) {
  const std::string url = UniqueUrl(2);
  std::atomic<bool> go = false;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const Comm comm = OpenAs(rank, 2, url);
      EXPECT_OK(shard_comm_barrier(comm.get(), 0));
      std::thread waits;
      if (rank == 0) {
        waits =
            std::thread([&] { EXPECT_OK(shard_comm_barrier(comm.get(), 0)); });
        // Rank 1 comes once this rank waits.
        while (DumpOf(comm.get())["collectives"].size() < 2) {
          std::this_thread::yield();
        }
        const nlohmann::json dump = DumpOf(comm.get());
        EXPECT_EQ(dump["rank"], 0);
        EXPECT_EQ(dump["reason"], "requested");
        EXPECT_EQ(dump["collectives"][0]["state"], "done");
        EXPECT_EQ(dump["collectives"][1]["operation"], "barrier");
        EXPECT_EQ(dump["collectives"][1]["number"], 2);
        EXPECT_EQ(dump["collectives"][1]["state"], "running");
        go = true;
        go.notify_one();
        waits.join();
      } else {
        go.wait(false);
        EXPECT_OK(shard_comm_barrier(comm.get(), 0));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The groups of an engine, and their numbers, are the same on all ranks.
TEST(DumpTest, RanksNumberTheCollectivesOfAnEngineAlike) {
  for (const char* options : {"", "&direct=0"}) {
    const std::string url = UniqueUrl(2) + options;
    std::vector<nlohmann::json> dumps(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const Comm comm = OpenAs(rank, 2, url);
        Train(comm.get(), 3, "");
        EXPECT_OK(shard_comm_barrier(comm.get(), 0));
        dumps[static_cast<size_t>(rank)] = DumpOf(comm.get());
      });
    }
    for (std::thread& thread : threads) thread.join();
    using Key = std::pair<std::string, uint64_t>;
    std::map<Key, nlohmann::json> calls[2];
    std::set<std::string> names;
    for (size_t rank = 0; rank < 2; ++rank) {
      for (nlohmann::json entry : dumps[rank]["collectives"]) {
        const Key key = {entry["group"], entry["number"]};
        names.insert(entry["name"]);
        EXPECT_TRUE(entry["state"] == "done" || entry["state"] == "posted");
        for (const char* own : {"first", "begin", "seconds", "state"}) {
          entry.erase(own);
        }
        calls[rank][key] = entry;
      }
    }
    EXPECT_TRUE(calls[0] == calls[1]) << dumps[0] << "\n" << dumps[1];
    EXPECT_EQ(names.count("world"), 1u);
    EXPECT_EQ(names.count("agree on operation"), 1u);
    EXPECT_EQ(names.count("tensors"), *options == '\0' ? 0u : 1u);
  }
}

TEST(CountersTest, MetricsAreAText) {
  const Comm comm = OpenLocal();
  Train(comm.get(), 2, "");
  size_t length = 0;
  ASSERT_OK(shard_comm_metrics(comm.get(), nullptr, 0, &length));
  std::string text(length + 100, '\0');
  ASSERT_OK(shard_comm_metrics(comm.get(), text.data(), text.size(), &length));
  EXPECT_THAT(text, HasSubstr("# TYPE shard_event_calls_total counter\n"));
  EXPECT_THAT(text, HasSubstr("shard_event_calls_total{rank=\"0\","
                              "category=\"step\",event=\"step\"} 2\n"));
}

}  // namespace
}  // namespace shard_api_testing
