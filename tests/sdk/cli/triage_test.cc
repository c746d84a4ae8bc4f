// SPDX-License-Identifier: Apache-2.0
//
// `shardctl triage`, on dumps that are made up, damaged, and those of ranks
// that disagree and hang.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shard/shard.h"
#include "tests/core/base/temp_folder.h"
#include "tests/ranks/ranks.h"
#include "tests/sdk/cli/checkpoint_testing.h"

namespace shardctl_testing::triage_test {
namespace {

using Json = nlohmann::ordered_json;
using shard::testing::Rank;
using shard::testing::TempFolder;

Json Collective(int number, const std::string& state) {
  Json json = {
      {"group", "0x0000000000000000"},  {"name", "world"}, {"number", number},
      {"operation", "all_gather"},      {"what", "sizes"}, {"bytes", 16},
      {"begin", 1700000000.0 + number}, {"state", state},  {"seconds", 0.5}};
  if (state == "failed") json["error"] = "DEADLINE_EXCEEDED";
  if (state == "running" || state == "posted") json["seconds"] = nullptr;
  return json;
}

Json DumpOf(int rank, int world_size, const std::vector<Json>& collectives) {
  return {{"format", "shard_dump"},
          {"version", 1},
          {"rank", rank},
          {"world_size", world_size},
          {"host", "node-" + std::to_string(rank)},
          {"pid", 100 + rank},
          {"time", 1700000100.0},
          {"reason", "failed"},
          {"error", nullptr},
          {"recorded", collectives.size()},
          {"collectives", collectives}};
}

class TriageTest : public ::testing::Test {
 protected:
  // Writes a dump and returns its path.
  std::string Write(const std::string& name, const Json& dump) const {
    return WriteText(name, dump.dump());
  }
  std::string WriteText(const std::string& name,
                        const std::string& text) const {
    WriteFile(folder_ / name, text);
    return folder_ / name;
  }
  // Writes one dump for each, and returns the document of a triage of them.
  Json TriageOf(const std::vector<Json>& dumps, int code) const {
    std::vector<std::string> arguments = {"triage", "--json"};
    for (size_t d = 0; d < dumps.size(); ++d) {
      arguments.push_back(Write("dump" + std::to_string(d), dumps[d]));
    }
    const Result result = RunShardctl(arguments);
    EXPECT_EQ(result.code, code) << result.out << result.error;
    return Json::parse(result.out, nullptr, false);
  }

