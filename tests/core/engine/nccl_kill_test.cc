// SPDX-License-Identifier: Apache-2.0
//
// A rank that trains by NCCL is a process, of one host or of two, and is killed
// at a random moment. The others get kRankLost with its name, and then train on
// without it, with new engines in the same processes.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/dice.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/comm/tcp_hosts.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"
#include "tests/ranks/ranks.h"

namespace shard {
namespace {

using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::Dice;
using testing::Rank;
using testing::RunRanks;

constexpr int kRanks = 3;
constexpr double kDeadline = 5;
// From the kill to the end of the others, who train once more.
constexpr double kMost = kDeadline + (kSanitized ? 10 : 1);

CommOptions OptionsOf(const Form& form, int rank) {
  CommOptions options;
  options.rank = rank;
  options.world_size = form.world_size;
  options.timeout = kSanitized ? 60 : 30;
  return options;
}

Status Train(RankTraining* rank, int steps) {
  SHARD_RETURN_IF_ERROR(rank->Create());
  SHARD_RETURN_IF_ERROR(rank->Fill());
  for (int step = 1; step <= steps; ++step) {
    SHARD_RETURN_IF_ERROR(rank->Step(step));
  }
  return Status();
}

// Trains one step. Returns the bits of the parameters.
std::string TrainOnce(const Form& form, const std::string& name, int rank) {
  const auto comm = OpenCommunicator(StrCat("shm:", name, "?direct=0"),
                                     OptionsOf(form, rank));
  EXPECT_OK(comm);
  RankTraining training(form, MakePlan(form), *comm, kDeadline);
  EXPECT_OK(Train(&training, 1));
  const auto values = training.Read();
  EXPECT_OK(values);
  uint64_t hash = 0;
  for (const float value : *values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 0x9e3779b97f4a7c15;
  }
  training.End();
  EXPECT_OK((*comm)->Shutdown(Deadline::After(kDeadline)));
  return StrCat(" then ", hash);
}

// Begins with fakes of this process.
void BeginFakes() {
  testing::fake_cuda::Options gpus;
  gpus.devices = kRanks;
  testing::ResetWithNccl(gpus);
}

// Returns what two ranks report that nothing happens to.
std::string ReportOf(const Form& form) {
  const std::string name = testing::UniqueName();
  const auto results = RunRanks(form.world_size, [&](const Rank& rank) {
    BeginFakes();
    rank.Report(TrainOnce(form, name, rank.rank()));
    testing::FakeNccl::Check();
  });
  testing::ExpectAllPassed(results);
  EXPECT_EQ(results[0].report, results[1].report);
  return results[0].report;
}

TEST(NcclKillTest, TheOthersNameTheDeadRankAndTrainOn) {
  const int rounds = std::getenv("SHARD_TEST_LONG") != nullptr ? 100 : 8;
  std::map<int, std::string> expected;
  double longest = 0;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    Dice dice(static_cast<uint64_t>(round));
    const Form form = {.stage = round % 4, .overlap = dice.Chance(50)};
    Form later = form;
    later.world_size = kRanks - 1;
    std::string& report = expected[form.stage];
    if (report.empty()) report = ReportOf(later);
    const int victim = dice.Roll(kRanks);
    const auto delay = std::chrono::microseconds(dice.Roll(120000));
    SCOPED_TRACE(StrCat("round ", round, ": ", form.Text(), ", rank ", victim,
                        " is killed after ", delay.count(), " us",
                        round / 4 % 2 == 1 ? ", on two hosts" : ""));
    const std::string name = testing::UniqueName();
    // Each stage on one host, and then on two.
    std::optional<testing::TcpHosts> hosts;
    if (round / 4 % 2 == 1) hosts.emplace(std::vector<int>{0, 1, kRanks});
    const auto results = RunRanks(kRanks, [&](const Rank& rank) {
      BeginFakes();
      CommOptions options = OptionsOf(form, rank.rank());
      std::once_flag once;
      std::thread killer;
      // Several hosts meet in more phases than those of a name.
      std::atomic<bool> has_met = !hosts;
      if (rank.rank() == victim) {
        // Until the ranks have met, none knows the victim.
        options.phase_hook = [&](std::string_view what) {
          if (!has_met || what.rfind("rendezvous:", 0) == 0) return;
          std::call_once(once, [&] {
            killer = std::thread([delay] {
              std::this_thread::sleep_for(delay);
              ::kill(::getpid(), SIGKILL);
            });
          });
        };
      }
      if (hosts) ASSERT_OK(hosts->Enter(rank.rank()));
      const auto comm = OpenCommunicator(
          hosts ? hosts->Url(rank.rank()) : StrCat("shm:", name, "?direct=0"),
          options);
      has_met = true;
      // The longest delay ends before this many steps.
      Status status = comm.status();
      if (comm.ok()) {
        RankTraining training(form, MakePlan(form), *comm, kDeadline);
        status = Train(&training, 1000000);
      }
      if (killer.joinable()) killer.join();
      ExpectError(status, StatusCode::kRankLost, {});
      EXPECT_EQ(status.rank(), victim) << status.ToString();
      rank.Report(TrainOnce(later, name + "-later",
                            rank.rank() - (rank.rank() > victim ? 1 : 0)));
      testing::FakeNccl::Check();
    });
    const double died = results[static_cast<size_t>(victim)].seconds;
    for (const testing::RankResult& result : results) {
      if (result.rank == victim) {
        EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
        continue;
      }
      EXPECT_TRUE(result.passed()) << result.ToString();
      EXPECT_EQ(result.report, report);
      EXPECT_LE(result.seconds - died, kMost);
      longest = std::max(longest, result.seconds - died);
    }
  }
  std::printf("%d kills, at most %.2f s until the others have trained again\n",
              rounds, longest);
}

}  // namespace
}  // namespace shard
