// SPDX-License-Identifier: Apache-2.0
//
// A communicator and its duplicates: an error that ends one ends all.

#include <signal.h>

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "core/comm/communicator.h"
#include "tests/core/comm/backends.h"
#include "tests/core/comm/duplicates.h"

namespace shard::testing::duplicate_fault_test {
namespace {

// Returns whether `status` is the error `code`, as returned by a call that ran
// when the group failed, or by a later one.
::testing::AssertionResult Is(const Status& status, StatusCode code) {
  if (status.code() == code ||
      (status.code() == StatusCode::kPoisoned &&
       Contains(status.message(), StatusCodeName(code)))) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << status.ToString() << " is not " << StatusCodeName(code);
}

// Checks the errors of a communicator and its duplicate when the group ends:
// all ranks but the last wait in a collective of each, and the last one `ends`
// the group. Afterwards no collective works on any rank.
class EndTest : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
  // The statuses of the first and of the duplicate.
  using Results = std::array<Status, 2>;

  bool IsLast(const Communicator& comm) const {
    return comm.rank() == world_size() - 1;
  }

  void RunToEnd(const std::function<void(Handle*, Handle*)>& ends,
                const std::function<void(const Results&)>& check,
                std::array<double, 2> seconds = {30, 30}) {
    const std::string side = UrlFor(backend(), UniqueName(), world_size());
    RunFamily(backend(), world_size(), [&](Handle first, Handle duplicate) {
      const bool last = IsLast(*first);
      // Another group tells when all have seen the end, which the group itself
      // cannot.
      auto signal = OpenCommunicator(
          side, {.rank = first->rank(), .world_size = world_size()});
      ASSERT_TRUE(signal.ok()) << signal.status().ToString();
      if (last) {
        ends(&first, &duplicate);
      } else {
        Results results;
        std::thread worker([&] {
          results[1] =
              duplicate->Barrier("engine", Deadline::After(seconds[1]));
        });
        results[0] = first->Barrier("host", Deadline::After(seconds[0]));
        worker.join();
        EXPECT_EQ(results[0].rank(), results[1].rank());
        check(results);
      }
      SHARD_ASSERT_OK((*signal)->Barrier("seen", Soon()));
      for (const Handle& comm : {first, duplicate}) {
        if (comm == nullptr) continue;
        const Status later = comm->Barrier("later", Soon());
        EXPECT_TRUE(later.code() == StatusCode::kRankLost ||
                    later.code() == StatusCode::kPoisoned)
            << later.ToString();
        EXPECT_EQ(later.rank(), world_size() - 1);
        EXPECT_EQ(
            comm->Duplicate("no more", /*direct=*/true, Soon()).status().code(),
            later.code());
      }
      SHARD_EXPECT_OK((*signal)->Shutdown(Soon()));
    });
  }
};

TEST_P(EndTest, AnAbortOfEitherEndsBoth) {
  for (const bool of_duplicate : {false, true}) {
    SCOPED_TRACE(of_duplicate);
    RunToEnd(
        [&](Handle* first, Handle* duplicate) {
          (*(of_duplicate ? duplicate : first))->Abort(Cancelled("enough"));
        },
        [&](const Results& results) {
          for (const Status& status : results) {
            EXPECT_EQ(status.code(), StatusCode::kPoisoned);
            EXPECT_EQ(status.message(),
                      StrCat("rank ", world_size() - 1,
                             " aborted the group: CANCELLED: enough"));
          }
        });
  }
}

TEST_P(EndTest, ADeadlineOfEitherEndsBoth) {
  for (const bool of_duplicate : {false, true}) {
    SCOPED_TRACE(of_duplicate);
    RunToEnd([](Handle*, Handle*) {},
             [&](const Results& results) {
               for (const Status& status : results) {
                 EXPECT_TRUE(Is(status, StatusCode::kDeadlineExceeded));
                 EXPECT_TRUE(Contains(status.message(),
                                      of_duplicate ? "'engine'" : "'host'"));
               }
             },
             of_duplicate ? std::array<double, 2>{30, 0.2}
                          : std::array<double, 2>{0.2, 30});
  }
}

TEST_P(EndTest, ADesyncOfEitherEndsBoth) {
  for (const bool of_duplicate : {false, true}) {
    SCOPED_TRACE(of_duplicate);
    RunToEnd(
        [&](Handle* first, Handle* duplicate) {
          const Handle& wrong = *(of_duplicate ? duplicate : first);
          EXPECT_TRUE(Is(wrong->Barrier("wrong", Soon()), StatusCode::kDesync));
        },
        [&](const Results& results) {
          for (const Status& status : results) {
            EXPECT_TRUE(Is(status, StatusCode::kDesync));
            EXPECT_TRUE(Contains(status.message(), "called barrier 'wrong'"));
          }
        });
  }
}

TEST_P(EndTest, ARankWithoutEitherIsLost) {
  for (const bool first_goes_first : {false, true}) {
    SCOPED_TRACE(first_goes_first);
    RunToEnd(
        [&](Handle* first, Handle* duplicate) {
          (first_goes_first ? first : duplicate)->reset();
          (first_goes_first ? duplicate : first)->reset();
        },
        [&](const Results& results) {
          for (const Status& status : results) {
            EXPECT_EQ(status.code(), StatusCode::kRankLost);
            EXPECT_TRUE(
                Contains(status.message(), "left the group without Shutdown"));
          }
        });
  }
}

// The rank exists as long as it has the duplicate, so it is late, but not lost.
TEST_P(EndTest, FreedIsNotLost) {
  for (const bool of_duplicate : {false, true}) {
    SCOPED_TRACE(of_duplicate);
    RunToEnd(
        [&](Handle* first, Handle* duplicate) {
          (of_duplicate ? duplicate : first)->reset();
        },
        [&](const Results& results) {
          for (const Status& status : results) {
            EXPECT_TRUE(Is(status, StatusCode::kDeadlineExceeded));
          }
        },
        of_duplicate ? std::array<double, 2>{30, 0.2}
                     : std::array<double, 2>{0.2, 30});
  }
}

// A duplicate in which no rank waits is ended all the same. A sibling can end
// it, too.
TEST_P(EndTest, ASiblingEndsAll) {
  RunFamily(backend(), world_size(), [&](Handle first, Handle duplicate) {
    auto sibling = first->Duplicate("sibling", /*direct=*/true, Soon());
    ASSERT_TRUE(sibling.ok()) << sibling.status().ToString();
    if (IsLast(*first)) {
      (*sibling)->Abort(Cancelled("enough"));
    } else {
      EXPECT_EQ(duplicate->Barrier("engine", Soon()).code(),
                StatusCode::kPoisoned);
    }
    for (const Handle& comm : {first, duplicate, *sibling}) {
      const Status status = comm->Barrier("later", Soon());
      EXPECT_EQ(status.code(), StatusCode::kPoisoned);
      EXPECT_EQ(status.rank(), world_size() - 1);
      EXPECT_TRUE(Contains(status.message(), "CANCELLED: enough"));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, EndTest,
    ::testing::Combine(::testing::Values(Backend::kThreads, Backend::kShm,
                                         Backend::kHosts, Backend::kTcp),
                       ::testing::Values(2, 4)),
    [](const auto& info) {
      return StrCat(BackendName(std::get<0>(info.param)),
                    std::get<1>(info.param));
    });

// --- a rank is killed ---

class DuplicateKillTest : public ::testing::TestWithParam<int> {};

// The others wait in both, in one, or in none.
TEST_P(DuplicateKillTest, BothNameTheDeadRank) {
  constexpr int kWorldSize = 3;
  const int victim = GetParam();
  const std::string url = UrlFor(Backend::kShm, UniqueName(), kWorldSize);
  const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
    auto first =
        OpenCommunicator(url, {.rank = rank.rank(), .world_size = kWorldSize});
    ASSERT_TRUE(first.ok()) << first.status().ToString();
    auto duplicate = (*first)->Duplicate("engine", /*direct=*/true, Soon());
    ASSERT_TRUE(duplicate.ok()) << duplicate.status().ToString();
    if (rank.rank() == victim) {
      std::thread worker([&] { Work(duplicate->get(), 5, 1000); });
      worker.join();
      ::raise(SIGKILL);
    }
    Status waited;
    std::thread worker([&] {
      Work(duplicate->get(), 5, 1000);
      waited = (*duplicate)->Barrier("engine", Soon());
    });
    std::vector<Status> all{(*first)->Barrier("host", Soon())};
    worker.join();
    all.push_back(waited);
    all.push_back((*first)->Barrier("later", Soon()));
    all.push_back((*duplicate)->Barrier("later", Soon()));
    for (const Status& status : all) {
      EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
      EXPECT_EQ(status.rank(), victim);
    }
  });
  for (const RankResult& result : results) {
    if (result.rank == victim) {
      EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
    } else {
      EXPECT_TRUE(result.passed()) << result.ToString();
    }
  }
}

// The rank dies at the start of each step of the duplication.
TEST_P(DuplicateKillTest, TheDeadRankIsNamedWhileItIsMade) {
  constexpr int kWorldSize = 3;
  const int victim = GetParam();
  for (const std::string phase :
       {"engine", "engine: control: memory created",
        "engine: control: memory mapped", "engine: source created",
        "engine: source received"}) {
    SCOPED_TRACE(phase);
    const std::string url = UrlFor(Backend::kShm, UniqueName(), kWorldSize);
    const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
      CommOptions options = {.rank = rank.rank(), .world_size = kWorldSize};
      options.phase_hook = [&](std::string_view what) {
        if (rank.rank() == victim && what == phase) ::raise(SIGKILL);
      };
      auto first = OpenCommunicator(url, options);
      ASSERT_TRUE(first.ok()) << first.status().ToString();
      const Status status =
          (*first)->Duplicate("engine", /*direct=*/true, Soon()).status();
      EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
      EXPECT_EQ(status.rank(), victim);
    });
    for (const RankResult& result : results) {
      if (result.rank == victim) {
        EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
      } else {
        EXPECT_TRUE(result.passed()) << result.ToString();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Victims, DuplicateKillTest,
                         ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace shard::testing::duplicate_fault_test