  const TempFolder folder_;
};

TEST_F(TriageTest, RanksThatDidTheSameAreFine) {
  const std::vector<Json> done = {Collective(1, "done"),
                                  Collective(2, "posted")};
  const Json json = TriageOf({DumpOf(1, 2, done), DumpOf(0, 2, done)}, 0);
  EXPECT_EQ(json["fine"], true);
  EXPECT_EQ(json["first"], nullptr);
  EXPECT_EQ(json["missing"], Json::array());
  ASSERT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["ranks"][0]["rank"], 0);
  EXPECT_EQ(json["ranks"][0]["host"], "node-0");
  EXPECT_EQ(json["ranks"][1]["last"]["number"], 2);
}

TEST_F(TriageTest, TheFirstCallThatDiffersIsNamed) {
  Json other = Collective(2, "failed");
  other["bytes"] = 24;
  Json later = Collective(3, "failed");
  later["what"] = "later";
  const std::vector<Json> most = {
      Collective(1, "done"), Collective(2, "failed"), Collective(3, "failed")};
  const std::vector<Json> dumps = {
      DumpOf(0, 3, most), DumpOf(1, 3, {Collective(1, "done"), other, later}),
      DumpOf(2, 3, most)};
  const Json first = TriageOf(dumps, 1)["first"];
  EXPECT_EQ(first["kind"], "different");
  EXPECT_EQ(first["name"], "world");
  EXPECT_EQ(first["number"], 2);
  ASSERT_EQ(first["calls"].size(), 2u);
  EXPECT_EQ(first["calls"][0]["by_ranks"], Json::array({0, 2}));
  EXPECT_EQ(first["calls"][0]["call"]["bytes"], 16);
  EXPECT_EQ(first["calls"][1]["by_ranks"], Json::array({1}));
  EXPECT_EQ(first["calls"][1]["call"]["bytes"], 24);
  EXPECT_EQ(first["calls"][1]["call"]["dtype"], nullptr);
  EXPECT_EQ(first["failed"], Json::array({0, 1, 2}));

  const Result text = RunShardctl(
      {"triage", folder_ / "dump0", folder_ / "dump1", folder_ / "dump2"});
  EXPECT_EQ(text.code, 1);
  for (const char* part :
       {"called differently: number 2 of 'world'",
        "  ranks 0, 2: all_gather 'sizes', 16 bytes\n",
        "  rank 1: all_gather 'sizes', 24 bytes\n", "node-1"}) {
    EXPECT_TRUE(Has(text.out, part)) << part << "\n" << text.out;
  }
}

// Each value by which ranks may differ.
TEST_F(TriageTest, AllOfACallIsCompared) {
  const std::vector<std::pair<const char*, Json>> values = {
      {"operation", "barrier"},
      {"what", "x"},
      {"dtype", "f32"},
      {"recv_dtype", "bf16"},
      {"ranks", 2},
      {"stride", 2},
      {"root", 1}};
  for (const auto& [key, value] : values) {
    Json other = Collective(1, "done");
    other[key] = value;
    EXPECT_EQ(
        TriageOf({DumpOf(0, 2, {Collective(1, "done")}), DumpOf(1, 2, {other})},
                 1)["first"]["kind"],
        "different")
        << key;
  }
  // The sets of two ranks begin at different ranks.
  Json other = Collective(1, "done");
  other["first"] = 1;
  TriageOf({DumpOf(0, 2, {Collective(1, "done")}), DumpOf(1, 2, {other})}, 0);
}

TEST_F(TriageTest, RanksThatDidNotComeAreNamed) {
  Json silent = DumpOf(2, 5, {});
  silent["reason"] = "opened";
  Json waits = DumpOf(0, 5, {Collective(1, "done"), Collective(2, "failed")});
  waits["error"] = {{"code", "DEADLINE_EXCEEDED"},
                    {"rank", 3},
                    {"message", "rank 3 did not come"}};
  const Json json = TriageOf(
      {waits, DumpOf(1, 5, {Collective(1, "done"), Collective(2, "running")}),
       silent, DumpOf(3, 5, {Collective(1, "done")})},
      1);
  EXPECT_EQ(json["missing"], Json::array({4}));
  EXPECT_EQ(json["silent"], Json::array({2}));
  const Json& first = json["first"];
  EXPECT_EQ(first["kind"], "incomplete");
  EXPECT_EQ(first["number"], 2);
  EXPECT_EQ(first["running"], Json::array({1}));
  EXPECT_EQ(first["failed"], Json::array({0}));
  EXPECT_EQ(first["not_come"], Json::array({3}));
  EXPECT_EQ(json["ranks"][0]["error"]["code"], "DEADLINE_EXCEEDED");

  const Result text =
      RunShardctl({"triage", folder_ / "dump0", folder_ / "dump1",
                   folder_ / "dump2", folder_ / "dump3"});
  for (const char* part :
       {"no dump of rank 4\n", "since the start by rank 2:",
        "  rank 3: did not come to it\n", "  ranks 2, 4: not known\n",
        "rank 0: DEADLINE_EXCEEDED: rank 3 did not come\n"}) {
    EXPECT_TRUE(Has(text.out, part)) << part << "\n" << text.out;
  }
}

// NCCL's collectives are announced, and hang on the GPU until a rank's does.
TEST_F(TriageTest, RanksThatDidNotAnnounceACollectiveAreNamed) {
  const Json json = TriageOf(
      {DumpOf(0, 2, {Collective(1, "posted"), Collective(2, "posted")}),
       DumpOf(1, 2, {Collective(1, "posted")})},
      1);
  const Json& first = json["first"];
  EXPECT_EQ(first["kind"], "incomplete");
  EXPECT_EQ(first["number"], 2);
  EXPECT_EQ(first["posted"], Json::array({0}));
  EXPECT_EQ(first["not_come"], Json::array({1}));
  const Result text =
      RunShardctl({"triage", folder_ / "dump0", folder_ / "dump1"});
  EXPECT_TRUE(Has(text.out, "  rank 0: announced it, and did not see its end"))
      << text.out;
}

// Announcements stay so where nobody waits for their end. They say nothing of a
// rank that has left no dump.
TEST_F(TriageTest, AnnouncementsDoNotHideTheCollectiveThatIsCutOff) {
  const std::vector<Json> most = {Collective(1, "posted"),
                                  Collective(2, "posted"),
                                  Collective(3, "running")};
  const Json json = TriageOf({DumpOf(0, 3, most), DumpOf(1, 3, most)}, 1);
  EXPECT_EQ(json["first"]["kind"], "incomplete");
  EXPECT_EQ(json["first"]["number"], 3);
  const std::vector<Json> posted = {Collective(1, "posted")};
  EXPECT_EQ(TriageOf({DumpOf(0, 2, posted)}, 1)["first"], nullptr);
}

// A rank may be on its way to a collective that the other one has begun.
TEST_F(TriageTest, ADifferenceGoesBeforeARankThatDidNotCome) {
  Json waits = Collective(1, "running");
  waits["group"] = "0x1";
  Json other = Collective(2, "done");
  other["bytes"] = 24;
  const Json json = TriageOf(
      {DumpOf(0, 2, {waits, Collective(2, "done")}), DumpOf(1, 2, {other})}, 1);
  EXPECT_EQ(json["first"]["kind"], "different");
  EXPECT_EQ(json["first"]["number"], 2);
}

// A collective that fails on all ranks alike, and after which they go on, hides
// none that breaks off.
TEST_F(TriageTest, WhatFailedEverywhereComesLast) {
  Json refused = Collective(1, "failed");
  refused["error"] = "UNIMPLEMENTED";
  const std::vector<Json> most = {refused, Collective(2, "done")};
  Json json = TriageOf({DumpOf(0, 2, most), DumpOf(1, 2, most)}, 1);
  EXPECT_EQ(json["first"]["kind"], "failed");
  EXPECT_EQ(json["first"]["number"], 1);
  json = TriageOf(
      {DumpOf(0, 2, {refused, Collective(2, "done"), Collective(3, "running")}),
       DumpOf(1, 2, most)},
      1);
  EXPECT_EQ(json["first"]["kind"], "incomplete");
  EXPECT_EQ(json["first"]["number"], 3);
  // Nor is it taken for one to which a rank without a dump did not come.
  json = TriageOf({DumpOf(0, 3, most), DumpOf(1, 3, most)}, 1);
  EXPECT_EQ(json["first"]["kind"], "failed");
}

// The ring of a rank that is ahead has lost what the other one is still at.
TEST_F(TriageTest, WhatARingHasLostIsNotMissing) {
  Json ahead = DumpOf(1, 2, {Collective(9, "done")});
  const std::vector<Json> behind = {Collective(5, "failed"),
                                    Collective(9, "done")};
  EXPECT_EQ(TriageOf({DumpOf(0, 2, behind), ahead}, 1)["first"]["kind"],
            "incomplete");
  ahead["recorded"] = 2000;
  EXPECT_EQ(TriageOf({DumpOf(0, 2, behind), ahead}, 1)["first"]["kind"],
            "failed");
}

TEST_F(TriageTest, GroupsAreComparedApartAndTheFirstByTime) {
  Json other = Collective(1, "running");
  other["group"] = "0x1";
  other["name"] = "engine";
  other["begin"] = 1600000000;
  const Json json = TriageOf(
      {DumpOf(0, 2, {Collective(1, "running"), other}), DumpOf(1, 2, {})}, 1);
  EXPECT_EQ(json["first"]["name"], "engine");
  EXPECT_EQ(json["first"]["not_come"], Json::array({1}));
  // A collective begins with the first of its ranks.
  Json early = Collective(1, "running");
  early["begin"] = 1500000000;
  EXPECT_EQ(TriageOf({DumpOf(0, 3, {Collective(1, "running"), other}),
                      DumpOf(1, 3, {early}), DumpOf(2, 3, {})},
                     1)["first"]["name"],
            "world");
}

TEST_F(TriageTest, FilesThatAreNoDumpsAreErrorsThatSayWhy) {
  const Json good = DumpOf(0, 2, {Collective(1, "done")});
  const auto changed = [&](const std::function<void(Json*)>& change) {
    Json dump = good;
    change(&dump);
    return dump.dump();
  };
  const auto in_first = [&](const char* key, const Json& value) {
    return changed([&](Json* dump) { (*dump)["collectives"][0][key] = value; });
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "is empty"},
      {"x", "is no JSON document"},
      {"[]", "is no dump of collectives"},
      {"{}", "is no dump of collectives"},
      {good.dump().substr(0, 200), "is no JSON document"},
      {std::string(100000, '['), "nested too deeply"},
      {std::string((size_t{4} << 20) + 1, ' '), "has more than 4,194,304"},
      {changed([](Json* dump) { (*dump)["version"] = 2; }),
       "version 2; this shardctl reads version 1"},
      {changed([](Json* dump) { (*dump)["rank"] = 2; }),
       "rank is no number from 0 to 1"},
      {changed([](Json* dump) { (*dump)["rank"] = -1; }), "rank is no"},
      {changed([](Json* dump) { (*dump)["world_size"] = 0; }),
       "world_size is no number from 1"},
      {changed([](Json* dump) { (*dump)["world_size"] = UINT64_MAX; }),
       "world_size is no"},
      {changed([](Json* dump) { dump->erase("host"); }), "host is not there"},
      {changed([](Json* dump) { (*dump)["error"] = 1; }), "error is no object"},
      {changed([](Json* dump) { (*dump)["error"] = Json::object(); }),
       "error.code is not there"},
      {changed([](Json* dump) { (*dump)["recorded"] = 0; }),
       "recorded is less"},
      {changed([](Json* dump) { (*dump)["collectives"] = Json::object(); }),
       "collectives is no list"},
      {changed([](Json* dump) { (*dump)["collectives"][0] = 1; }),
       "collectives[0] is no object"},
      {changed([](Json* dump) {
         (*dump)["recorded"] = 2;
         (*dump)["collectives"].push_back((*dump)["collectives"][0]);
       }),
       "collectives[1].number is that of an earlier"},
      {in_first("group", 1), "collectives[0].group is no text"},
      {in_first("number", -1), "collectives[0].number is no number"},
      {in_first("number", 1.5), "collectives[0].number is no number"},
      {in_first("bytes", "16"), "collectives[0].bytes is no number"},
      {in_first("root", -2), "collectives[0].root is no number"},
      {in_first("begin", nullptr), "collectives[0].begin is no number"},
      {in_first("seconds", "1"), "collectives[0].seconds is no number"},
      {in_first("state", "waiting"), "collectives[0].state is none of"},
      {in_first("state", "failed"), "collectives[0].error is not there"},
  };
  for (const auto& [text, why] : cases) {
    const std::string path = WriteText("dump", text);
    const Result result = RunShardctl({"triage", path});
    EXPECT_EQ(result.code, 3) << text.substr(0, 300);
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(Has(result.error, path) && Has(result.error, why))
        << why << "\n"
        << result.error;
  }
}

