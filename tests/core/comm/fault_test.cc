// SPDX-License-Identifier: Apache-2.0
//
// The errors of the ranks when one of them is late, gone, wrong or aborts.
// Every rank must see the same.

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <tuple>

#include "core/comm/check_agreement.h"
#include "core/comm/communicator.h"
#include "core/comm/exchange.h"
#include "tests/core/comm/backends.h"

namespace shard::testing::fault_test {
namespace {

class FaultTest : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
  // Runs a group without a Shutdown at the end: the group is broken by then.
  void Run(const std::function<void(Communicator*)>& body) {
    RunGroup(backend(), world_size(), body, /*shutdown=*/false);
  }
};

TEST_P(FaultTest, DifferentWhatIsDesyncOnAllRanks) {
  Run([this](Communicator* comm) {
    const int odd = world_size() - 1;
    const Status status = comm->Barrier(
        comm->rank() == odd ? "load checkpoint" : "step: gradients ready",
        Soon());
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_EQ(status.rank(), odd);
    EXPECT_TRUE(Contains(status.message(),
                         "rank 0 called barrier 'step: gradients ready'"));
    EXPECT_TRUE(
        Contains(status.message(),
                 StrCat("rank ", odd, " called barrier 'load checkpoint'")));
    // The error stays, with the first message.
    const Status later = comm->Barrier("next", Soon());
    EXPECT_EQ(later.code(), StatusCode::kPoisoned);
    EXPECT_TRUE(Contains(later.message(), "load checkpoint"));
  });
}

TEST_P(FaultTest, DifferentSizeAndOperationAreDesync) {
  Run([this](Communicator* comm) {
    std::vector<char> all(20000 * static_cast<size_t>(world_size()));
    std::vector<char> mine(20000);
    const size_t bytes = comm->rank() == 0 ? 20000 : 16;
    const Status status =
        comm->AllGather("sizes", mine.data(), bytes, all.data(), Soon());
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_TRUE(Contains(status.message(), "'sizes' of 20000 bytes"));
    EXPECT_TRUE(Contains(status.message(), "'sizes' of 16 bytes"));
  });
  Run([](Communicator* comm) {
    const Status status =
        comm->rank() == 0
            ? comm->Barrier("same", Soon())
            : comm->Allocate("same", 64, SymmetricKind::kPerHost, Soon())
                  .status();
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_TRUE(Contains(status.message(), "barrier 'same'"));
    EXPECT_TRUE(
        Contains(status.message(), "allocation per host 'same' of 64 bytes"));
  });
}

// Texts that agree in the part that the message shows still differ.
TEST_P(FaultTest, LongTextsAreComparedWhole) {
  Run([](Communicator* comm) {
    std::string what(200, 'w');
    what += comm->rank() == 0 ? "0" : "1";
    EXPECT_EQ(comm->Barrier(what, Soon()).code(), StatusCode::kDesync);
  });
}

// There are two groups: the second tells the late rank that the first has
// failed.
TEST_P(FaultTest, DeadlineNamesTheMissingAndPoisonsTheLate) {
  const std::string url = UrlFor(backend(), UniqueName(), world_size());
  const std::string side = UrlFor(backend(), UniqueName(), world_size());
  RunEach(backend(), world_size(), [&](int rank) {
    const CommOptions options = {.rank = rank, .world_size = world_size()};
    auto comm = OpenCommunicator(url, options);
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    auto signal = OpenCommunicator(side, options);
    ASSERT_TRUE(signal.ok()) << signal.status().ToString();
    SHARD_ASSERT_OK((*comm)->Barrier("first", Soon()));
    const int late = world_size() - 1;
    if (rank != late) {
      const Status status = (*comm)->Barrier("second", Deadline::After(0.2));
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
      EXPECT_EQ(status.rank(), late);
      EXPECT_EQ(status.message(),
                StrCat("'second': 1 of ", world_size(),
                       " ranks did not enter it within 0.2 s: rank [", late,
                       "]; the last it entered was barrier 'first'; look where "
                       "it is now, or give a longer timeout"));
    }
    SHARD_ASSERT_OK((*signal)->Barrier("has failed", Soon()));
    const Status later = (*comm)->Barrier("second", Soon());
    EXPECT_EQ(later.code(), StatusCode::kPoisoned);
    EXPECT_TRUE(Contains(later.message(), "DEADLINE_EXCEEDED: 'second': 1 of"));
    SHARD_EXPECT_OK((*signal)->Shutdown(Soon()));
  });
}

TEST_P(FaultTest, AbortEndsTheGroup) {
  Run([this](Communicator* comm) {
    SHARD_ASSERT_OK(comm->Barrier("start", Soon()));
    const int aborting = world_size() - 1;
    Status status;
    if (comm->rank() == aborting) {
      comm->Abort(InvalidArgument("loss is nan"));
      comm->Abort(InvalidArgument("a second reason"));
    }
    status = comm->Barrier("step", Soon());
    EXPECT_EQ(status.code(), StatusCode::kPoisoned);
    EXPECT_EQ(status.rank(), aborting);
    EXPECT_EQ(status.message(),
              StrCat("rank ", aborting,
                     " aborted the group: INVALID_ARGUMENT: loss is nan"));
    const Status again = comm->Shutdown(Soon());
    EXPECT_EQ(again.code(), StatusCode::kPoisoned);
    EXPECT_EQ(again.message(), status.message());
  });
}

// An abort from another thread ends a wait.
TEST(AbortTest, AnotherThreadEndsAWait) {
  const std::string url = UrlFor(Backend::kThreads, UniqueName(), 2);
  std::atomic<bool> entered{false};
  std::atomic<bool> ended{false};
  RunEach(Backend::kThreads, 2, [&](int rank) {
    CommOptions options = {.rank = rank};
    if (rank == 0) {
      options.phase_hook = [&](std::string_view what) {
        if (what == "waits") entered = true;
      };
    }
    auto comm = OpenCommunicator(url, options);
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    if (rank == 1) {
      while (!ended) std::this_thread::yield();
      return;
    }
    std::thread other([&] {
      while (!entered) std::this_thread::yield();
      (*comm)->Abort(Cancelled("stop"));
    });
    const Status status = (*comm)->Barrier("waits", Soon());
    other.join();
    EXPECT_EQ(status.code(), StatusCode::kPoisoned);
    EXPECT_TRUE(Contains(status.message(), "CANCELLED: stop"));
    ended = true;
  });
}

// An abort and a deadline at the same time, on two threads of a rank: one of
// them is what all ranks see.
TEST(AbortTest, AnAbortAtTheDeadlineLeavesOneReason) {
  for (int round = 0; round < 400; ++round) {
    const std::string url = UrlFor(Backend::kThreads, UniqueName(), 2);
    std::atomic<bool> entered{false};
    std::atomic<bool> aborted{false};
    std::array<Status, 2> seen;
    RunEach(Backend::kThreads, 2, [&](int rank) {
      CommOptions options = {.rank = rank};
      if (rank == 0) {
        options.phase_hook = [&](std::string_view what) {
          if (what == "waits") entered = true;
        };
      }
      auto comm = OpenCommunicator(url, options);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      constexpr double kSeconds = 1e-3;
      std::thread other;
      if (rank == 0) {
        other = std::thread([&] {
          while (!entered) std::this_thread::yield();
          // The wait takes a while to find out that its time is over.
          const Deadline end = Deadline::After(kSeconds + round % 200 * 1e-6);
          while (!end.Expired()) {
          }
          (*comm)->Abort(Cancelled("stop"));
          aborted = true;
        });
      } else {
        while (!aborted) std::this_thread::yield();
      }
      const size_t me = static_cast<size_t>(rank);
      seen[me] = (*comm)->Barrier("waits", Deadline::After(kSeconds));
      if (other.joinable()) other.join();
    });
    for (const Status& status : seen) EXPECT_FALSE(status.ok());
    EXPECT_EQ(Contains(seen[0].message(), "CANCELLED: stop"),
              Contains(seen[1].message(), "CANCELLED: stop"))
        << seen[0].ToString() << "\n"
        << seen[1].ToString();
  }
}

TEST_P(FaultTest, LeavingWithoutShutdownIsALostRank) {
  Run([this](Communicator* comm) {
    SHARD_ASSERT_OK(comm->Barrier("start", Soon()));
    const int leaving = world_size() / 2;
    if (comm->rank() == leaving) return;  // RunGroup frees it.
    for (const char* what : {"step", "again"}) {
      const Status status = comm->Barrier(what, Soon());
      EXPECT_EQ(status.code(), StatusCode::kRankLost);
      EXPECT_EQ(status.rank(), leaving);
      EXPECT_TRUE(
          Contains(status.message(), "left the group without Shutdown"));
      EXPECT_TRUE(Contains(status.message(), "before it entered 'step'"));
    }
  });
}

// A call whose deadline is over still completes when all ranks are there.
TEST(LocalTest, NeverWaits) {
  auto comm = OpenCommunicator("local:", CommOptions());
  ASSERT_TRUE(comm.ok());
  SHARD_EXPECT_OK((*comm)->Barrier("alone", Deadline::After(0)));
  auto buffer = (*comm)->Allocate("alone", 10, SymmetricKind::kPerHost,
                                  Deadline::After(0));
  EXPECT_TRUE(buffer.ok()) << buffer.status().ToString();
  SHARD_EXPECT_OK((*comm)->Shutdown(Deadline::After(0)));
}

INSTANTIATE_TEST_SUITE_P(
    All, FaultTest,
    ::testing::Combine(::testing::Values(Backend::kThreads, Backend::kShm,
                                         Backend::kHosts, Backend::kTcp),
                       ::testing::Values(2, 4)),
    [](const auto& info) {
      return BackendName(std::get<0>(info.param)) +
             std::to_string(std::get<1>(info.param));
    });

// --- a rank is killed at the entry of each phase ---

// Calls every collective once, with the phase names that the hook sees.
Status WorkOnce(Communicator* comm) {
  SHARD_RETURN_IF_ERROR(comm->Barrier("barrier", Soon()));
  std::vector<char> send(20000);  // The bytes take three rounds.
  std::vector<char> recv(send.size() * static_cast<size_t>(comm->world_size()));
  SHARD_RETURN_IF_ERROR(
      comm->AllGather("gather", send.data(), send.size(), recv.data(), Soon()));
  SHARD_RETURN_IF_ERROR(
      comm->Allocate("per rank", 100000, SymmetricKind::kPerRank, Soon())
          .status());
  SHARD_RETURN_IF_ERROR(
      comm->Allocate("per host", 100000, SymmetricKind::kPerHost, Soon())
          .status());
  const RankSet all = RankSet::All(comm->world_size());
  std::vector<float> tensor(100000);
  std::vector<float> tensors(tensor.size() *
                             static_cast<size_t>(comm->world_size()));
  SHARD_ASSIGN_OR_RETURN(const auto exchange,
                         comm->OpenExchange("exchange", Soon()));
  SHARD_RETURN_IF_ERROR(exchange->ReduceScatter(
      "reduce", all,
      {.send = tensors.data(), .count = tensor.size(), .recv = tensor.data()},
      Soon()));
  SHARD_RETURN_IF_ERROR(exchange->AllGatherBlocks(
      "gather blocks", all, tensor.data(), tensor.size() * sizeof(float),
      tensors.data(), Soon()));
  SHARD_RETURN_IF_ERROR(comm->Broadcast("broadcast", 1, tensor.data(),
                                        tensor.size() * sizeof(float), Soon()));
  SHARD_RETURN_IF_ERROR(CheckAgreement(
      comm, "agreement", 1, [](FactSink*) {}, Soon()));
  return comm->Shutdown(Soon());
}

class KillTest : public ::testing::TestWithParam<std::tuple<const char*, int>> {
};

TEST_P(KillTest, OthersNameTheDeadRank) {
  const std::string phase = std::get<0>(GetParam());
  const int victim = std::get<1>(GetParam());
  constexpr int kWorldSize = 3;
  const std::string url = UrlFor(Backend::kShm, UniqueName(), kWorldSize);
  const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
    CommOptions options = {.rank = rank.rank(), .world_size = kWorldSize};
    options.phase_hook = [&](std::string_view what) {
      if (rank.rank() == victim && what == phase) ::raise(SIGKILL);
    };
    auto comm = OpenCommunicator(url, options);
    Status status = comm.status();
    if (comm.ok()) status = WorkOnce(comm->get());
    rank.Report(status.ToString());
    EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
    EXPECT_EQ(status.rank(), victim);
    EXPECT_TRUE(Contains(status.message(), StrCat("rank ", victim)));
    // The error stays.
    if (comm.ok()) {
      const Status later = (*comm)->Barrier("later", Soon());
      EXPECT_EQ(later.code(), StatusCode::kRankLost);
      EXPECT_EQ(later.rank(), victim);
    }
  });
  const double died = results[static_cast<size_t>(victim)].seconds;
  for (const RankResult& result : results) {
    if (result.rank == victim) {
      EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
    } else {
      EXPECT_TRUE(result.passed()) << result.ToString();
      EXPECT_LT(result.seconds - died, 1.0) << result.ToString();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Phases, KillTest,
    ::testing::Combine(
        ::testing::Values("open: trace", "open: files", "barrier", "gather",
                          "per rank", "per rank: memory created",
                          "per rank: memory mapped", "per host", "exchange",
                          "exchange: source received", "reduce",
                          "reduce: staging: memory created",
                          "reduce: staging: memory mapped", "gather blocks",
                          "broadcast", "agreement", "shutdown"),
        ::testing::Values(0, 1, 2)));

INSTANTIATE_TEST_SUITE_P(
    RendezvousGuest, KillTest,
    ::testing::Combine(::testing::Values("rendezvous: hello",
                                         "rendezvous: mapped"),
                       ::testing::Values(1, 2)));

// A rank that dies after it has arrived does not spoil the round: the others
// complete it, and the next call names the dead rank.
TEST(KillAfterArrivalTest, TheRoundStands) {
  const std::string url = UrlFor(Backend::kShm, UniqueName(), 2);
  const auto results = RunRanks(2, [&](const Rank& rank) {
    auto comm = OpenCommunicator(url, {.rank = rank.rank(), .world_size = 2});
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    SHARD_ASSERT_OK((*comm)->Barrier("passes", Soon()));
    if (rank.rank() == 1) ::raise(SIGKILL);
    const Status status = (*comm)->Barrier("next", Soon());
    EXPECT_EQ(status.code(), StatusCode::kRankLost);
    EXPECT_TRUE(Contains(status.message(),
                         "the last it entered was barrier "
                         "'passes'"));
  });
  EXPECT_TRUE(results[0].passed()) << results[0].ToString();
}

// A rank is killed at a random instant of busy collectives, many times. All
// survivors agree on the outcome.
TEST(KillAnywhereTest, SurvivorsAgree) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    constexpr int kWorldSize = 3;
    const std::string url = UrlFor(Backend::kShm, UniqueName(), kWorldSize);
    const int victim = attempt % kWorldSize;
    const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
      auto comm = OpenCommunicator(
          url, {.rank = rank.rank(), .world_size = kWorldSize});
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      if (rank.rank() == victim) {
        // The timer fires anywhere, within rounds too.
        itimerval timer{};
        timer.it_value.tv_usec = 2000 + 531 * attempt;
        ::signal(SIGALRM, [](int) { ::raise(SIGKILL); });
        ::setitimer(ITIMER_REAL, &timer, nullptr);
      }
      int rounds = 0;
      Status status;
      while (status.ok()) {
        status = (*comm)->Barrier(StrCat("round ", rounds), Soon());
        if (status.ok()) ++rounds;
      }
      EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
      EXPECT_EQ(status.rank(), victim);
      rank.Report(StrCat(rounds, " ", status.message()));
    });
    std::string common;
    for (const RankResult& result : results) {
      if (result.rank == victim) continue;
      EXPECT_TRUE(result.passed()) << result.ToString();
      if (common.empty()) common = result.report;
      EXPECT_EQ(result.report, common);
    }
  }
}

}  // namespace
}  // namespace shard::testing::fault_test
