// SPDX-License-Identifier: Apache-2.0
//
// A communicator and its duplicates: sequences of their own, one life.

#include <signal.h>

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/comm/communicator.h"
#include "tests/core/comm/backends.h"

namespace shard::testing {
namespace {

using Handle = std::shared_ptr<Communicator>;

class DuplicateTest
    : public ::testing::TestWithParam<std::tuple<Backend, int, bool>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
  std::string parameters() const {
    return std::get<2>(GetParam()) ? "" : "direct=0";
  }

  // body(first, duplicate) on every rank; neither is shut down after it.
  void Run(const std::function<void(Handle, Handle)>& body) {
    const std::string url =
        UrlFor(backend(), UniqueName(), world_size(), parameters());
    RunEach(backend(), world_size(), [&](int rank) {
      CommOptions options;
      options.rank = rank;
      options.world_size = world_size();
      options.timeout = 17;
      auto first = OpenCommunicator(url, options);
      ASSERT_TRUE(first.ok()) << first.status().ToString();
      auto duplicate = (*first)->Duplicate("engine", Soon());
      ASSERT_TRUE(duplicate.ok()) << duplicate.status().ToString();
      body(*std::move(first), *std::move(duplicate));
    });
  }
};

// Every collective, `rounds` times, with values that only this caller has.
void Work(Communicator* comm, int rounds, int32_t salt) {
  const RankSet all = RankSet::All(comm->world_size());
  const auto world_size = static_cast<size_t>(all.count);
  for (int i = 0; i < rounds; ++i) {
    const std::string what = StrCat("work ", salt, " ", i);
    SHARD_ASSERT_OK(comm->Barrier(what, Soon()));

    std::vector<int32_t> mine(i % 7 == 0 ? 3000 : 3, salt + comm->rank() + i);
    std::vector<int32_t> gathered(mine.size() * world_size);
    SHARD_ASSERT_OK(comm->AllGather(what, mine.data(), mine.size() * 4,
                                    gathered.data(), Soon()));
    for (size_t j = 0; j < gathered.size(); ++j) {
      ASSERT_EQ(gathered[j], salt + static_cast<int>(j / mine.size()) + i);
    }

    const size_t count = i % 5 == 0 ? 300000 : 100;
    const std::vector<float> send(count * world_size,
                                  static_cast<float>(salt + comm->rank() + i));
    std::vector<float> recv(count);
    SHARD_ASSERT_OK(comm->ReduceScatter(what, all, send.data(), DType::kF32,
                                        count, recv.data(), DType::kF32, false,
                                        Soon()));
    float sum = 0;
    for (int r = 0; r < all.count; ++r) sum += static_cast<float>(salt + r + i);
    for (const float value : recv) ASSERT_EQ(value, sum);

    SHARD_ASSERT_OK(comm->AllGatherBlocks(
        what, all, mine.data(), mine.size() * 4, gathered.data(), Soon()));
    for (size_t j = 0; j < gathered.size(); ++j) {
      ASSERT_EQ(gathered[j], salt + static_cast<int>(j / mine.size()) + i);
    }

    int32_t word = salt + comm->rank();
    const int root = i % comm->world_size();
    SHARD_ASSERT_OK(comm->Broadcast(what, root, &word, 4, Soon()));
    ASSERT_EQ(word, salt + root);

    if (!comm->direct() || i % 4 != 0) continue;
    auto buffer = comm->Allocate(what, 4, SymmetricKind::kPerRank, Soon());
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    auto* own = reinterpret_cast<int32_t*>((*buffer)->region(comm->rank()));
    ASSERT_EQ(*own, 0);
    *own = salt + comm->rank();
    SHARD_ASSERT_OK(comm->Barrier(what, Soon()));
    for (int r = 0; r < all.count; ++r) {
      ASSERT_EQ(*reinterpret_cast<int32_t*>((*buffer)->region(r)), salt + r);
    }
  }
}

TEST_P(DuplicateTest, IsLikeTheFirst) {
  Run([](Handle first, Handle duplicate) {
    EXPECT_EQ(duplicate->rank(), first->rank());
    EXPECT_EQ(duplicate->world_size(), first->world_size());
    EXPECT_EQ(duplicate->direct(), first->direct());
    EXPECT_EQ(duplicate->timeout(), 17);
    EXPECT_EQ(duplicate->Describe(),
              StrCat(first->Describe(), ", duplicate 'engine'"));
    Work(duplicate.get(), 9, 1000);
    Work(first.get(), 9, 2000);
    const auto refused =
        duplicate->Allocate("users", 10, SymmetricKind::kPerHost, Soon());
    EXPECT_EQ(refused.status().code(),
              first->direct() ? StatusCode::kOk : StatusCode::kUnimplemented);
    SHARD_EXPECT_OK(duplicate->Shutdown(Soon()));
    EXPECT_EQ(duplicate->Barrier("late", Soon()).code(),
              StatusCode::kFailedPrecondition);
    // It ended alone.
    SHARD_EXPECT_OK(first->Barrier("goes on", Soon()));
    SHARD_EXPECT_OK(first->Shutdown(Soon()));
  });
}

// Two threads per rank, in whatever order the scheduler likes, and with
// allocations on both that must not take each other's memory.
TEST_P(DuplicateTest, BothAtOnce) {
  Run([](Handle first, Handle duplicate) {
    std::thread worker([&] { Work(duplicate.get(), 40, 1000); });
    Work(first.get(), 40, 2000);
    worker.join();
    SHARD_EXPECT_OK(duplicate->Shutdown(Soon()));
    SHARD_EXPECT_OK(first->Shutdown(Soon()));
  });
}

// Rank 0 makes the calls of the two in one order, the others in the other: each
// waits in one while its peers wait in the other, and no call is a desync.
TEST_P(DuplicateTest, InAnotherOrderOnEveryRank) {
  Run([](Handle first, Handle duplicate) {
    for (int i = 0; i < 20; ++i) {
      std::mutex mutex;
      std::condition_variable changed;
      bool worker_done = false;
      const bool host_first = (first->rank() + i) % 2 == 0;
      std::thread worker([&] {
        SHARD_EXPECT_OK(duplicate->Barrier(StrCat("engine ", i), Soon()));
        const std::lock_guard<std::mutex> lock(mutex);
        worker_done = true;
        changed.notify_all();
      });
      if (!host_first) {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return worker_done; });
      }
      SHARD_EXPECT_OK(first->Barrier(StrCat("host ", i), Soon()));
      worker.join();
    }
    SHARD_EXPECT_OK(first->Shutdown(Soon()));
  });
}

