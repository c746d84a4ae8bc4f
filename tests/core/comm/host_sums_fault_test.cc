// SPDX-License-Identifier: Apache-2.0
//
// A rank is gone, or does not come, while sums pass from host to host: all
// others return in time and name it, wherever on the chain it is.
//
// The short form kills each rank once, and lets one rank in the middle of the
// chain not come. SHARD_TEST_LONG kills each 20 times, and lets ranks of the
// first and of the last host not come, too.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/exchange.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/comm/backends.h"
#include "tests/ranks/shared.h"

namespace shard::testing::host_sums_fault_test {
namespace {

// Hosts of 2, 1 and 2 ranks.
const std::vector<int> kBegins = {0, 2, 3, 5};
constexpr int kRanks = 5;
constexpr double kDeadlineSeconds = 2;  // Of each collective.
const bool kIsLong = std::getenv("SHARD_TEST_LONG") != nullptr;
// What a busy machine adds to the second that a return may take.
constexpr double kSlackSeconds = kSanitized ? 4 : 1;

double Now() {
  return std::chrono::duration<double>(
             Deadline::Clock::now().time_since_epoch())
      .count();
}

// What the ranks tell each other.
struct Board {
  std::atomic<double> fault_at{0};
  std::atomic<int> returned{0};
};

// Reduces until there is an error. `before`: called before each.
template <typename Before>
Status Reduce(Communicator* comm, const Before& before) {
  const RankSet all = RankSet::All(kRanks);
  std::vector<float> tensors(size_t{kRanks} * 60'000, 1);
  std::vector<float> tensor(60'000);
  SHARD_ASSIGN_OR_RETURN(const auto exchange,
                         comm->OpenExchange("exchange", Soon()));
  for (int loop = 0;; ++loop) {
    if (!before(loop)) return Status();
    SHARD_RETURN_IF_ERROR(exchange->ReduceScatter(
        "reduce", all,
        {.send = tensors.data(), .count = tensor.size(), .recv = tensor.data()},
        Deadline::After(kDeadlineSeconds)));
  }
}

// Runs the ranks, and expects that all but the victim return in time with its
// number. `before`: called by the victim before each reduction.
template <typename Before>
void RunWithFault(int victim, StatusCode code, double seconds,
                  const Shared<Board>& board, const Before& before) {
  const TcpHosts hosts(kBegins, "sums=chain");
  const auto results = RunRanks(kRanks, [&](const Rank& rank) {
    const int me = rank.rank();
    auto comm =
        OpenCommunicator(hosts.Url(me), {.rank = me, .world_size = kRanks});
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    const Status status = Reduce(
        comm->get(), [&](int loop) { return me != victim || before(loop); });
    if (me == victim) return;
    const double late = Now() - board->fault_at;
    ++board->returned;
    rank.Report(StrCat(late, " s: ", status.ToString()));
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_EQ(status.rank(), victim) << status.ToString();
    EXPECT_LT(late, seconds + kSlackSeconds) << status.ToString();
  });
  for (const RankResult& result : results) {
    if (result.rank == victim && code == StatusCode::kRankLost) {
      EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
    } else {
      EXPECT_TRUE(result.passed()) << result.ToString();
    }
  }
}

TEST(HostSumsFaultTest, AKilledRankIsNamed) {
  const int attempts = (kIsLong ? 20 : 1) * kRanks;
  for (int attempt = 0; attempt < attempts && !::testing::Test::HasFailure();
       ++attempt) {
    const int victim = attempt % kRanks;
    SCOPED_TRACE(StrCat("rank ", victim, ", attempt ", attempt));
    const Shared<Board> board;
    std::thread killer;
    RunWithFault(victim, StatusCode::kRankLost, 1, board, [&](int loop) {
      if (loop != 2) return true;
      // At a moment that nothing tells, within a round or between two.
      killer = std::thread([&board, attempt] {
        std::this_thread::sleep_for(std::chrono::microseconds(531 * attempt));
        board->fault_at = Now();
        ::kill(::getpid(), SIGKILL);
      });
      return true;
    });
  }
}

TEST(HostSumsFaultTest, ARankThatDoesNotComeIsNamed) {
  for (const int victim :
       kIsLong ? std::vector<int>{0, 2, 4} : std::vector<int>{2}) {
    SCOPED_TRACE(StrCat("rank ", victim));
    const Shared<Board> board;
    RunWithFault(
        victim, StatusCode::kDeadlineExceeded, kDeadlineSeconds + 1, board,
        [&](int loop) {
          if (loop != 2) return true;
          board->fault_at = Now();
          EXPECT_TRUE(ComesTrue([&] { return board->returned == kRanks - 1; }));
          return false;
        });
  }
}

// The ranks of one host ask for another form than the others.
TEST(HostSumsFaultTest, FormsThatDifferAreAnErrorOnAllRanks) {
  const TcpHosts chain(kBegins, "sums=chain");
  const auto url = [&](int rank) {
    std::string text = chain.Url(rank);
    if (rank == 2) text.replace(text.find("sums=chain"), 10, "sums=direct");
    return text;
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto comm =
          OpenCommunicator(url(rank), {.rank = rank, .world_size = kRanks});
      EXPECT_EQ(comm.status().code(), StatusCode::kDesync)
          << comm.status().ToString();
      EXPECT_EQ(comm.status().rank(), 2);
      EXPECT_TRUE(Contains(comm.status().message(),
                           "the ranks differ in the URL: sums: rank 0 has "
                           "chain, rank 2 has direct"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void ExpectUnknown(const std::string& url) {
  const auto comm = OpenCommunicator(url, CommOptions());
  EXPECT_EQ(comm.status().code(), StatusCode::kInvalidArgument)
      << comm.status().ToString();
  EXPECT_TRUE(Contains(comm.status().message(),
                       "sums='ring' is not known; known: direct, chain"));
}

TEST(HostSumsFaultTest, AnUnknownFormIsAnError) {
  ExpectUnknown("tcp://127.0.0.1:29500?sums=ring&rank=0&world_size=1");
}

// "env:" adds the form to the URL that the environment has. (A world of one
// rank does not use that URL.)
TEST(HostSumsFaultTest, AnUnknownFormIsAnErrorWithALauncher) {
  ::setenv("SHARD_RENDEZVOUS", "tcp://127.0.0.1:29500?job=x", 1);
  ::setenv("SHARD_WORLD_SIZE", "2", 1);
  ::setenv("SHARD_RANK", "0", 1);
  ExpectUnknown("env:?sums=ring");
  for (const char* name :
       {"SHARD_RENDEZVOUS", "SHARD_WORLD_SIZE", "SHARD_RANK"}) {
    ::unsetenv(name);
  }
}

}  // namespace
}  // namespace shard::testing::host_sums_fault_test
