// SPDX-License-Identifier: Apache-2.0
//
// Ranks on hosts of their own network, with real helpers, while one rank, one
// helper or one link fails at a random moment. All survivors return in time and
// name the right rank; no process and no socket is left. SHARD_TEST_LONG makes
// 1,000 faults.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/comm/exchange.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/comm/network/namespace_hosts.h"
#include "tests/namespaces/namespaces.h"
#include "tests/ranks/ranks.h"
#include "tests/ranks/shared.h"

namespace shard::testing::host_faults_test {
namespace {

constexpr int kMostRanks = 8;
constexpr double kDeadlineSeconds = 2;  // Of each collective.
// Of the meeting. Hosts bear a quarter of it as silence, which has to pass
// before a collective's deadline does.
constexpr double kMeetSeconds = 4;
// What a busy machine adds to the second that a return may take.
constexpr double kSlackSeconds = kSanitized ? 4 : 1;

enum class Kind {
  kKillRank,
  kExitRank,
  kStopRank,
  kKillHelper,
  kStopHelper,
  kCutLink,
};
constexpr Kind kKinds[] = {Kind::kKillRank,   Kind::kExitRank,
                           Kind::kStopRank,   Kind::kKillHelper,
                           Kind::kStopHelper, Kind::kCutLink};

std::string NameOf(Kind kind) {
  constexpr const char* kNames[] = {"KillRank",   "ExitRank",   "StopRank",
                                    "KillHelper", "StopHelper", "CutLink"};
  return kNames[static_cast<int>(kind)];
}

struct Fault {
  Kind kind = Kind::kKillRank;
  int target = 0;         // A rank, or a host.
  int after_loops = 0;    // Of all ranks; -1: while they meet.
  int microseconds = 0;   // Which pass then.
  bool on_chain = false;  // Sums pass from host to host.
  double meet_seconds = kMeetSeconds;
  double deadline_seconds = kDeadlineSeconds;
  bool of_host() const { return kind >= Kind::kKillHelper; }
  std::string ToString() const {
    return StrCat(NameOf(kind), " ", target, " after ", after_loops,
                  " loops and ", microseconds, " us",
                  on_chain ? ", on a chain" : "");
  }
};

// The numbers of the ranks at which hosts begin, and their end.
std::vector<int> BeginsFor(int world_size) {
  if (world_size == 2) return {0, 1, 2};
  if (world_size == 3) return {0, 2, 3};
  return {0, 3, 5, 8};
}

double Now() {
  return std::chrono::duration<double>(
             Deadline::Clock::now().time_since_epoch())
      .count();
}

// What the processes of a test tell each other.
struct Board {
  std::atomic<pid_t> pids[kMostRanks];
  std::atomic<int> loops[kMostRanks];
  std::atomic<bool> ended[kMostRanks];
  std::atomic<double> fault_at = 0;
  std::atomic<int> exits = -1;  // The rank that ends itself, or -1.

