// SPDX-License-Identifier: Apache-2.0
//
// Memory runs out: in each flow of a host the n-th allocation fails, alone or
// with all later ones, for every n (SHARD_TEST_LONG) or some. Each time the
// calls return RESOURCE_EXHAUSTED, the free functions succeed while memory is
// still out, and everything that was allocated is freed. Where one allocation
// failed, no temporary file stays.
//
// Where several ranks run, one of them returns RESOURCE_EXHAUSTED. The others
// return the same error, where they agree on one, or POISONED, or the loss of a
// rank. Memory that runs out in the background is POISONED, with the reason, on
// all ranks. No rank waits for its deadline, except for a rank that did not
// come to open the communicator.
//
// An allocation may fail without an error of the call, such as that of a
// warning or of a buffer that only saves time. Then the result must be right.
//
// Each flow runs in a child process, so that an allocation that ends it is
// counted, and the next one is tried.
//
// SHARD_TEST_TRACE=N prints where allocation N of a flow is made, and the
// numbers of those that leak; with --gtest_filter for one flow.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/fault/failing_allocator.h"
#include "tests/fault/host.h"
#include "tests/fault/host_flows.h"

namespace shard {
namespace {

bool IsAllowed(const HostRank& rank) {
  const shard_code code = rank.code;
  if (code == SHARD_OK || code == SHARD_RESOURCE_EXHAUSTED) return true;
  if (code == SHARD_POISONED) return true;
  if (rank.world->ranks == 1) return false;
  // A rank that met the others and fails is lost to them at once.
  return code == SHARD_RANK_LOST ||
         (code == SHARD_DEADLINE_EXCEEDED &&
          std::string_view(rank.call).starts_with("shard_comm_open"));
}

// Returns the paths below `folder` with a name that is temporary, and deletes
// what is there.
std::vector<std::string> TakeTemporaryFiles(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".tmp-") == std::string::npos) continue;
    paths.push_back(entry.path().string());
  }
  for (const std::string& path : paths) std::filesystem::remove_all(path);
  return paths;
}

class OutOfMemory
    : public ::testing::TestWithParam<std::tuple<World, Flow, Outage>> {
 protected:
  const World& world() const { return world_; }
  const Flow& flow() const { return flow_; }

  // Runs in the child: tries the allocations from tally->at on.
  void RunChild(const std::string& folder, Tally* tally) const;
  // Judges the end of a run.
  void Judge(Host* host, const Held& before, const uint64_t* results,
             Tally* tally) const;
  void RunFlow(Host* host, const std::string& folder, Outage outage,
               int64_t at) const {
    std::filesystem::remove_all(folder + "/new");
    host->RunFlow({outage, at});
  }

  const World world_ = std::get<0>(GetParam());
  const Flow flow_ = std::get<1>(GetParam());
  const Outage outage_ = std::get<2>(GetParam());
};

void OutOfMemory::Judge(Host* host, const Held& before, const uint64_t* results,
                        Tally* tally) const {
  const auto at = static_cast<long long>(tally->at.load());
  JudgeHeld(before, tally);
  // After a single failure there is memory to delete the files of the call.
  const auto left = TakeTemporaryFiles(host->rank(0).folder);
  if (outage_ == Outage::kOnce && !left.empty()) {
    ++tally->wrong;
    tally->Add("allocation %lld: %s stays", at, left[0].c_str());
  }
  bool allowed = true;
  bool exhausted = false;
  for (int r = 0; r < host->ranks(); ++r) {
    const HostRank& rank = host->rank(r);
    exhausted |= rank.code == SHARD_RESOURCE_EXHAUSTED ||
                 (rank.code == SHARD_POISONED &&
                  std::strstr(rank.message, "RESOURCE_EXHAUSTED") != nullptr);
    allowed &= IsAllowed(rank);
    if (rank.code == SHARD_OK && rank.result != results[r]) {
      ++tally->wrong;
      tally->Add("allocation %lld: rank %d has another result", at, r);
    }
    if (rank.late_calls > 0) {
      ++tally->wrong;
      tally->Add("allocation %lld: rank %d: progress of a save that failed", at,
                 r);
    }
  }
  if (!allowed || (!host->IsOk() && !exhausted)) {
    ++tally->wrong;
    host->TellErrors(tally);
  }
  if (!host->IsOk()) return;
  ++tally->tolerated;
  HostRank check;
  check.folder = host->rank(0).folder;
  flow().check(&check);
  FreeAll(&check);
  if (check.code == SHARD_OK) return;
  ++tally->wrong;
  tally->Add("allocation %lld: no error, and then: %s", at, check.message);
}

