// SPDX-License-Identifier: Apache-2.0
//
// Ranks that act as if they shared no memory (direct=0), and the link that is
// simulated between them.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/exchange.h"
#include "tests/core/comm/backends.h"

namespace shard::testing::link_test {
namespace {

// The delay is longer than any test waits.
constexpr char kEndless[] = "direct=0&delay=1000";

double Seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

class NotDirectTest
    : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
  void Run(const std::string& parameters,
           const std::function<void(Communicator*)>& body) {
    RunGroup(backend(), world_size(), body, /*shutdown=*/true, parameters);
  }
};

TEST_P(NotDirectTest, SaysSo) {
  Run("direct=0", [](Communicator* comm) {
    EXPECT_FALSE(comm->direct());
    EXPECT_TRUE(Contains(comm->Describe(), ", without shared memory"));
    EXPECT_FALSE(Contains(comm->Describe(), "delay"));
  });
  Run("direct=0&delay=0.25&bandwidth=1e6", [](Communicator* comm) {
    EXPECT_TRUE(Contains(comm->Describe(),
                         ", without shared memory, delay 0.25 s, bandwidth "));
  });
  Run("direct=1", [](Communicator* comm) {
    EXPECT_TRUE(comm->direct());
    EXPECT_FALSE(Contains(comm->Describe(), "without"));
  });
}

// All ranks get the error, and the group can still be used.
TEST_P(NotDirectTest, NobodyGetsSharedMemory) {
  Run("direct=0", [](Communicator* comm) {
    for (const auto kind : {SymmetricKind::kPerRank, SymmetricKind::kPerHost}) {
      const auto buffer = comm->Allocate("gradients", 100, kind, Soon());
      EXPECT_EQ(buffer.status().code(), StatusCode::kUnimplemented);
      EXPECT_TRUE(Contains(buffer.status().message(), "'gradients' on "));
      EXPECT_TRUE(Contains(buffer.status().message(), "direct=0"));
    }
    SHARD_EXPECT_OK(comm->Barrier("on", Soon()));
  });
}

// Only tensors are delayed by the link.
TEST_P(NotDirectTest, ControlDataIsNotDelayed) {
  Run(kEndless, [](Communicator* comm) {
    SHARD_ASSERT_OK(comm->Barrier("barrier", Soon()));
    double sum = 1;
    SHARD_ASSERT_OK(AllReduceSum(comm, "sum", &sum, 1, Soon()));
    EXPECT_EQ(sum, comm->world_size());
  });
}

// The time is the one in communicator.h, for the bytes that a ring would send.
TEST_P(NotDirectTest, ALinkTakesItsTime) {
  constexpr double kDelay = 0.02;
  constexpr double kBandwidth = 1e7;
  Run("direct=0&delay=0.02&bandwidth=1e7", [](Communicator* comm) {
    const auto expect_time = [](size_t bytes, const std::function<void()>& f) {
      EXPECT_GE(Seconds(f), kDelay + static_cast<double>(bytes) / kBandwidth);
    };
    const int ranks = comm->world_size();
    const auto blocks = static_cast<size_t>(ranks);
    const RankSet all = RankSet::All(ranks);
    const RankSet alone = RankSet::Of(comm->rank(), 1, 1);
    const auto opened = comm->OpenExchange("tensors", Soon());
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    Exchange* const exchange = opened->get();
    constexpr size_t kCount = 100000;
    std::vector<uint16_t> data(blocks * kCount);
    std::vector<float> sum(kCount);
    expect_time((blocks - 1) * kCount * 2, [&] {
      SHARD_EXPECT_OK(exchange->ReduceScatter("sum", all,
                                              {.send = data.data(),
                                               .dtype = DType::kBF16,
                                               .count = kCount,
                                               .recv = sum.data()},
                                              Soon()));
    });
    expect_time((blocks - 1) * 50000, [&] {
      SHARD_EXPECT_OK(exchange->AllGatherBlocks("gather", all, sum.data(),
                                                50000, data.data(), Soon()));
    });
    expect_time(ranks > 1 ? 300000 : 0, [&] {
      SHARD_EXPECT_OK(
          exchange->Broadcast("weights", 0, sum.data(), 300000, Soon()));
    });
    expect_time(ranks > 1 ? 300000 : 0, [&] {
      SHARD_EXPECT_OK(
          comm->Broadcast("weights", 0, sum.data(), 300000, Soon()));
    });
    expect_time(0, [&] {
      SHARD_EXPECT_OK(exchange->AllGatherBlocks("alone", alone, data.data(),
                                                50000, sum.data(), Soon()));
    });
    expect_time(0, [&] {
      SHARD_EXPECT_OK(comm->Broadcast("nothing", 0, nullptr, 0, Soon()));
    });
  });
}

INSTANTIATE_TEST_SUITE_P(All, NotDirectTest,
                         ::testing::Combine(::testing::Values(Backend::kThreads,
                                                              Backend::kShm),
                                            ::testing::Values(1, 3)),
                         [](const auto& info) {
                           return BackendName(std::get<0>(info.param)) +
                                  std::to_string(std::get<1>(info.param));
                         });

// Rank 1 has no delay of its own: when it returns, rank 0 waits for the link.
TEST(LinkTest, AbortEndsTheWait) {
  const std::string name = UniqueName();
  RunEach(Backend::kThreads, 2, [&](int rank) {
    auto comm = OpenCommunicator(
        UrlFor(Backend::kThreads, name, 2, rank == 0 ? kEndless : "direct=0"),
        {.rank = rank});
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    int32_t word = rank;
    Status status;
    const double seconds = Seconds([&] {
      status = (*comm)->Broadcast("word", 0, &word, sizeof(word), Soon());
    });
    EXPECT_EQ(word, 0);
    EXPECT_LT(seconds, 25);
    if (rank == 1) {
      SHARD_EXPECT_OK(status);
      (*comm)->Abort(Cancelled("stop"));
      status = (*comm)->Barrier("next", Soon());
    }
    EXPECT_EQ(status.code(), StatusCode::kPoisoned);
    EXPECT_TRUE(Contains(status.message(), "CANCELLED: stop"));
  });
}

// Another thread of the waiting rank may abort at any instant.
TEST(LinkTest, AnAbortOfAnotherThreadEndsTheWait) {
  const auto comm =
      OpenCommunicator(StrCat("local:?", kEndless), CommOptions());
  ASSERT_TRUE(comm.ok()) << comm.status().ToString();
  std::thread other([&] { (*comm)->Abort(Cancelled("stop")); });
  const Status status = (*comm)->Broadcast("nothing", 0, nullptr, 0, Soon());
  other.join();
  EXPECT_EQ(status.code(), StatusCode::kPoisoned);
  EXPECT_TRUE(Contains(status.message(), "CANCELLED: stop"));
}

TEST(LinkTest, DeadlineEndsTheWaitAndTheGroup) {
  const auto comm =
      OpenCommunicator(StrCat("local:?", kEndless), CommOptions());
  ASSERT_TRUE(comm.ok()) << comm.status().ToString();
  const Status status =
      (*comm)->Broadcast("weights", 0, nullptr, 0, Deadline::After(0.05));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "'weights': the simulated link takes 1000 s, longer than the 0.05 "
            "s that this rank waits");
  EXPECT_EQ((*comm)->Barrier("next", Soon()).code(), StatusCode::kPoisoned);
}

// The ranks of one group have different URLs.
TEST(MixedTest, DirectAndNotDirectIsDesync) {
  const std::string name = UniqueName();
  RunEach(Backend::kThreads, 2, [&](int rank) {
    const Status status = OpenCommunicator(UrlFor(Backend::kThreads, name, 2,
                                                  rank == 0 ? "" : "direct=0"),
                                           {.rank = rank})
                              .status();
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_TRUE(Contains(status.message(),
                         "rank 0 called all-gather 'open: trace' of 4 bytes, "
                         "rank 1 called all-gather 'open: trace' of 4 bytes "
                         "without shared memory"))
        << status.ToString();
  });
}

}  // namespace
}  // namespace shard::testing::link_test
