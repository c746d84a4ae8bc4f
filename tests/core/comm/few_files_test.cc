// SPDX-License-Identifier: Apache-2.0
//
// Ranks that may open no more files.

#include <sys/resource.h>
#include <unistd.h>

#include "core/comm/communicator.h"
#include "tests/core/comm/backends.h"

namespace shard::testing {
namespace {

StatusOr<std::shared_ptr<Communicator>> Open(const std::string& name, int rank,
                                             int world_size,
                                             double timeout = 20) {
  return OpenCommunicator(
      StrCat("shm:", name),
      {.rank = rank, .world_size = world_size, .timeout = timeout});
}

// Sets the lowest limit that lets this process open `more` files.
void LimitFiles(int more) {
  const int next = ::dup(0);
  ::close(next);
  const rlimit limit{static_cast<rlim_t>(next + more),
                     static_cast<rlim_t>(next + more)};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// When any step of the rendezvous lacks a descriptor, on any rank, the rank and
// those that it has met get an error that says so. They never hang.
TEST(FewFilesTest, AMeetingFailsAndDoesNotHang) {
  for (const int poor : {0, 1, 2}) {
    for (int more = 0; more < 8; ++more) {
      SCOPED_TRACE(StrCat("rank ", poor, " with ", more, " files"));
      const std::string name = UniqueName();
      const auto results = RunRanks(3, [&](const Rank& rank) {
        if (rank.rank() == poor) LimitFiles(more);
        auto comm = Open(name, rank.rank(), 3, /*timeout=*/1);
        rank.Report(comm.ok() ? "OK" : StatusCodeName(comm.status().code()));
        if (comm.ok()) SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
        // The rank's own error always has the true reason.
        if (!comm.ok() && rank.rank() == poor) {
          EXPECT_EQ(comm.status().code(), StatusCode::kResourceExhausted)
              << comm.status().ToString();
        }
      });
      ExpectAllPassed(results);
      for (const RankResult& result : results) {
        EXPECT_EQ(result.report == "OK",
                  results[static_cast<size_t>(poor)].report == "OK")
            << result.ToString();
        // All ranks have met by then, so they know the reason.
        if (poor != 0 && more >= 3) {
          EXPECT_TRUE(result.report == "OK" ||
                      result.report == "RESOURCE_EXHAUSTED")
              << result.ToString();
        }
      }
    }
  }
}

TEST(FewFilesTest, AnAllocationFailsOnAllRanks) {
  for (const int poor : {0, 1}) {
    SCOPED_TRACE(poor);
    const std::string name = UniqueName();
    ExpectAllPassed(RunRanks(3, [&](const Rank& rank) {
      auto comm = Open(name, rank.rank(), 3);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      if (rank.rank() == poor) LimitFiles(0);
      for (int i = 0; i < 2; ++i) {
        const auto buffer =
            (*comm)->Allocate("memory", 8192, SymmetricKind::kPerRank, Soon());
        EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted)
            << buffer.status().ToString();
        EXPECT_EQ(buffer.status().rank(), poor);
      }
      SHARD_EXPECT_OK((*comm)->Barrier("the group goes on", Soon()));
      SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
    }));
  }
}

TEST(FewFilesTest, AnOpeningOfNoticesFailsOnAllRanks) {
  for (const int poor : {0, 1}) {
    SCOPED_TRACE(poor);
    const std::string name = UniqueName();
    ExpectAllPassed(RunRanks(3, [&](const Rank& rank) {
      auto comm = Open(name, rank.rank(), 3);
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      const int open = CountOpenFiles();
      if (rank.rank() == poor) LimitFiles(0);
      for (int i = 0; i < 2; ++i) {
        const auto notices = (*comm)->OpenNotices("unit", 16, Soon());
        EXPECT_EQ(notices.status().code(), StatusCode::kResourceExhausted)
            << notices.status().ToString();
        EXPECT_EQ(notices.status().rank(), poor);
      }
      // The poor rank cannot open what lists them.
      if (rank.rank() != poor) {
        EXPECT_EQ(CountOpenFiles(), open);
      }
      SHARD_EXPECT_OK((*comm)->Barrier("the group goes on", Soon()));
      SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
    }));
  }
}

// When any step of a duplication lacks a descriptor, all ranks get the error.
TEST(FewFilesTest, ADuplicationFailsOnAllRanks) {
  constexpr int kEnough = 12;
  for (const int poor : {0, 1}) {
    for (int more = 0; more <= kEnough; ++more) {
      SCOPED_TRACE(StrCat("rank ", poor, " with ", more, " files"));
      const std::string name = UniqueName();
      const auto results = RunRanks(3, [&](const Rank& rank) {
        auto comm = Open(name, rank.rank(), 3);
        ASSERT_TRUE(comm.ok()) << comm.status().ToString();
        if (rank.rank() == poor) LimitFiles(more);
        const int open = CountOpenFiles();
        for (int i = 0; i < 2; ++i) {
          const auto duplicate =
              (*comm)->Duplicate("engine", /*direct=*/true, Soon());
          if (i == 0) rank.Report(duplicate.ok() ? "OK" : "none");
          if (duplicate.ok()) {
            SHARD_EXPECT_OK((*duplicate)->Barrier("it works", Soon()));
          } else {
            EXPECT_EQ(duplicate.status().code(), StatusCode::kResourceExhausted)
                << duplicate.status().ToString();
            EXPECT_EQ(duplicate.status().rank(), poor);
          }
        }
        EXPECT_EQ(CountOpenFiles(), open);
        SHARD_EXPECT_OK((*comm)->Barrier("the group goes on", Soon()));
        SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
      });
      ExpectAllPassed(results);
      for (const RankResult& result : results) {
        EXPECT_EQ(result.report, results[0].report) << result.ToString();
      }
      if (more == 0 || more == kEnough) {
        EXPECT_EQ(results[0].report, more == 0 ? "none" : "OK");
      }
    }
  }
}

}  // namespace
}  // namespace shard::testing
