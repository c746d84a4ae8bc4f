// SPDX-License-Identifier: Apache-2.0
//
// A rank is killed, at every phase of a run and at random moments: the others
// get kRankLost that names it, no later than the deadline and a second.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "core/optim/groups.h"
#include "tests/ranks/ranks.h"

namespace shard {
namespace {

using testing::Rank;
using testing::RankResult;
using testing::RunRanks;

constexpr int kWorldSize = 3;
constexpr double kDeadline = 5;

StatusOr<std::shared_ptr<const Plan>> MakePlan(int64_t width) {
  auto model = std::make_shared<Model>("Test");
  for (const char* name : {"a", "b", "c"}) {
    SHARD_RETURN_IF_ERROR(
        model->AddParam(kRootModule, name, DType::kF32, {width, 100}).status());
  }
  PlanOptions options;
  options.world_size = kWorldSize;
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, "adamw"));
  return Plan::Create(std::move(model), options);
}

// A whole run: meet, create, broadcast, `steps` steps, both forms, shut down.
Status Train(const std::string& url, const CommOptions& options, int64_t width,
             int steps) {
  SHARD_ASSIGN_OR_RETURN(const auto plan, MakePlan(width));
  SHARD_ASSIGN_OR_RETURN(const auto comm, OpenCommunicator(url, options));
  SHARD_ASSIGN_OR_RETURN(const auto engine, Engine::Create(plan, comm));
  SHARD_RETURN_IF_ERROR(engine->BroadcastParams(0));
  for (int step = 0; step < steps; ++step) {
    StepOptions step_options;
    step_options.max_grad_norm = step % 2 == 0 ? 0 : 1;
    StepReport report;
    SHARD_RETURN_IF_ERROR(engine->Step(step_options, &report));
  }
  return comm->Shutdown(Deadline::After(kDeadline));
}

CommOptions OptionsOf(int rank) {
  CommOptions options;
  options.rank = rank;
  options.world_size = kWorldSize;
  options.timeout = kDeadline;
  return options;
}

// What a survivor reports: "RANK_LOST 1 <message>".
std::string Outcome(const Status& status) {
  return StrCat(StatusCodeName(status.code()), " ", status.rank(), " ",
                status.message());
}

void ExpectNamedTheVictim(const std::vector<RankResult>& results, int victim,
                          const std::string& when) {
  const double died = results[static_cast<size_t>(victim)].seconds;
  for (const RankResult& result : results) {
    if (result.rank == victim) {
      EXPECT_EQ(result.signal, SIGKILL) << when << ": " << result.ToString();
      continue;
    }
    EXPECT_TRUE(result.passed()) << when << ": " << result.ToString();
    EXPECT_EQ(result.report.rfind(StrCat("RANK_LOST ", victim, " "), 0), 0u)
        << when << ": " << result.ToString();
    EXPECT_LE(result.seconds - died, kDeadline + 1) << when;
  }
}

class KillAtPhaseTest
    : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(KillAtPhaseTest, OthersNameTheLostRank) {
  const std::string phase = std::get<0>(GetParam());
  const int victim = std::get<1>(GetParam());
  const std::string url = "shm:" + testing::UniqueName();
  const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
    CommOptions options = OptionsOf(rank.rank());
    if (rank.rank() == victim) {
      options.phase_hook = [&](std::string_view what) {
        if (what == phase) kill(getpid(), SIGKILL);
      };
    }
    const Status status = Train(url, options, 50, 4);
    rank.Report(Outcome(status));
    EXPECT_NE(rank.rank(), victim)
        << "no collective was called '" << phase << "': " << status.ToString();
  });
  ExpectNamedTheVictim(results, victim, phase);
}

// Rank 0 makes the memory and hosts the meeting; the last owns the end of each
// tensor's shards.
INSTANTIATE_TEST_SUITE_P(
    AllPhases, KillAtPhaseTest,
    ::testing::Combine(
        ::testing::Values("create engine", "the plan", "allocate parameters",
                          "allocate parameters: memory created",
                          "allocate parameters: memory mapped",
                          "allocate gradients", "allocate optimizer states",
                          "broadcast parameters", "step: gradients ready",
                          "step: global norm", "step: parameters published",
                          "shutdown"),
        ::testing::Values(0, 1, 2)),
    [](const auto& info) {
      std::string name =
          StrCat(std::get<0>(info.param), " rank ", std::get<1>(info.param));
      for (char& c : name) {
        if (c == ' ' || c == ':') c = '_';
      }
      return name;
    });

// Whenever it happens: between collectives, inside a kernel, while others wait.
TEST(KillTest, AtRandomMoments) {
  const int rounds = std::getenv("SHARD_TEST_LONG") != nullptr ? 1000 : 40;
  std::mt19937 generator(20240607);
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    const auto delay = std::chrono::microseconds(generator() % 30000);
    const int victim = static_cast<int>(generator() % kWorldSize);
    const std::string url = "shm:" + testing::UniqueName();
    const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
      const auto comm_options = OptionsOf(rank.rank());
      std::thread killer;
      CommOptions options = comm_options;
      if (rank.rank() == victim) {
        // Not before the ranks have met: until then nobody knows the victim.
        options.phase_hook = [&](std::string_view what) {
          if (killer.joinable() || what.rfind("rendezvous:", 0) == 0) return;
          killer = std::thread([delay] {
            std::this_thread::sleep_for(delay);
            kill(getpid(), SIGKILL);
          });
        };
      }
      // More steps than the longest delay has time for.
      const Status status = Train(url, options, 20000, 1000000);
      rank.Report(Outcome(status));
      if (killer.joinable()) killer.join();
    });
    ExpectNamedTheVictim(
        results, victim,
        StrCat("round ", round, ", rank ", victim, ", ", delay.count(), " us"));
  }
}

}  // namespace
}  // namespace shard
