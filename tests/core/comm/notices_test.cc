// SPDX-License-Identifier: Apache-2.0

#include "core/comm/notices.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/comm/communicator.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/comm/backends.h"
#include "tests/core/comm/posted.h"

namespace shard::testing::notices_test {
namespace {

// A sanitizer sees in a few rounds what it sees in many.
constexpr int kFewer = kSanitized ? 5 : 1;

class NoticesTest
    : public ::testing::TestWithParam<std::tuple<Backend, int, bool>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }

  void Run(const std::function<void(Communicator*, Poster*)>& body) {
    RunGroup(
        backend(), world_size(),
        [&](Communicator* comm) {
          const auto poster = OpenPoster(comm);
          if (poster != nullptr) body(comm, poster.get());
        },
        /*shutdown=*/true, std::get<2>(GetParam()) ? "" : "direct=0");
  }
};

TEST_P(NoticesTest, AMeetingGathersTheNoticesOfAllRanks) {
  Run([](Communicator*, Poster* poster) {
    for (int i = 0; i < 1000 / kFewer; ++i) SHARD_ASSERT_OK(poster->Meet());
  });
}

// The ranks that are ahead have returned from all calls before the last rank
// makes its first one, and it compares its notices with all of theirs.
TEST_P(NoticesTest, ARankThatIsAheadDoesNotWait) {
  Run([](Communicator* comm, Poster* poster) {
    const bool is_last = comm->rank() == comm->world_size() - 1;
    if (is_last) SHARD_ASSERT_OK(comm->Barrier("others are ahead", Soon()));
    int compared = 0;
    for (int i = 0; i < Notices::kMostAhead; ++i) {
      SHARD_ASSERT_OK(poster->Post([&](int, uint64_t) { ++compared; }));
    }
    if (is_last) {
      EXPECT_EQ(compared, Notices::kMostAhead * (comm->world_size() - 1));
    } else {
      SHARD_ASSERT_OK(comm->Barrier("others are ahead", Soon()));
    }
    SHARD_ASSERT_OK(poster->Await());
  });
}

// A rank that is further ahead waits until the others have read its notices.
TEST_P(NoticesTest, ARankTooFarAheadWaits) {
  Run([](Communicator* comm, Poster* poster) {
    constexpr int kPosts = 5 * Notices::kMostAhead;
    const bool is_last = comm->rank() == comm->world_size() - 1;
    if (is_last) SHARD_ASSERT_OK(comm->Barrier("others are ahead", Soon()));
    for (int i = 0; i < kPosts; ++i) {
      if (!is_last && i == Notices::kMostAhead) {
        SHARD_ASSERT_OK(comm->Barrier("others are ahead", Soon()));
      }
      SHARD_ASSERT_OK(poster->Post());
    }
    SHARD_ASSERT_OK(poster->Await());
  });
}

// Ranks await what they like: each goes on when the others have posted.
TEST_P(NoticesTest, RanksAwaitDifferentNotices) {
  Run([](Communicator* comm, Poster* poster) {
    std::mt19937 random(static_cast<unsigned>(comm->rank()));
    for (int i = 0; i < 2000 / kFewer; ++i) {
      const unsigned kind = random() % 32;
      if (kind == 0) {
        SHARD_ASSERT_OK(poster->Meet());
        continue;
      }
      SHARD_ASSERT_OK(poster->Post());
      if (kind == 1) SHARD_ASSERT_OK(poster->Await());
      if (kind < 6) std::this_thread::yield();
    }
    SHARD_ASSERT_OK(poster->Await());
  });
}

// A rank that waits for an earlier notice has compared all up to that one.
TEST_P(NoticesTest, AnEarlierNoticeIsAwaited) {
  Run([](Communicator* comm, Poster* poster) {
    int compared = 0;
    const auto seen = [&](int, uint64_t number) {
      if (number <= 2) ++compared;
    };
    for (int i = 0; i < 4; ++i) SHARD_ASSERT_OK(poster->Post(seen));
    SHARD_ASSERT_OK(poster->Await(2, seen));
    EXPECT_EQ(compared, 2 * (comm->world_size() - 1));
    SHARD_ASSERT_OK(poster->Await());
  });
}

// Notices and collectives have no common order.
TEST_P(NoticesTest, CollectivesOfTheCommunicatorGoOnMeanwhile) {
  Run([](Communicator* comm, Poster* poster) {
    std::thread worker([&] {
      for (int i = 0; i < 500; ++i) {
        SHARD_ASSERT_OK(comm->Barrier("work", Soon()));
      }
    });
    for (int i = 0; i < 500; ++i) {
      SHARD_EXPECT_OK(poster->Post());
      if (i % 3 == comm->rank() % 3) SHARD_EXPECT_OK(poster->Await());
    }
    worker.join();
  });
}

TEST_P(NoticesTest, SeveralNoticesHaveSequencesOfTheirOwn) {
  Run([](Communicator* comm, Poster* poster) {
    const auto other = OpenPoster(comm);
    ASSERT_NE(other, nullptr);
    for (int i = 0; i < 100; ++i) {
      SHARD_ASSERT_OK((comm->rank() == 0 ? poster : other.get())->Post());
    }
    for (int i = 0; i < 100; ++i) {
      SHARD_ASSERT_OK((comm->rank() == 0 ? other.get() : poster)->Post());
    }
    SHARD_ASSERT_OK(poster->Await());
    SHARD_ASSERT_OK(other->Await());
  });
}