TEST_F(TriageTest, PathsThatAreNoFilesAreErrors) {
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path :
       {folder_ / "none", fifo, folder_.path(), std::string("/dev/zero")}) {
    const Result result = RunShardctl({"triage", path});
    EXPECT_EQ(result.code, 3) << path;
    EXPECT_TRUE(Has(result.error, path)) << result.error;
  }
  EXPECT_EQ(RunShardctl({"triage"}).code, 2);
}

TEST_F(TriageTest, DumpsOfTwoRunsAreErrors) {
  const std::string a = Write("a", DumpOf(0, 2, {}));
  const std::string b = Write("b", DumpOf(0, 2, {}));
  const std::string c = Write("c", DumpOf(1, 3, {}));
  const Result same = RunShardctl({"triage", a, b});
  EXPECT_EQ(same.code, 3);
  EXPECT_TRUE(Has(same.error, "are both of rank 0")) << same.error;
  const Result other = RunShardctl({"triage", a, c});
  EXPECT_EQ(other.code, 3);
  EXPECT_TRUE(Has(other.error, "of a world of 2 ranks")) << other.error;
}

TEST_F(TriageTest, TextsOfADumpAreHarmlessToATerminal) {
  Json evil = Collective(1, "running");
  evil["what"] = "a\x1b[31mb\n";
  evil["name"] = "\x1b]0;title";
  Json dump = DumpOf(0, 2, {evil});
  dump["host"] = "\x1b[2J";
  dump["error"] = {{"code", "\x1b"}, {"rank", -1}, {"message", "x\x1by"}};
  const Result result = RunShardctl(
      {"triage", Write("dump", dump), Write("b", DumpOf(1, 2, {}))});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos) << result.out;
  EXPECT_TRUE(Has(result.out, "a\\x1b[31mb\\n")) << result.out;
}