  Board() {
    for (auto& each : loops) each = -1;
  }
};

// Calls collectives of every kind until one fails.
Status Work(Communicator* comm, Board* board, double deadline_seconds) {
  const int rank = comm->rank();
  const auto soon = [&] { return Deadline::After(deadline_seconds); };
  const RankSet all = RankSet::All(comm->world_size());
  const auto ranks = static_cast<size_t>(comm->world_size());
  std::vector<float> tensor(30'000);
  std::vector<float> tensors(tensor.size() * ranks);
  SHARD_ASSIGN_OR_RETURN(const auto exchange,
                         comm->OpenExchange("exchange", soon()));
  for (int loop = 0;; ++loop) {
    board->loops[rank] = loop;
    if (board->exits == rank) ::_exit(0);
    SHARD_RETURN_IF_ERROR(comm->Barrier("barrier", soon()));
    SHARD_RETURN_IF_ERROR(exchange->ReduceScatter(
        "reduce", all,
        {.send = tensors.data(), .count = tensor.size(), .recv = tensor.data()},
        soon()));
    SHARD_RETURN_IF_ERROR(exchange->AllGatherBlocks(
        "gather blocks", all, tensor.data(), tensor.size() * sizeof(float),
        tensors.data(), soon()));
    SHARD_RETURN_IF_ERROR(
        comm->Broadcast("broadcast", loop % comm->world_size(), tensor.data(),
                        tensor.size() * sizeof(float), soon()));
  }
}

class HostFaultsTest : public NamespaceHostsTest {
 protected:
  // Runs a world in which a fault happens, and expects what has to follow.
  void RunWith(int world_size, const Fault& fault);

 private:
  void Inject(const Fault& fault, Board* board, int world_size);
};

void HostFaultsTest::Inject(const Fault& fault, Board* board, int world_size) {
  const auto helper = [&] { return HelperOn(*hosts_, fault.target); };
  ASSERT_TRUE(ComesTrue([&] {
    if (fault.after_loops < 0) {
      return fault.of_host() ? helper() > 0 : board->pids[fault.target] > 0;
    }
    return std::all_of(
        board->loops, board->loops + world_size,
        [&](const auto& loops) { return loops >= fault.after_loops; });
  }));
  // A moment that nothing tells.
  std::this_thread::sleep_for(std::chrono::microseconds(fault.microseconds));
  board->fault_at = Now();
  pid_t stopped = -1;
  switch (fault.kind) {
    case Kind::kKillRank:
      ::kill(board->pids[fault.target], SIGKILL);
      break;
    case Kind::kExitRank:
      board->exits = fault.target;
      break;
    case Kind::kStopRank:
      stopped = board->pids[fault.target];
      break;
    case Kind::kKillHelper:
    case Kind::kStopHelper: {
      const pid_t pid = helper();
      ASSERT_GT(pid, 0) << "the helper had ended before";
      if (fault.kind == Kind::kKillHelper) {
        ::kill(pid, SIGKILL);
      } else {
        stopped = pid;
      }
      break;
    }
    case Kind::kCutLink:
      EXPECT_OK(hosts_->CutLink(fault.target));
      break;
  }
  if (stopped > 0) {
    ::kill(stopped, SIGSTOP);
    // Ends it when all others have returned, so that nothing is left.
    EXPECT_TRUE(ComesTrue([&] {
      for (int rank = 0; rank < world_size; ++rank) {
        const bool is_target = !fault.of_host() && rank == fault.target;
        if (!is_target && !board->ended[rank]) return false;
      }
      return true;
    }));
    ::kill(stopped, SIGKILL);
  }
}

void HostFaultsTest::RunWith(int world_size, const Fault& fault) {
  SCOPED_TRACE(StrCat(world_size, " ranks, ", fault.ToString()));
  const std::vector<int> begins = BeginsFor(world_size);
  const int hosts = static_cast<int>(begins.size()) - 1;
  MakeHosts(hosts);
  const Shared<Board> board;
  const std::string url =
      StrCat("tcp://", Namespaces::Address(0),
             ":7077?trust=network&meet=", fault.meet_seconds,
             "&sums=", fault.on_chain ? "chain" : "direct");
  const auto results = RunRanks(world_size + 1, [&](const Rank& rank) {
    const int me = rank.rank();
    if (me == world_size) {
      Inject(fault, &*board, world_size);
      return;
    }
    ASSERT_OK(hosts_->Enter(HostOf(begins, me)));
    board->pids[me] = ::getpid();
    const CommOptions options = {.rank = me,
                                 .world_size = world_size,
                                 .timeout = fault.deadline_seconds};
    auto comm = OpenCommunicator(url, options);
    const Status status =
        comm.ok() ? Work(comm->get(), &*board, fault.deadline_seconds)
                  : comm.status();
    const double seconds = Now() - board->fault_at;
    board->ended[me] = true;
    rank.Report(StrCat(seconds, " s: ", status.ToString()));
    EXPECT_GT(board->fault_at, 0) << status.ToString();
    const double bound =
        fault.after_loops < 0 ? fault.meet_seconds : fault.deadline_seconds;
    EXPECT_LT(seconds, bound + 1 + kSlackSeconds) << status.ToString();
    EXPECT_FALSE(status.ok());
    if (fault.after_loops < 0) return;
    if (fault.kind == Kind::kStopRank) {
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
          << status.ToString();
      EXPECT_EQ(status.rank(), fault.target) << status.ToString();
    } else if (!fault.of_host()) {
      EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
      EXPECT_EQ(status.rank(), fault.target) << status.ToString();
    } else if (HostOf(begins, me) != fault.target ||
               fault.kind == Kind::kKillHelper) {
      EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
      EXPECT_EQ(status.rank(), begins[static_cast<size_t>(fault.target)])
          << status.ToString();
    }
  });
  for (const RankResult& result : results) {
    const bool is_target = !fault.of_host() && result.rank == fault.target;
    if (is_target && fault.kind == Kind::kExitRank) {
      EXPECT_EQ(result.exit_code, 0) << result.ToString();
    } else if (is_target) {
      EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
    } else {
      EXPECT_TRUE(result.passed()) << result.ToString();
    }
  }
  for (int host = 0; host < hosts; ++host) ExpectNothingLeft(host);
}

// Each rank of each world is killed. Other faults meet one that is drawn, and
// in the long form each.
TEST_F(HostFaultsTest, EachKind) {
  const bool is_long = std::getenv("SHARD_TEST_LONG") != nullptr;
  std::mt19937 random(7);
  for (const int world_size : {2, 3, 8}) {
    const auto hosts = static_cast<int>(BeginsFor(world_size).size()) - 1;
    for (const Kind kind : kKinds) {
      Fault fault = {.kind = kind, .after_loops = 3};
      const int targets = fault.of_host() ? hosts : world_size;
      const bool each = is_long || kind == Kind::kKillRank;
      const int drawn =
          std::uniform_int_distribution<int>(0, targets - 1)(random);
      for (int target = 0; target < targets; ++target) {
        if (!each && target != drawn) continue;
        fault.target = target;
        RunWith(world_size, fault);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(HostFaultsTest, EachKindOnAChain) {
  std::mt19937 random(8);
  for (const Kind kind : kKinds) {
    Fault fault = {.kind = kind, .after_loops = 3, .on_chain = true};
    const int targets = fault.of_host() ? 3 : 8;
    fault.target = std::uniform_int_distribution<int>(0, targets - 1)(random);
    RunWith(8, fault);
    if (HasFailure()) return;
  }
}

// Silence counts by the time of a wait, too, so that a host is lost before the
// others run out of time, however long hosts may take to meet: a quarter of
// that is longer than the deadline.
TEST_F(HostFaultsTest, ASilentHostIsLostBeforeADeadline) {
  RunWith(3, {.kind = Kind::kCutLink,
              .target = 1,
              .after_loops = 3,
              .meet_seconds = 60,
              .deadline_seconds = 4});
}

TEST_F(HostFaultsTest, WhileTheyMeet) {
  std::mt19937 random(9);
  for (const Kind kind : kKinds) {
    if (kind == Kind::kExitRank) continue;  // Which calls nothing by then.
    Fault fault = {.kind = kind, .after_loops = -1};
    const int targets = fault.of_host() ? 2 : 3;
    fault.target = std::uniform_int_distribution<int>(0, targets - 1)(random);
    RunWith(3, fault);
    if (HasFailure()) return;
  }
}

TEST_F(HostFaultsTest, RandomFaults) {
  const int faults = std::getenv("SHARD_TEST_LONG") != nullptr ? 1000 : 12;
  std::mt19937 random(19);
  const auto below = [&](int end) {
    return std::uniform_int_distribution<int>(0, end - 1)(random);
  };
  constexpr int kWorlds[] = {2, 3, 8};
  for (int i = 0; i < faults && !HasFailure(); ++i) {
    const int world_size = kWorlds[below(3)];
    Fault fault = {.kind = kKinds[below(6)],
                   .after_loops = below(20),
                   .microseconds = below(3000),
                   .on_chain = i % 2 == 0};
    const auto hosts = static_cast<int>(BeginsFor(world_size).size()) - 1;
    fault.target = below(fault.of_host() ? hosts : world_size);
    RunWith(world_size, fault);
  }
}

}  // namespace
}  // namespace shard::testing::host_faults_test