// Duplicates of a duplicate, made while the first is in use.
TEST_P(DuplicateTest, OfADuplicate) {
  Run([](Handle first, Handle duplicate) {
    std::thread worker([&] {
      auto third = duplicate->Duplicate("third", Soon());
      ASSERT_TRUE(third.ok()) << third.status().ToString();
      duplicate.reset();
      Work(third->get(), 9, 3000);
    });
    auto fourth = first->Duplicate("fourth", Soon());
    ASSERT_TRUE(fourth.ok()) << fourth.status().ToString();
    Work(fourth->get(), 9, 4000);
    worker.join();
    SHARD_EXPECT_OK(first->Shutdown(Soon()));
  });
}

// A peer frees what it needs no more, in whatever order: nobody is lost.
TEST_P(DuplicateTest, FreedInAnyOrder) {
  for (const bool first_goes_first : {false, true}) {
    SCOPED_TRACE(first_goes_first);
    Run([&](Handle first, Handle duplicate) {
      Handle& gone = first_goes_first ? first : duplicate;
      Handle& stays = first_goes_first ? duplicate : first;
      if (gone->rank() == gone->world_size() - 1) gone.reset();
      Work(stays.get(), 3, 1000);
      gone.reset();
      Work(stays.get(), 3, 2000);
      SHARD_EXPECT_OK(stays->Shutdown(Soon()));
    });
  }
}