// Runs ranks whose dumps are `folder`/dump.rank0.json, ...
void RunDumping(int world_size, const std::string& folder,
                const std::function<void(const Rank&, shard_comm*)>& body) {
  const std::string url = "shm:" + shard::testing::UniqueName();
  const auto results =
      shard::testing::RunRanks(world_size, [&](const Rank& me) {
        ::setenv("SHARD_DUMP", (folder + "/dump.json").c_str(), 1);
        shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
        options.rank = me.rank();
        options.world_size = world_size;
        options.timeout = 30;
        shard_comm* comm = nullptr;
        shard_error* const error =
            shard_comm_open(url.c_str(), &options, &comm);
        ASSERT_EQ(error, nullptr) << shard_error_message(error);
        body(me, comm);
        shard_comm_free(comm);
      });
  for (const auto& result : results) {
    EXPECT_TRUE(result.passed() || result.signal == SIGKILL)
        << result.ToString();
  }
}

void ExpectCode(shard_error* error, shard_code code) {
  EXPECT_EQ(shard_error_code(error), code);
  shard_error_free(error);
}

TEST_F(TriageTest, ARankThatCalledSomethingElseIsFound) {
  RunDumping(3, folder_.path(), [](const Rank& me, shard_comm* comm) {
    ExpectCode(shard_comm_barrier(comm, 0), SHARD_OK);
    double value = 1;
    ExpectCode(me.rank() == 1 ? shard_comm_sum(comm, &value, 1, 0)
                              : shard_comm_barrier(comm, 0),
               SHARD_DESYNC);
  });
  const Result result =
      RunShardctl({"triage", "--json", folder_ / "dump.rank0.json",
                   folder_ / "dump.rank1.json", folder_ / "dump.rank2.json"});
  EXPECT_EQ(result.code, 1) << result.error;
  const Json json = Json::parse(result.out, nullptr, false);
  EXPECT_EQ(json["missing"], Json::array());
  EXPECT_EQ(json["first"]["kind"], "different") << result.out;
  EXPECT_EQ(json["first"]["number"], 2);
  EXPECT_EQ(json["first"]["calls"][0]["by_ranks"], Json::array({0, 2}));
  EXPECT_EQ(json["first"]["calls"][0]["call"]["operation"], "barrier");
  EXPECT_EQ(json["first"]["calls"][1]["by_ranks"], Json::array({1}));
  EXPECT_EQ(json["first"]["calls"][1]["call"]["operation"], "all_gather");
  EXPECT_EQ(json["ranks"][0]["error"]["code"], "DESYNC");
}

