// SPDX-License-Identifier: Apache-2.0
//
// The ring of the last collectives, and the dump that an observer makes of it.

#include "core/observe/collective_ring.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/json_writer.h"
#include "core/base/strings.h"
#include "core/observe/observer.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/observe/observing.h"

namespace shard::collective_ring_test {
namespace {

using Json = nlohmann::json;
using testing::NamesIn;
using testing::OpenObserver;
using testing::ReadText;
using testing::TempFolder;

constexpr size_t kEntries = CollectiveRing::kEntries;

Json Read(const CollectiveRing& ring) {
  JsonWriter writer;
  writer.BeginObject();
  ring.AppendTo(&writer, 0);
  writer.EndObject();
  return Json::parse(writer.text());
}

Json EntriesOf(const CollectiveRing& ring) { return Read(ring)["collectives"]; }

// Begins the next collective of a sequence.
uint64_t Begin(CollectiveRing* ring, CollectiveSequence* sequence,
               const CollectiveCall& call = {.what = "phase"}) {
  sequence->Next();
  return ring->Begin(*sequence, call, 1'000'000'000);
}

TEST(CollectiveRingTest, AnEntryHasTheCallAndHowItEnded) {
  CollectiveRing ring;
  CollectiveSequence sequence;
  const uint64_t ticket = Begin(&ring, &sequence,
                                {.operation = EventId::kReduceScatter,
                                 .what = "sum",
                                 .bytes = 40,
                                 .set_first = 1,
                                 .set_stride = 2,
                                 .set_ranks = 3,
                                 .dtype = 2,
                                 .recv_dtype = 1});
  Json expected = {{"group", "0x0000000000000000"},
                   {"name", "world"},
                   {"number", 1},
                   {"operation", "reduce_scatter"},
                   {"what", "sum"},
                   {"bytes", 40},
                   {"dtype", "bf16"},
                   {"recv_dtype", "f32"},
                   {"ranks", 3},
                   {"first", 1},
                   {"stride", 2},
                   {"begin", 1},
                   {"state", "running"},
                   {"seconds", nullptr}};
  EXPECT_EQ(EntriesOf(ring), Json::array({expected}));
  ring.End(ticket, 3'500'000'000, StatusCode::kOk);
  expected["state"] = "done";
  expected["seconds"] = 2.5;
  EXPECT_EQ(EntriesOf(ring), Json::array({expected}));

  const uint64_t failed = Begin(&ring, &sequence);
  ring.End(failed, 1'000'000'000, StatusCode::kRankLost);
  const Json second = EntriesOf(ring)[1];
  EXPECT_EQ(second["number"], 2);
  EXPECT_EQ(second["state"], "failed");
  EXPECT_EQ(second["error"], "RANK_LOST");
  EXPECT_FALSE(second.contains("dtype") || second.contains("ranks") ||
               second.contains("root"));
}

TEST(CollectiveRingTest, TheLast1024AreKept) {
  CollectiveRing ring;
  CollectiveSequence sequence;
  std::vector<uint64_t> tickets;
  for (size_t i = 0; i < kEntries + 100; ++i) {
    tickets.push_back(Begin(&ring, &sequence));
  }
  // The entries of these are gone, and their places taken.
  for (size_t i = 0; i < 100; ++i) {
    ring.End(tickets[i], 2'000'000'000, StatusCode::kOk);
    ring.Post(tickets[i]);
  }
  const Json json = Read(ring);
  EXPECT_EQ(json["recorded"], kEntries + 100);
  ASSERT_EQ(json["collectives"].size(), kEntries);
  for (size_t i = 0; i < kEntries; ++i) {
    ASSERT_EQ(json["collectives"][i]["number"], i + 101);
    ASSERT_EQ(json["collectives"][i]["state"], "running");
  }
}

TEST(CollectiveRingTest, PostedCollectivesEndUpToANumber) {
  CollectiveRing ring;
  CollectiveSequence world;
  world.Next();
  CollectiveSequence device(world, "device");
  ring.Post(Begin(&ring, &world));
  for (int i = 0; i < 4; ++i) ring.Post(Begin(&ring, &device));
  const uint64_t waits = Begin(&ring, &device);
  ring.EndPosted(device, 3, 2'000'000'000, StatusCode::kOk);
  std::vector<std::string> states;
  const Json entries = EntriesOf(ring);
  for (const Json& entry : entries) {
    states.push_back(entry["state"]);
  }
  EXPECT_EQ(states, (std::vector<std::string>{"posted", "done", "done", "done",
                                              "posted", "running"}));
  ring.Post(waits);
  ring.Await(waits);
  EXPECT_EQ(EntriesOf(ring)[5]["state"], "running");
  ring.End(waits, 2'000'000'000, StatusCode::kDesync);
  EXPECT_EQ(EntriesOf(ring)[5]["error"], "DESYNC");
}

TEST(CollectiveRingTest, LongTextsAreCutBetweenCharacters) {
  CollectiveRing ring;
  CollectiveSequence world;
  CollectiveSequence named(world, "x" + std::string(11, 'y') + "ööööööö");
  std::string what;
  for (int i = 0; i < 40; ++i) what += "ä";
  Begin(&ring, &named, {.what = "-" + what});
  const Json entry = EntriesOf(ring)[0];
  EXPECT_EQ(entry["what"], "-" + what.substr(0, 2 * 27));
  EXPECT_EQ(entry["name"], "xyyyyyyyyyyyöööööö");
}

// The number of the collective that makes it tells a group from others of its
// name, on all ranks alike.
TEST(CollectiveRingTest, GroupsAreToldApartByWhatMadeThem) {
  const auto groups_of_a_rank = [] {
    CollectiveRing ring;
    CollectiveSequence world;
    world.Next();
    CollectiveSequence first(world, "engine");
    world.Next();
    CollectiveSequence second(world, "engine");
    second.Next();
    CollectiveSequence inner(second, "engine");
    std::vector<std::string> groups;
    for (auto* sequence : {&world, &first, &second, &inner}) {
      Begin(&ring, sequence);
      groups.push_back(EntriesOf(ring).back()["group"]);
    }
    return groups;
  };
  const std::vector<std::string> groups = groups_of_a_rank();
  EXPECT_EQ(groups_of_a_rank(), groups);
  EXPECT_EQ(std::set<std::string>(groups.begin(), groups.end()).size(), 4u);
}

// Also a test of ThreadSanitizer's.
TEST(CollectiveRingTest, AReaderSeesWholeEntriesOnly) {
  CollectiveRing ring;
  constexpr int kThreads = 3;
  constexpr uint64_t kCalls = 20000;
  std::atomic<int> running = kThreads;
  std::vector<std::thread> writers;
  for (int t = 0; t < kThreads; ++t) {
    writers.emplace_back([&] {
      CollectiveSequence sequence;
      for (uint64_t i = 1; i <= kCalls; ++i) {
        const std::string what = StrCat("number ", i);
        const uint64_t ticket =
            Begin(&ring, &sequence, {.what = what, .bytes = 3 * i});
        ring.End(ticket, 1'000'000'000 + static_cast<int64_t>(i),
                 StatusCode::kOk);
      }
      --running;
    });
  }
  int entries = 0;
  int torn = 0;
  do {
    const Json read = EntriesOf(ring);
    for (const Json& entry : read) {
      ++entries;
      const uint64_t number = entry["number"];
      const bool whole = entry["bytes"] == 3 * number &&
                         entry["what"] == StrCat("number ", number) &&
                         (entry["state"] == "running" ||
                          std::abs(entry["seconds"].get<double>() -
                                   static_cast<double>(number) * 1e-9) < 1e-10);
      if (!whole) ++torn;
    }
  } while (running > 0);
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(torn, 0);
  EXPECT_GT(entries, 0);
  EXPECT_EQ(Read(ring)["recorded"], kThreads * kCalls);
}

Json DumpAt(const std::string& path) { return Json::parse(ReadText(path)); }

TEST(DumpTest, IsReplacedAtTheFirstFailureAndAtTheEnd) {
  const TempFolder folder;
  const std::string path = folder / "dump.rank1.json";
  testing::WriteText(path, "of an earlier run");
  auto observer = OpenObserver({.dump = folder / "dump.json"}, 1);
  const Json opened = DumpAt(path);
  EXPECT_EQ(opened["format"], "shard_dump");
  EXPECT_EQ(opened["version"], 1);
  EXPECT_EQ(opened["rank"], 1);
  EXPECT_EQ(opened["world_size"], 2);
  EXPECT_EQ(opened["pid"], ::getpid());
  EXPECT_EQ(opened["reason"], "opened");
  EXPECT_EQ(opened["error"], nullptr);
  EXPECT_EQ(opened["collectives"], Json::array());

  CollectiveSequence sequence;
  Begin(&observer->collectives(), &sequence);
  EXPECT_EQ(DumpAt(path)["reason"], "opened");
  observer->DumpFailure(RankLost(0, "rank 0 died"));
  const Json failed = DumpAt(path);
  EXPECT_EQ(failed["reason"], "failed");
  EXPECT_EQ(
      failed["error"],
      Json({{"code", "RANK_LOST"}, {"rank", 0}, {"message", "rank 0 died"}}));
  EXPECT_EQ(failed["collectives"].size(), 1u);

  // Too soon after the first one.
  Begin(&observer->collectives(), &sequence);
  observer->DumpFailure(Internal("a later error"));
  EXPECT_EQ(DumpAt(path), failed);
  const Json requested = Json::parse(observer->DumpText());
  EXPECT_EQ(requested["reason"], "requested");
  EXPECT_EQ(requested["error"], failed["error"]);
  EXPECT_EQ(requested["collectives"].size(), 2u);

  testing::InChild([&] { observer->DumpFailure(Internal("in a child")); });
  EXPECT_EQ(DumpAt(path), failed);
  observer.reset();
  EXPECT_EQ(DumpAt(path)["reason"], "closed");
  EXPECT_EQ(DumpAt(path)["error"], failed["error"]);
  EXPECT_EQ(NamesIn(folder.path()).size(), 1u);
}

TEST(DumpTest, NothingIsWrittenUnasked) {
  const TempFolder folder;
  const std::string before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  OpenObserver({})->DumpFailure(Internal("an error"));
  std::filesystem::current_path(before);
  EXPECT_TRUE(NamesIn(folder.path()).empty());
}

TEST(DumpTest, APathThatCannotBeAFileIsNamed) {
  const TempFolder folder;
  Observer observer(Logger(), 0, 2);
  int trace = 1;
  ASSERT_OK(observer.Open({.dump = folder.path()}));
  ExpectError(observer.Start(&trace), StatusCode::kFailedPrecondition,
              {"the path of the dump", folder.path(), "dump.json"});
}

TEST(DumpTest, ADiskThatIsFullIsOneWarning) {
  const TempFolder folder;
  const std::string log = folder / "run.log";
  testing::InChild([&] {
    const auto observer = OpenObserver({.log_level = LogLevel::kWarning,
                                        .log_file = log,
                                        .dump = folder / "dump.json"});
    CollectiveSequence sequence;
    for (size_t i = 0; i < kEntries; ++i) {
      Begin(&observer->collectives(), &sequence);
    }
    testing::LowerLimit(RLIMIT_FSIZE, 1000);
    observer->DumpFailure(Internal("an error"));
  });
  const std::string text = ReadText(log);
  EXPECT_EQ(testing::LinesOf(text).size(), 1u) << text;
  EXPECT_NE(text.find("event=unobserved message=\"writing the dump '"),
            std::string::npos)
      << text;
  EXPECT_EQ(DumpAt(folder / "dump.rank0.json")["reason"], "opened");
}

}  // namespace
}  // namespace shard::collective_ring_test
