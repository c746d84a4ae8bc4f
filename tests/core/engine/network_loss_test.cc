// SPDX-License-Identifier: Apache-2.0
//
// Ranks on hosts of their own network that train, while a rank or a helper is
// killed, exits or is stopped: the calls of all engines return in time, and
// name the right rank.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/comm/network/namespace_hosts.h"
#include "tests/core/engine/rank_training.h"
#include "tests/namespaces/namespaces.h"
#include "tests/ranks/ranks.h"
#include "tests/ranks/shared.h"

namespace shard::testing::network_loss_test {
namespace {

// Three hosts.
const std::vector<int> kBegins = {0, 2, 3, 5};
constexpr int kHosts = 3;
constexpr int kRanks = 5;
// A host that is silent for a second or two is found to be before, though a
// helper may be late once.
constexpr double kDeadlineSeconds = kSanitized ? 8 : 4;
// What a busy machine adds to the second that a return may take.
constexpr double kSlackSeconds = kSanitized ? 4 : 1;

enum class Kind { kKillRank, kStopRank, kKillHelper, kExitHelper, kStopHelper };

struct Fault {
  Kind kind = Kind::kKillRank;
  int target = 0;  // A rank, or a host.
  int stage = 1;
  bool of_host() const { return kind >= Kind::kKillHelper; }
};

std::string Describe(const Fault& fault) {
  constexpr const char* kNames[] = {"kill rank", "stop rank", "kill helper",
                                    "exit of helper", "stop helper"};
  return StrCat(kNames[static_cast<int>(fault.kind)], " ", fault.target,
                " in stage ", fault.stage);
}

double Now() {
  return std::chrono::duration<double>(
             Deadline::Clock::now().time_since_epoch())
      .count();
}

struct Board {
  std::atomic<pid_t> pids[kRanks] = {};
  std::atomic<int> steps[kRanks] = {};
  std::atomic<bool> ended[kRanks] = {};
  std::atomic<double> fault_at = 0;
};

// Steps until a call fails, and returns its error.
Status TrainOn(const Training& training,
               const std::shared_ptr<Communicator>& comm, Board* board) {
  const int rank = comm->rank();
  PlanOptions options = training.plan;
  SHARD_ASSIGN_OR_RETURN(options.groups,
                         PlanGroups(*training.model, training.optimizer));
  SHARD_ASSIGN_OR_RETURN(const auto plan,
                         Plan::Create(training.model, options));
  EXPECT_TRUE(ShardsAsItsStage(*plan));
  SHARD_ASSIGN_OR_RETURN(const auto engine,
                         Engine::Create(plan, comm, training.engine));
  SHARD_RETURN_IF_ERROR(engine->BroadcastParams(0));
  Status status;
  while (status.ok()) {
    ++board->steps[rank];
    for (size_t p = 0; p < training.model->params().size(); ++p) {
      SHARD_ASSIGN_OR_RETURN(const Engine::Tensor grad,
                             engine->Grad(static_cast<ParamId>(p)));
      Store(DType::kF32, GradientValues(training, rank, 1, p), grad.data);
    }
    status = engine->Step(training.step, nullptr);
    if (status.ok()) status = engine->ZeroGrad();
  }
  // The engine has ended, and says so at once.
  const double before = Now();
  EXPECT_FALSE(engine->Step(training.step, nullptr).ok());
  EXPECT_LT(Now() - before, 1 + kSlackSeconds);
  return status;
}

class NetworkLossTest : public NamespaceHostsTest {
 protected:
  void RunWith(const Fault& fault);

