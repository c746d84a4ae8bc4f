// SPDX-License-Identifier: Apache-2.0
//
// Notices when a rank is late, dead, or posts something else.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/host_waits.h"
#include "core/comm/notices.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/comm/backends.h"
#include "tests/core/comm/duplicates.h"
#include "tests/core/comm/posted.h"

namespace shard::testing::notices_fault_test {
namespace {

class NoticesFaultTest : public ::testing::TestWithParam<Backend> {
 protected:
  // Runs body(comm, notices) on every rank. `side` is a communicator of another
  // family, which goes on when this one has ended.
  void Run(int world_size,
           const std::function<void(Communicator*, Poster*,
                                    Communicator* side)>& body) {
    const std::string url = UrlFor(GetParam(), UniqueName(), world_size);
    RunGroup(GetParam(), world_size, [&](Communicator* side) {
      auto comm = OpenCommunicator(
          url, {.rank = side->rank(), .world_size = world_size});
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      const auto poster = OpenPoster(comm->get());
      ASSERT_NE(poster, nullptr);
      body(comm->get(), poster.get(), side);
      SHARD_EXPECT_OK(side->Barrier("seen", Soon()));
    });
  }
};

// The rank that sees the difference ends the family with its error, and a rank
// that has gone on gets the same one.
TEST_P(NoticesFaultTest, ADifferenceCanBecomeTheErrorOfAllRanks) {
  for (const int late : {0, 1}) {
    SCOPED_TRACE(late);
    Run(2, [&](Communicator* comm, Poster* poster, Communicator* side) {
      if (comm->rank() == late) {
        SHARD_ASSERT_OK(side->Barrier("posted", Soon()));
        int differs = -1;
        SHARD_ASSERT_OK(
            poster->Post([&](int rank, uint64_t) { differs = rank; }));
        EXPECT_EQ(differs, 1 - late);
        (*poster)->Fail(Desync(differs, "the ranks differ"));
      } else {
        SHARD_ASSERT_OK(poster->Post());
        SHARD_ASSERT_OK(side->Barrier("posted", Soon()));
        const Status status = comm->Barrier("data", Soon());
        if (status.code() == StatusCode::kPoisoned) {
          // The barrier began after the end, and says so.
          EXPECT_TRUE(Contains(status.message(), "DESYNC: the ranks differ"));
        } else {
          EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
        }
        EXPECT_EQ(status.rank(), 1 - late);
      }
      const Status failure = (*poster)->failure();
      EXPECT_EQ(failure.code(), StatusCode::kDesync) << failure.ToString();
      EXPECT_EQ(failure.message(), "the ranks differ");
      EXPECT_EQ(failure.rank(), 1 - late);
      EXPECT_EQ(poster->Post().code(), StatusCode::kPoisoned);
    });
  }
}

TEST_P(NoticesFaultTest, FailEndsTheWaitOfAllRanksWithItsError) {
  Run(3, [](Communicator* comm, Poster* poster, Communicator* side) {
    const Status reason(StatusCode::kInvalidArgument, "rank 2: too large", 2);
    if (comm->rank() == 2) {
      SHARD_ASSERT_OK(side->Barrier("posted", Soon()));
      (*poster)->Fail(reason);
      (*poster)->Fail(Cancelled("the first error stays"));
    } else {
      SHARD_ASSERT_OK(poster->Post());
      SHARD_ASSERT_OK(side->Barrier("posted", Soon()));
      EXPECT_EQ(poster->Await().ToString(), reason.ToString());
    }
    EXPECT_EQ((*poster)->failure().ToString(), reason.ToString());
    EXPECT_EQ(comm->Barrier("later", Soon()).code(), StatusCode::kPoisoned);
  });
}

TEST_P(NoticesFaultTest, AnAbortOfTheCommunicatorEndsThem) {
  Run(2, [](Communicator* comm, Poster* poster, Communicator* side) {
    if (comm->rank() == 1) {
      SHARD_ASSERT_OK(side->Barrier("posted", Soon()));
      comm->Abort(Cancelled("enough"));
    } else {
      SHARD_ASSERT_OK(poster->Post());
      SHARD_ASSERT_OK(side->Barrier("posted", Soon()));
      const Status status = poster->Await();
      EXPECT_EQ(status.code(), StatusCode::kPoisoned) << status.ToString();
      EXPECT_EQ(status.rank(), 1);
      EXPECT_TRUE(Contains(status.message(), "CANCELLED: enough"));
    }
    EXPECT_EQ(poster->Post().code(), StatusCode::kPoisoned);
  });
}

// Nobody uses the notices once the communicator has ended.
TEST_P(NoticesFaultTest, TheErrorOfAnotherPartIsTheirFailure) {
  Run(2, [](Communicator* comm, Poster* poster, Communicator*) {
    if (comm->rank() == 1) comm->Abort(Cancelled("enough"));
    EXPECT_TRUE(ComesTrue([&] { return !(*poster)->failure().ok(); }));
    const Status failure = (*poster)->failure();
    EXPECT_EQ(failure.rank(), 1) << failure.ToString();
    EXPECT_TRUE(Contains(failure.message(), "CANCELLED: enough"));
    EXPECT_EQ(poster->Post().code(), StatusCode::kPoisoned);
  });
}

TEST_P(NoticesFaultTest, ARankThatDoesNotComeIsNamed) {
  Run(3, [](Communicator* comm, Poster* poster, Communicator*) {
    SHARD_ASSERT_OK(poster->Post());
    SHARD_ASSERT_OK(poster->Await());
    if (comm->rank() == 1) return;
    SHARD_ASSERT_OK(poster->Post());
    const Status status = poster->Await(Deadline::After(0.2));
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
        << status.ToString();
    EXPECT_EQ(status.rank(), 1);
    EXPECT_TRUE(Contains(
        status.message(),
        "'unit': 1 of 3 ranks did not enter it within 0.2 s: rank [1]; the "
        "last it entered was notice 'unit' of 16 bytes"));
  });
}

// A check says what a wait would say, and ends nothing.
TEST_P(NoticesFaultTest, ACheckNamesTheRanksThatAreLate) {
  Run(2, [](Communicator* comm, Poster* poster, Communicator* side) {
    SHARD_ASSERT_OK(poster->Post());
    SHARD_ASSERT_OK(side->Barrier("posted", Soon()));
    const Deadline passed = Deadline::After(0);
    if (comm->rank() == 0) {
      SHARD_EXPECT_OK((*poster)->Check(1, "a wait", Soon()));
      SHARD_EXPECT_OK((*poster)->Check(2, "a wait", Soon()));
      const Status late = (*poster)->Check(2, "a wait", passed);
      EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << late.ToString();
      EXPECT_TRUE(
          Contains(late.message(), "'a wait': 2 of 2 ranks did not enter it"));
      const Status all_came = (*poster)->Check(1, "a wait", passed);
      EXPECT_EQ(all_came.code(), StatusCode::kDeadlineExceeded);
      EXPECT_EQ(all_came.rank(), -1);
      EXPECT_EQ(all_came.message(),
                "'a wait' took longer than 0 s, though all ranks have entered "
                "it");
      SHARD_ASSERT_OK(poster->Post());
      EXPECT_EQ((*poster)->Check(2, "a wait", passed).rank(), 1);
    }
    SHARD_ASSERT_OK(side->Barrier("checked", Soon()));
    if (comm->rank() == 1) SHARD_ASSERT_OK(poster->Post());
    SHARD_EXPECT_OK(poster->Await());
    SHARD_EXPECT_OK(side->Barrier("awaited", Soon()));
    if (comm->rank() == 1) (*poster)->Fail(Cancelled("enough"));
    SHARD_ASSERT_OK(side->Barrier("ended", Soon()));
    EXPECT_EQ((*poster)->Check(1, "a wait", Soon()).code(),
              StatusCode::kCancelled);
  });
}

TEST_P(NoticesFaultTest, ARankTooFarAheadWaitsUntilItsDeadline) {
  Run(2, [](Communicator* comm, Poster* poster, Communicator* side) {
    if (comm->rank() == 1) {
      SHARD_ASSERT_OK(side->Barrier("ended", Soon()));
      const Status status = poster->Post();
      EXPECT_EQ(status.code(), StatusCode::kPoisoned) << status.ToString();
      EXPECT_EQ(status.rank(), 1);
      return;
    }
    const auto none = [](int rank, uint64_t) { ADD_FAILURE() << rank; };
    for (int i = 0; i < Notices::kMostAhead; ++i) {
      SHARD_ASSERT_OK(poster->Post(none));
    }
    const Status status = poster->Post(none, Deadline::After(0.2));
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
        << status.ToString();
    EXPECT_EQ(status.rank(), 1);
    EXPECT_TRUE(Contains(status.message(), "it has entered no collective yet"));
    SHARD_ASSERT_OK(side->Barrier("ended", Soon()));
  });
}

// The host of rank 1 waits for rank 0, which waits for it: for a notice, or for
// its reading of the first of many.
TEST_P(NoticesFaultTest, HostsThatWaitForEachOtherAreFound) {
  for (const bool far_ahead : {false, true}) {
    SCOPED_TRACE(far_ahead);
    Run(2, [&](Communicator* comm, Poster* poster, Communicator*) {
      const HostCall::Scope call(&comm->host_waits()->call(),
                                 comm->rank() == 0 ? "step" : "sum");
      Status status;
      if (comm->rank() == 1) {
        status = comm->Barrier("meet", Soon());
      } else if (far_ahead) {
        while (status.ok()) status = poster->Post();
      } else {
        SHARD_ASSERT_OK(poster->Post());
        status = poster->Await();
      }
      EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
      EXPECT_TRUE(
          Contains(status.message(), " in step (notice 'unit' of 16 bytes)"));
      EXPECT_TRUE(Contains(status.message(), " in sum (barrier 'meet')"));
    });
  }
}

// The library's threads post, and the engine's communicator counts their work.
// Rank 1 posts later than a deadlock would be found.
TEST_P(NoticesFaultTest, WorkOfTheLibraryIsWaitedFor) {
  RunFamily(GetParam(), 2, [](Handle host, Handle engine) {
    const auto poster = OpenPoster(engine.get());
    ASSERT_NE(poster, nullptr);
    HostWaits* const waits = engine->host_waits();
    const HostCall::Scope call(&waits->call(),
                               host->rank() == 0 ? "acquire" : "sum");
    const uint64_t number = waits->AddWork();
    std::thread library([&] {
      const Deadline later = Deadline::After(host->rank() == 1 ? 0.4 : 0);
      while (!later.Expired()) std::this_thread::yield();
      SHARD_EXPECT_OK(poster->Post());
      SHARD_EXPECT_OK(poster->Await());
      waits->FinishWork();
    });
    if (host->rank() == 0) {
      HostWaits::Scope waiting(waits);
      waiting.Begin(number);
      library.join();
    }
    SHARD_EXPECT_OK(host->Barrier("meet", Soon()));
    if (library.joinable()) library.join();
  });
}

// The host of rank 0 waits for work of its library, which waits for a notice of
// rank 1, whose host waits for rank 0.
TEST_P(NoticesFaultTest, AHostMayWaitForItsLibrary) {
  RunFamily(GetParam(), 2, [](Handle host, Handle engine) {
    const auto poster = OpenPoster(engine.get());
    ASSERT_NE(poster, nullptr);
    HostWaits* const waits = engine->host_waits();
    const HostCall::Scope call(&waits->call(),
                               host->rank() == 0 ? "acquire" : "sum");
    if (host->rank() == 1) {
      EXPECT_EQ(host->Barrier("meet", Soon()).code(), StatusCode::kDesync);
      return;
    }
    const uint64_t number = waits->AddWork();
    std::thread library([&] {
      SHARD_EXPECT_OK(poster->Post());
      const Status status = poster->Await();
      EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
      EXPECT_TRUE(Contains(status.message(),
                           " in acquire (notice 'unit' of 16 bytes)"));
      waits->FinishWork();
    });
    HostWaits::Scope waiting(waits);
    waiting.Begin(number);
    library.join();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, NoticesFaultTest,
                         ::testing::Values(Backend::kThreads, Backend::kShm,
                                           Backend::kHosts, Backend::kTcp),
                         [](const auto& info) {
                           return BackendName(info.param);
                         });

// --- a rank is killed ---

class NoticesKillTest : public ::testing::TestWithParam<int> {};

// The victim posts some notices. The others post until they have to wait for
// it, or meet; all name it.
TEST_P(NoticesKillTest, TheDeadRankIsNamed) {
  constexpr int kWorldSize = 3;
  const int victim = GetParam();
  const std::string url = UrlFor(Backend::kShm, UniqueName(), kWorldSize);
  const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
    auto comm =
        OpenCommunicator(url, {.rank = rank.rank(), .world_size = kWorldSize});
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    const auto poster = OpenPoster(comm->get());
    ASSERT_NE(poster, nullptr);
    // Another rank may have noticed the death before this one has posted.
    Status status;
    for (int i = 0; i < 10 && status.ok(); ++i) status = poster->Post();
    if (rank.rank() == victim) ::raise(SIGKILL);
    if (rank.rank() == (victim + 1) % kWorldSize) {
      while (status.ok()) status = poster->Post();
    } else {
      if (status.ok()) status = poster->Post();
      if (status.ok()) status = poster->Await();
    }
    EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
    EXPECT_EQ(status.rank(), victim);
    EXPECT_TRUE(Contains(status.message(), "died or was killed"));
    EXPECT_EQ((*comm)->Barrier("later", Soon()).rank(), victim);
  });
  for (const RankResult& result : results) {
    if (result.rank == victim) {
      EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
    } else {
      EXPECT_TRUE(result.passed()) << result.ToString();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Victims, NoticesKillTest, ::testing::Values(0, 1, 2));

// Leaves this process no address space for another `bytes` bytes.
void LimitMemory(size_t bytes) {
  FILE* const file = std::fopen("/proc/self/statm", "r");
  ASSERT_NE(file, nullptr);
  unsigned long pages = 0;
  ASSERT_EQ(std::fscanf(file, "%lu", &pages), 1);
  std::fclose(file);
  const rlim_t limit =
      pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + bytes / 2;
  const rlimit both{limit, limit};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &both), 0);
}

TEST(NoticesMemoryTest, ARankWithoutMemoryIsTheErrorOfAll) {
  if (kSanitized) {
    GTEST_SKIP() << "the sanitizers need address space of their own";
  }
  for (const int poor : {0, 1}) {
    SCOPED_TRACE(poor);
    const std::string url = UrlFor(Backend::kShm, UniqueName(), 2);
    ExpectAllPassed(RunRanks(2, [&](const Rank& rank) {
      auto comm = OpenCommunicator(url, {.rank = rank.rank(), .world_size = 2});
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      if (rank.rank() == poor) LimitMemory(1 << 20);
      for (int i = 0; i < 2; ++i) {
        const Status status =
            (*comm)->OpenNotices("unit", 8192, Soon()).status();
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted)
            << status.ToString();
        EXPECT_EQ(status.rank(), poor);
      }
      SHARD_EXPECT_OK((*comm)->Barrier("the group goes on", Soon()));
      SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
    }));
  }
}

}  // namespace
}  // namespace shard::testing::notices_fault_test
