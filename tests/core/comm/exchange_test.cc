// SPDX-License-Identifier: Apache-2.0
//
// Calls of an exchange that no rank can make. Its data movement is tested where
// it is used, in tests/core/collectives.

#include "core/comm/exchange.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/direct/control_block.h"
#include "tests/core/comm/backends.h"

namespace shard::testing::exchange_test {
namespace {

constexpr int kWorldSize = 4;

class ExchangeTest
    : public ::testing::TestWithParam<std::tuple<Backend, bool>> {
 protected:
  // Runs body(rank, exchange) on every rank, after a collective that succeeds.
  void Run(const std::function<void(int rank, Exchange* exchange)>& body) {
    const std::string parameters = std::get<1>(GetParam()) ? "" : "direct=0";
    const auto run = [&](Communicator* comm) {
      const auto exchange = comm->OpenExchange("tensors", Soon());
      ASSERT_TRUE(exchange.ok()) << exchange.status().ToString();
      int32_t word = comm->rank();
      SHARD_ASSERT_OK((*exchange)->Broadcast("first", 1, &word, 4, Soon()));
      EXPECT_EQ(word, 1);
      body(comm->rank(), exchange->get());
    };
    RunGroup(std::get<0>(GetParam()), kWorldSize, run, /*shutdown=*/false,
             parameters);
  }

  // Expects an error that names rank `odd`, and that no memory was touched.
  void ExpectWrong(const std::function<RankSet(int rank)>& set_of,
                   int block_groups, int odd, const std::string& why) {
    Run([&](int rank, Exchange* exchange) {
      const std::vector<float> send(100 * kWorldSize);
      std::vector<float> recv(100, 7);
      const Status status =
          exchange->ReduceScatter("gradients", set_of(rank),
                                  {.send = send.data(),
                                   .count = 100,
                                   .recv = recv.data(),
                                   .block_groups = block_groups},
                                  Soon());
      EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
      EXPECT_EQ(status.rank(), odd) << status.ToString();
      EXPECT_TRUE(
          Contains(status.message(),
                   StrCat("rank ", odd, " called reduce-scatter 'gradients'")));
      EXPECT_TRUE(Contains(status.message(), why));
      EXPECT_EQ(recv, std::vector<float>(100, 7));
    });
  }
};

// Some sets do not divide the world, or a rank names another rank's set. All
// ranks get the error, and no rank's memory is touched.
TEST_P(ExchangeTest, WrongSetsAreErrorsOnAllRanks) {
  struct Case {
    int odd;  // The rank that the error names.
    // Returns the set that a rank names.
    std::function<RankSet(int rank)> set_of;
  };
  const Case cases[] = {
      {0,
       [](int) {
         return RankSet{0, 1, 3};
       }},
      {2,
       [](int) {
         return RankSet{0, 1, 2};
       }},
      {1,
       [](int) {
         return RankSet{0, 2, 2};
       }},
      {3,
       [](int rank) {
         return RankSet{rank == 3 ? 1 : 0, 1, 4};
       }},
      {0,
       [](int) {
         return RankSet{0, 0, 4};
       }},
      {0,
       [](int) {
         return RankSet{0, 1, 0};
       }},
      {0,
       [](int) {
         return RankSet{-4, 1, 4};
       }},
      {2,
       [](int rank) {
         return RankSet{rank == 2 ? 1 : rank / 2 * 2, 1, 2};
       }},
  };
  for (const Case& wrong : cases) {
    ExpectWrong(wrong.set_of, 1, wrong.odd,
                "which is not its set of the 4 ranks");
  }
}

TEST_P(ExchangeTest, WrongOrdersOfBlocksAreErrorsOnAllRanks) {
  for (const int groups : {3, 5, 0, -1, INT32_MIN}) {
    ExpectWrong([](int) { return RankSet::All(kWorldSize); }, groups, 0,
                StrCat("whose blocks lie in an order of ", groups, " groups"));
  }
}

// The ranks call the same thing of different sequences.
TEST_P(ExchangeTest, IsNoDuplicate) {
  RunGroup(
      std::get<0>(GetParam()), kWorldSize,
      [](Communicator* comm) {
        const Status status =
            comm->rank() == 2
                ? comm->OpenExchange("it", Soon()).status()
                : comm->Duplicate("it", /*direct=*/true, Soon()).status();
        EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
        EXPECT_EQ(status.rank(), 2);
        EXPECT_TRUE(
            Contains(status.message(), "rank 0 called duplication 'it'"));
        EXPECT_TRUE(Contains(status.message(),
                             "rank 2 called opening of an exchange 'it'"));
      },
      /*shutdown=*/false);
}

// A rank is in a barrier of the communicator while its exchange moves tensors.
TEST_P(ExchangeTest, HasASequenceOfItsOwn) {
  const auto run = [](Communicator* comm) {
    const auto exchange = comm->OpenExchange("tensors", Soon());
    ASSERT_TRUE(exchange.ok()) << exchange.status().ToString();
    std::thread barrier([&] {
      if (comm->rank() > 0) SHARD_EXPECT_OK(comm->Barrier("control", Soon()));
    });
    for (int i = 0; i < 10; ++i) {
      int32_t word = comm->rank();
      SHARD_EXPECT_OK((*exchange)->Broadcast("word", 3, &word, 4, Soon()));
      EXPECT_EQ(word, 3);
    }
    if (comm->rank() == 0) SHARD_EXPECT_OK(comm->Barrier("control", Soon()));
    barrier.join();
  };
  RunGroup(std::get<0>(GetParam()), kWorldSize, run);
}

// Blocks that fit into a round's cell allocate no staging memory.
TEST_P(ExchangeTest, GathersSmallBlocksInARound) {
  const std::string url =
      UrlFor(std::get<0>(GetParam()), UniqueName(), kWorldSize,
             std::get<1>(GetParam()) ? "" : "direct=0");
  RunEach(std::get<0>(GetParam()), kWorldSize, [&](int rank) {
    std::vector<std::string> phases;
    CommOptions options = {.rank = rank, .world_size = kWorldSize};
    options.phase_hook = [&](std::string_view what) {
      phases.emplace_back(what);
    };
    const auto comm = OpenCommunicator(url, options);
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    const auto exchange = (*comm)->OpenExchange("tensors", Soon());
    ASSERT_TRUE(exchange.ok()) << exchange.status().ToString();
    const RankSet all = RankSet::All(kWorldSize);
    const auto gather = [&](size_t bytes) {
      const std::string send(bytes, static_cast<char>('a' + rank));
      std::string recv(kWorldSize * bytes, '?');
      SHARD_EXPECT_OK((*exchange)->AllGatherBlocks("sums", all, send.data(),
                                                   bytes, recv.data(), Soon()));
      std::string expected;
      for (const char block : {'a', 'b', 'c', 'd'}) {
        expected.append(bytes, block);
      }
      EXPECT_TRUE(recv == expected) << bytes;
      return std::exchange(phases, {});
    };
    phases.clear();
    const std::vector<std::string> one = {"sums"};
    for (const size_t bytes : {size_t{1}, size_t{88}, direct::kPayloadBytes}) {
      EXPECT_EQ(gather(bytes), one) << bytes;
    }
    EXPECT_THAT(gather(direct::kPayloadBytes + 1),
                ::testing::Contains("sums: staging: memory created"));
    EXPECT_EQ(gather(direct::kPayloadBytes + 1), one);
    SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
  });
}

std::string NameOf(
    const ::testing::TestParamInfo<std::tuple<Backend, bool>>& info) {
  return BackendName(std::get<0>(info.param)) +
         (std::get<1>(info.param) ? "" : "NotDirect");
}

INSTANTIATE_TEST_SUITE_P(All, ExchangeTest,
                         ::testing::Combine(::testing::Values(Backend::kThreads,
                                                              Backend::kShm),
                                            ::testing::Bool()),
                         NameOf);

// RunGroup gives these no parameters.
INSTANTIATE_TEST_SUITE_P(Hosts, ExchangeTest,
                         ::testing::Combine(::testing::Values(Backend::kHosts,
                                                              Backend::kTcp),
                                            ::testing::Values(true)),
                         NameOf);

}  // namespace
}  // namespace shard::testing::exchange_test