 private:
  void Inject(const Fault& fault, Board* board);
  void Expect(const Fault& fault, int rank, const Status& status);
};

void NetworkLossTest::Inject(const Fault& fault, Board* board) {
  ASSERT_TRUE(ComesTrue([&] {
    return std::all_of(board->steps, board->steps + kRanks,
                       [](const auto& steps) { return steps >= 3; });
  }));
  const pid_t pid = fault.of_host() ? HelperOn(*hosts_, fault.target)
                                    : board->pids[fault.target].load();
  ASSERT_GT(pid, 0);
  board->fault_at = Now();
  const bool stops =
      fault.kind == Kind::kStopRank || fault.kind == Kind::kStopHelper;
  if (!stops) {
    ::kill(pid, fault.kind == Kind::kExitHelper ? SIGUSR1 : SIGKILL);
    return;
  }
  ::kill(pid, SIGSTOP);
  // Ends it when all others have returned, so that nothing is left.
  EXPECT_TRUE(ComesTrue([&] {
    for (int rank = 0; rank < kRanks; ++rank) {
      const bool is_target = !fault.of_host() && rank == fault.target;
      if (!is_target && !board->ended[rank]) return false;
    }
    return true;
  }));
  ::kill(pid, SIGKILL);
}

void NetworkLossTest::Expect(const Fault& fault, int rank,
                             const Status& status) {
  const int lost = fault.of_host() ? kBegins[static_cast<size_t>(fault.target)]
                                   : fault.target;
  if (fault.kind == Kind::kStopRank) {
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
        << status.ToString();
    EXPECT_EQ(status.rank(), lost) << status.ToString();
  } else if (fault.kind == Kind::kStopHelper &&
             HostOf(kBegins, rank) == fault.target) {
    // Its ranks cannot know that; they know who did not come: ranks of other
    // hosts, and no rank of theirs.
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
        << status.ToString();
    ASSERT_GE(status.rank(), 0) << status.ToString();
    EXPECT_NE(HostOf(kBegins, status.rank()), fault.target)
        << status.ToString();
  } else {
    EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
    EXPECT_EQ(status.rank(), lost) << status.ToString();
  }
}

void NetworkLossTest::RunWith(const Fault& fault) {
  SCOPED_TRACE(Describe(fault));
  MakeHosts(kHosts);
  // In the helpers, which have it from the ranks that start them.
  const std::string library =
      std::filesystem::canonical("tests/core/engine/libexit_on_signal.so");
  const Shared<Board> board;
  const Training training = SmallTraining(kRanks, fault.stage);
  const std::string url =
      StrCat("tcp://", Namespaces::Address(0), ":7077?trust=network&meet=30");
  const auto results = RunRanks(kRanks + 1, [&](const Rank& rank) {
    const int me = rank.rank();
    if (me == kRanks) return Inject(fault, &*board);
    if (fault.kind == Kind::kExitHelper) {
      ::setenv("LD_PRELOAD", library.c_str(), 1);
    }
    ASSERT_OK(hosts_->Enter(HostOf(kBegins, me)));
    board->pids[me] = ::getpid();
    const auto comm = OpenCommunicator(
        url, {.rank = me, .world_size = kRanks, .timeout = kDeadlineSeconds});
    ASSERT_OK(comm);
    const Status status = TrainOn(training, *comm, &*board);
    const double seconds = Now() - board->fault_at;
    board->ended[me] = true;
    rank.Report(StrCat(seconds, " s: ", status.ToString()));
    EXPECT_GT(board->fault_at, 0) << status.ToString();
    EXPECT_LT(seconds, kDeadlineSeconds + 1 + kSlackSeconds)
        << status.ToString();
    Expect(fault, me, status);
  });
  for (const RankResult& result : results) {
    if (!fault.of_host() && result.rank == fault.target) {
      EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
    } else {
      EXPECT_TRUE(result.passed()) << result.ToString();
    }
  }
  for (int host = 0; host < kHosts; ++host) ExpectNothingLeft(host);
}

TEST_F(NetworkLossTest, EachHelper) {
  for (const Kind kind :
       {Kind::kKillHelper, Kind::kExitHelper, Kind::kStopHelper}) {
    for (int host = 0; host < kHosts; ++host) {
      RunWith({.kind = kind, .target = host, .stage = host % 2});
      if (HasFailure()) return;
    }
  }
}

TEST_F(NetworkLossTest, EachRank) {
  std::mt19937 random(5);
  const int stopped = std::uniform_int_distribution<int>(0, kRanks - 1)(random);
  for (int rank = 0; rank < kRanks; ++rank) {
    RunWith({.kind = Kind::kKillRank, .target = rank, .stage = rank % 2});
    if (HasFailure()) return;
  }
  RunWith({.kind = Kind::kStopRank, .target = stopped});
}

}  // namespace
}  // namespace shard::testing::network_loss_test