// Of a duplicate; the first is over, whatever its duplicates wait for.
TEST_P(DuplicateTest, AfterShutdownOfTheFirst) {
  Run([](Handle first, Handle duplicate) {
    const bool last = first->rank() == first->world_size() - 1;
    Status waited;
    std::thread worker([&] {
      // The last never comes; alone it has no one to wait for.
      if (!last) waited = duplicate->Barrier("engine", Soon());
    });
    SHARD_EXPECT_OK(first->Shutdown(Soon()));
    worker.join();
    if (!last) {
      EXPECT_EQ(waited.code(), StatusCode::kFailedPrecondition)
          << waited.ToString();
    }
    float value = 0;
    const RankSet alone = RankSet::Of(first->rank(), 1, 1);
    const Status results[] = {
        duplicate->Barrier("late", Soon()),
        duplicate->AllGather("late", nullptr, 0, nullptr, Soon()),
        duplicate->Allocate("late", 1, SymmetricKind::kPerRank, Soon())
            .status(),
        duplicate->ReduceScatter("late", alone, &value, DType::kF32, 1, &value,
                                 DType::kF32, false, Soon()),
        duplicate->AllGatherBlocks("late", alone, &value, 4, &value, Soon()),
        duplicate->Broadcast("late", 0, &value, 4, Soon()),
        duplicate->Duplicate("late", Soon()).status(),
    };
    for (const Status& status : results) {
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition)
          << status.ToString();
    }
    SHARD_EXPECT_OK(duplicate->Shutdown(Soon()));
    if (last) first.reset();
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, DuplicateTest,
    ::testing::Combine(::testing::Values(Backend::kThreads, Backend::kShm),
                       ::testing::Values(1, 2, 4), ::testing::Bool()),
    [](const auto& info) {
      return StrCat(BackendName(std::get<0>(info.param)),
                    std::get<1>(info.param),
                    std::get<2>(info.param) ? "" : "NotDirect");
    });

// Whether it is that error, as a call returns it that was going on when the
// group failed, or as one that came later.
::testing::AssertionResult Is(const Status& status, StatusCode code) {
  if (status.code() == code ||
      (status.code() == StatusCode::kPoisoned &&
       Contains(status.message(), StatusCodeName(code)))) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << status.ToString() << " is not " << StatusCodeName(code);
}

// What both return when the group ends: all ranks but the last wait in one
// collective of each, and the last `ends` it. Then none goes on, on any rank.
class EndTest : public DuplicateTest {
 protected:
  using Results = std::array<Status, 2>;  // Of the first and the duplicate.

  bool IsLast(const Communicator& comm) const {
    return comm.rank() == world_size() - 1;
  }

  void RunToEnd(const std::function<void(Handle*, Handle*)>& ends,
                const std::function<void(const Results&)>& check,
                std::array<double, 2> seconds = {30, 30}) {
    const std::string side = UrlFor(backend(), UniqueName(), world_size());
    Run([&](Handle first, Handle duplicate) {
      const bool last = IsLast(*first);
      CommOptions options;
      options.rank = first->rank();
      options.world_size = world_size();
      // Tells when all have seen the end, which the group cannot.
      auto signal = OpenCommunicator(side, options);
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
        EXPECT_EQ(comm->Duplicate("no more", Soon()).status().code(),
                  later.code());
      }
      SHARD_EXPECT_OK((*signal)->Shutdown(Soon()));
    });
  }
};

TEST_P(EndTest, AbortOfEither) {
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

TEST_P(EndTest, DeadlineOfEither) {
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

TEST_P(EndTest, DesyncOfEither) {
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

TEST_P(EndTest, LeftWithTheLast) {
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

// The rank is there as long as it has the duplicate: late, but not lost.
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

// A duplicate that nobody waits in is ended all the same, also by one of its
// siblings.
TEST_P(EndTest, OfASibling) {
  Run([&](Handle first, Handle duplicate) {
    auto sibling = first->Duplicate("sibling", Soon());
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
    ::testing::Combine(::testing::Values(Backend::kThreads, Backend::kShm),
                       ::testing::Values(2, 4), ::testing::Values(true)),
    [](const auto& info) {
      return StrCat(BackendName(std::get<0>(info.param)),
                    std::get<1>(info.param));
    });

// --- a rank is killed ---

class KillTest : public ::testing::TestWithParam<int> {};

// While the others wait in both, in one, or in none.
TEST_P(KillTest, BothNameTheDeadRank) {
  constexpr int kWorldSize = 3;
  const int victim = GetParam();
  const std::string url = UrlFor(Backend::kShm, UniqueName(), kWorldSize);
  const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
    CommOptions options;
    options.rank = rank.rank();
    options.world_size = kWorldSize;
    auto first = OpenCommunicator(url, options);
    ASSERT_TRUE(first.ok()) << first.status().ToString();
    auto duplicate = (*first)->Duplicate("engine", Soon());
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

// At the entry of each step of the making.
TEST_P(KillTest, WhileItIsMade) {
  constexpr int kWorldSize = 3;
  const int victim = GetParam();
  for (const std::string phase :
       {"engine", "engine: control: memory created",
        "engine: control: memory mapped", "engine: source created",
        "engine: source received"}) {
    SCOPED_TRACE(phase);
    const std::string url = UrlFor(Backend::kShm, UniqueName(), kWorldSize);
    const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
      CommOptions options;
      options.rank = rank.rank();
      options.world_size = kWorldSize;
      options.phase_hook = [&](std::string_view what) {
        if (rank.rank() == victim && what == phase) ::raise(SIGKILL);
      };
      auto first = OpenCommunicator(url, options);
      ASSERT_TRUE(first.ok()) << first.status().ToString();
      const Status status = (*first)->Duplicate("engine", Soon()).status();
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

INSTANTIATE_TEST_SUITE_P(Victims, KillTest, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace shard::testing