TEST_P(NoticesTest, SizesMustBeTheSame) {
  RunGroup(
      backend(), world_size(),
      [&](Communicator* comm) {
        const size_t bytes = comm->rank() == 0 ? 8 : 16;
        const Status status = comm->OpenNotices("unit", bytes, Soon()).status();
        if (comm->world_size() == 1) {
          SHARD_EXPECT_OK(status);
        } else {
          EXPECT_EQ(status.code(), StatusCode::kDesync);
          EXPECT_TRUE(Contains(status.message(),
                               "rank 0 called opening of notices 'unit' of 8 "
                               "bytes"));
        }
      },
      /*shutdown=*/false);
}

// The last handle of a rank, of any kind, is its membership.
TEST_P(NoticesTest, OutliveTheirCommunicator) {
  const std::string url = UrlFor(backend(), UniqueName(), world_size());
  RunEach(backend(), world_size(), [&](int rank) {
    auto comm =
        OpenCommunicator(url, {.rank = rank, .world_size = world_size()});
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    const auto poster = OpenPoster(comm->get());
    ASSERT_NE(poster, nullptr);
    comm->reset();
    SHARD_EXPECT_OK(poster->Post());
    SHARD_EXPECT_OK(poster->Await());
  });
}

TEST_P(NoticesTest, EndWithTheShutdownOfTheirCommunicator) {
  Run([](Communicator* comm, Poster* poster) {
    SHARD_ASSERT_OK(poster->Post());
    SHARD_ASSERT_OK(comm->Shutdown(Soon()));
    EXPECT_EQ(poster->Post().code(), StatusCode::kFailedPrecondition);
  });
}

std::string NameOf(
    const ::testing::TestParamInfo<std::tuple<Backend, int, bool>>& info) {
  return StrCat(BackendName(std::get<0>(info.param)), std::get<1>(info.param),
                std::get<2>(info.param) ? "" : "NoSharedMemory");
}

INSTANTIATE_TEST_SUITE_P(
    All, NoticesTest,
    ::testing::Combine(::testing::Values(Backend::kThreads, Backend::kShm),
                       ::testing::Values(1, 2, 4), ::testing::Bool()),
    NameOf);

// RunGroup gives these no parameters.
INSTANTIATE_TEST_SUITE_P(
    Hosts, NoticesTest,
    ::testing::Combine(::testing::Values(Backend::kHosts, Backend::kTcp),
                       ::testing::Values(1, 2, 4), ::testing::Values(true)),
    NameOf);

// At least one of every two ranks compares their notices, whatever the timing,
// and before a meeting is over.
class NoticesOfThreadsTest : public ::testing::TestWithParam<Backend> {};

TEST_P(NoticesOfThreadsTest, EveryTwoRanksAreCompared) {
  constexpr int kRanks = 3;
  constexpr uint64_t kPosts = 10000 / kFewer;
  // Every so many notices the ranks meet, to which `compared` does not apply.
  constexpr uint64_t kBetween = 20;
  // By number and by the sum of the ranks, which names a pair.
  std::vector<std::atomic<int>> compared((kPosts + 1) * 2 * kRanks);
  RunGroup(GetParam(), kRanks, [&](Communicator* comm) {
    const auto poster = OpenPoster(comm);
    ASSERT_NE(poster, nullptr);
    const auto seen = [&](int rank, uint64_t number) {
      const auto pair = static_cast<size_t>(comm->rank() + rank);
      ++compared[number * 2 * kRanks + pair];
    };
    std::mt19937 random(static_cast<unsigned>(comm->rank()));
    for (uint64_t number = 1; number <= kPosts; ++number) {
      for (unsigned spin = random() % 64; spin > 0; --spin) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
      SHARD_ASSERT_OK(number % kBetween == 0 ? poster->Meet(seen)
                                             : poster->Post(seen));
    }
    SHARD_ASSERT_OK(poster->Await());
  });
  int64_t once = 0;
  int64_t twice = 0;
  for (uint64_t number = 1; number <= kPosts; ++number) {
    if (number % kBetween == 0) continue;
    for (const size_t pair : {1, 2, 3}) {
      const int times = compared[number * 2 * kRanks + pair];
      ASSERT_GE(times, 1) << "notice " << number << ", pair " << pair;
      ASSERT_LE(times, 2) << "notice " << number << ", pair " << pair;
      ++(times == 1 ? once : twice);
    }
  }
  EXPECT_EQ(once + twice,
            static_cast<int64_t>(3 * (kPosts - kPosts / kBetween)));
}

INSTANTIATE_TEST_SUITE_P(All, NoticesOfThreadsTest,
                         ::testing::Values(Backend::kThreads, Backend::kHosts),
                         [](const auto& info) {
                           return BackendName(info.param);
                         });

}  // namespace
}  // namespace shard::testing::notices_test