TEST_F(TriageTest, ARankThatHangsIsFound) {
  auto* const hanging = static_cast<std::atomic<pid_t>*>(
      ::mmap(nullptr, sizeof(std::atomic<pid_t>), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(hanging), MAP_FAILED);
  RunDumping(3, folder_.path(), [&](const Rank& me, shard_comm* comm) {
    if (me.rank() == 1) *hanging = ::getpid();
    ExpectCode(shard_comm_barrier(comm, 0), SHARD_OK);
    if (me.rank() == 1) ::raise(SIGSTOP);
    shard_error* const error = shard_comm_barrier(comm, 0.5);
    EXPECT_EQ(shard_error_code(error), SHARD_DEADLINE_EXCEEDED);
    shard_error_free(error);
    if (me.rank() == 0) ::kill(*hanging, SIGKILL);
  });
  ::munmap(hanging, sizeof(std::atomic<pid_t>));
  const Result result =
      RunShardctl({"triage", "--json", folder_ / "dump.rank0.json",
                   folder_ / "dump.rank1.json", folder_ / "dump.rank2.json"});
  EXPECT_EQ(result.code, 1) << result.error;
  const Json json = Json::parse(result.out, nullptr, false);
  EXPECT_EQ(json["silent"], Json::array({1})) << result.out;
  EXPECT_EQ(json["first"]["kind"], "incomplete");
  EXPECT_EQ(json["first"]["number"], 2);
  EXPECT_EQ(json["first"]["failed"], Json::array({0, 2}));
  EXPECT_EQ(json["ranks"][0]["error"]["rank"], 1);
}

}  // namespace
}  // namespace shardctl_testing::triage_test