void OutOfMemory::RunChild(const std::string& folder, Tally* tally) const {
  Host host(world(), flow(), folder);
  host.SaveOnce();
  // Runs the flow before: later runs need not allocate what is made only once.
  for (int i = 0; i < 3; ++i) RunFlow(&host, folder, Outage::kNone, 0);
  uint64_t results[kMaxRanks] = {};
  for (int r = 0; r < host.ranks(); ++r) {
    const HostRank& rank = host.rank(r);
    results[r] = rank.result;
    if (rank.code == SHARD_OK) continue;
    ++tally->wrong;
    tally->Add("the flow fails by itself: %s in %s", rank.message, rank.call);
    return;
  }
  tally->allocations = host.allocations();
  if (tally->stride == 0) {
    // A flow without ranks takes no time.
    const int64_t wanted = kSanitized ? 2 : flow().of_ranks ? 6 : 150;
    tally->stride = std::max<int64_t>(1, tally->allocations / wanted);
  }
  for (;; tally->at += tally->stride) {
    const Held before = HeldNow();
    RunFlow(&host, folder, outage_, tally->at);
    if (AllocationFailed()) {
      ++tally->runs;
      Judge(&host, before, results, tally);
      continue;
    }
    // A rank was too late to open the communicator within its short timeout.
    bool late = false;
    for (int r = 0; r < host.ranks(); ++r) {
      late |= host.rank(r).code == SHARD_DEADLINE_EXCEEDED;
    }
    if (!late) break;
    tally->at -= tally->stride;
  }
}

TEST_P(OutOfMemory, IsAnErrorAndNothingStays) {
  const testing::TempFolder folder(testing::kMemoryFolder);
  const char* const trace = std::getenv("SHARD_TEST_TRACE");
  RunInChildren(
      std::string(world().name) + ", " + flow().name + ", " + NameOf(outage_),
      [&](Tally* tally) {
        if (trace != nullptr) {
          TraceAllocation(std::atoll(trace));
          tally->at = std::atoll(trace);
        }
        RunChild(folder.path(), tally);
      },
      [](Tally* tally) { tally->at += std::max<int64_t>(1, tally->stride); },
      [&](const Tally& tally) {
        // Whether a shutdown needs memory depends on which rank is first.
        if (std::string_view(flow().name) == "shutdown") return;
        EXPECT_GT(tally.runs, 0);
      });
}

// Plans that do not shard would leave out the calls of stages 2 and 3.
TEST(HostFlows, ShardWhatTheirStagesShard) {
  for (const World& world : Worlds()) {
    HostRank rank;
    rank.world = &world;
    MakePlanForFlows(&rank);
    ASSERT_EQ(rank.code, SHARD_OK) << rank.message;
    const char* text = nullptr;
    ASSERT_EQ(shard_plan_warnings(rank.plan, &text), nullptr);
    EXPECT_EQ(std::strstr(text, " whole: with"), nullptr)
        << world.name << ": " << text;
    FreeAll(&rank);
  }
}

std::vector<std::tuple<World, Flow, Outage>> Cases() {
  std::vector<std::tuple<World, Flow, Outage>> cases;
  int pairs = 0;
  for (const World& world : Worlds()) {
    for (const Flow& flow : Flows()) {
      if (!flow.of_ranks && &world != &Worlds()[0]) continue;
      if (!flow.of_comm && world.comm_only) continue;
      ++pairs;
      for (const Outage outage : {Outage::kOnce, Outage::kForGood}) {
        // Under a sanitizer, each pair has one of the two, in turn.
        const bool once = outage == Outage::kOnce;
        if (kSanitized && once != (pairs % 2 == 0)) continue;
        cases.emplace_back(world, flow, outage);
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    All, OutOfMemory, ::testing::ValuesIn(Cases()), [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_" +
             std::get<1>(info.param).name +
             (std::get<2>(info.param) == Outage::kOnce ? "_once" : "_for_good");
    });

}  // namespace
}  // namespace shard
