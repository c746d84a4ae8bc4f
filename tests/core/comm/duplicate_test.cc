// SPDX-License-Identifier: Apache-2.0
//
// A communicator and its duplicates: each has a sequence of calls of its own.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>

#include "core/base/dtype.h"
#include "core/comm/communicator.h"
#include "core/comm/exchange.h"
#include "tests/core/comm/backends.h"
#include "tests/core/comm/duplicates.h"

namespace shard::testing::duplicate_test {
namespace {

class DuplicateTest
    : public ::testing::TestWithParam<std::tuple<Backend, int, bool>> {
 protected:
  void Run(const std::function<void(Handle, Handle)>& body) {
    const auto [backend, world_size, direct] = GetParam();
    RunFamily(backend, world_size, body, direct ? "" : "direct=0");
  }
};

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
    EXPECT_EQ(duplicate->shares_host(), first->shares_host());
    EXPECT_EQ(refused.status().code(), first->shares_host()
                                           ? StatusCode::kOk
                                           : StatusCode::kUnimplemented);
    SHARD_EXPECT_OK(duplicate->Shutdown(Soon()));
    EXPECT_EQ(duplicate->Barrier("late", Soon()).code(),
              StatusCode::kFailedPrecondition);
    // The shutdown of the duplicate did not end the first.
    SHARD_EXPECT_OK(first->Barrier("goes on", Soon()));
    SHARD_EXPECT_OK(first->Shutdown(Soon()));
  });
}

// Each rank has two threads, in any order that the scheduler chooses. Both
// allocate, and must not take each other's memory.
TEST_P(DuplicateTest, WorksAtTheSameTimeAsTheFirst) {
  Run([](Handle first, Handle duplicate) {
    std::thread worker([&] { Work(duplicate.get(), 30, 1000); });
    Work(first.get(), 30, 2000);
    worker.join();
    SHARD_EXPECT_OK(duplicate->Shutdown(Soon()));
    SHARD_EXPECT_OK(first->Shutdown(Soon()));
  });
}

// Rank 0 calls the two communicators in one order, the other ranks in the
// other. Each waits in one while its peers wait in the other, and no call is a
// desync.
TEST_P(DuplicateTest, MayBeCalledInAnotherOrderOnEveryRank) {
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

// Duplicates of a duplicate are made while the first is in use.
TEST_P(DuplicateTest, MayBeDuplicated) {
  Run([](Handle first, Handle duplicate) {
    std::thread worker([&] {
      auto third = duplicate->Duplicate("third", /*direct=*/true, Soon());
      ASSERT_TRUE(third.ok()) << third.status().ToString();
      duplicate.reset();
      Work(third->get(), 9, 3000);
    });
    auto fourth = first->Duplicate("fourth", /*direct=*/true, Soon());
    ASSERT_TRUE(fourth.ok()) << fourth.status().ToString();
    Work(fourth->get(), 9, 4000);
    worker.join();
    SHARD_EXPECT_OK(first->Shutdown(Soon()));
  });
}

// A peer frees the communicator that it no longer needs, in any order, and no
// rank is lost.
TEST_P(DuplicateTest, MayBeFreedInAnyOrder) {
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

// Calls of a duplicate fail once the first is shut down, whatever they wait
// for.
TEST_P(DuplicateTest, EndsWithTheShutdownOfTheFirst) {
  Run([](Handle first, Handle duplicate) {
    auto opened = duplicate->OpenExchange("tensors", Soon());
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    Exchange* const exchange = opened->get();
    const bool last = first->rank() == first->world_size() - 1;
    Status waited;
    std::thread worker([&] {
      // The last rank never comes; in a group of one there is no one to wait
      // for.
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
        duplicate->Broadcast("late", 0, &value, 4, Soon()),
        duplicate->Duplicate("late", /*direct=*/true, Soon()).status(),
        duplicate->OpenExchange("late", Soon()).status(),
        exchange->ReduceScatter("late", alone,
                                {.send = &value, .count = 1, .recv = &value},
                                Soon()),
        exchange->AllGatherBlocks("late", alone, &value, 4, &value, Soon()),
        exchange->Broadcast("late", 0, &value, 4, Soon()),
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

}  // namespace
}  // namespace shard::testing::duplicate_test
