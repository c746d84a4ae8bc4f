// SPDX-License-Identifier: Apache-2.0
//
// Tensor collectives of ranks that make different calls, are late, or are gone.
// Every rank must see the same error.

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "core/comm/communicator.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/comm/backends.h"

namespace shard::testing::faults_test {
namespace {

constexpr int kWorldSize = 4;

// A call, in memory that is large enough for all calls below.
struct TensorCall {
  RankSet set;  // `first` is rank 0's; each rank replaces it by its own.
  DType dtype = DType::kF32;
  DType recv_dtype = DType::kF32;
  size_t count = 100;
  bool add = false;
  int groups = 1;

  Status Make(BlockingCollectives* comm) const {
    const RankSet mine = RankSet::Of(comm->rank(), set.stride, set.count);
    std::vector<float> send(100 * kWorldSize);
    std::vector<float> recv(100);
    return comm->ReduceScatter("gradients", mine,
                               {.send = send.data(),
                                .dtype = dtype,
                                .count = count,
                                .recv = recv.data(),
                                .recv_dtype = recv_dtype,
                                .add = add,
                                .block_groups = groups});
  }
};

constexpr TensorCall kUsual{{0, 1, kWorldSize}};

class CollectivesFaultTest
    : public ::testing::TestWithParam<std::tuple<Backend, bool>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  std::string parameters() const {
    return std::get<1>(GetParam()) ? "" : "direct=0";
  }
  void Run(const std::function<void(BlockingCollectives*)>& body) {
    RunGroup(
        backend(), kWorldSize,
        [&](Communicator* comm) {
          BlockingCollectives collectives(comm);
          body(&collectives);
        },
        /*shutdown=*/false, parameters());
  }

  // Expects a desync when the last rank makes another call than the others,
  // before the first tensor was transferred and after. The message on every
  // rank has both calls.
  void ExpectDesync(const std::function<Status(BlockingCollectives*)>& call,
                    const std::string& text,
                    const std::function<Status(BlockingCollectives*)>& odd_call,
                    const std::string& odd_text) {
    for (const bool used : {false, true}) {
      Run([&](BlockingCollectives* comm) {
        constexpr int kOdd = kWorldSize - 1;
        if (used) SHARD_ASSERT_OK(kUsual.Make(comm));
        const Status status =
            comm->rank() == kOdd ? odd_call(comm) : call(comm);
        EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
        EXPECT_EQ(status.rank(), kOdd);
        EXPECT_TRUE(Contains(status.message(), StrCat("rank 0 called ", text)));
        EXPECT_TRUE(Contains(status.message(),
                             StrCat("rank ", kOdd, " called ", odd_text)));
        EXPECT_EQ(kUsual.Make(comm).code(), StatusCode::kPoisoned);
      });
    }
  }
};

TEST_P(CollectivesFaultTest, DifferentReduceScattersAreDesync) {
  struct Case {
    TensorCall call;
    std::string text;
  };
  const std::string usual_text =
      "reduce-scatter 'gradients' of 100 f32 to f32 over 4 ranks from 0 in "
      "steps of 1";
  const Case cases[] = {
      {{{0, 1, 4}, DType::kF32, DType::kF32, 99},
       "reduce-scatter 'gradients' of 99 f32 to f32 over 4 ranks from 0"},
      {{{0, 1, 4}, DType::kBF16},
       "reduce-scatter 'gradients' of 100 bf16 to f32 over"},
      {{{0, 1, 4}, DType::kF32, DType::kF16},
       "reduce-scatter 'gradients' of 100 f32 to f16 over"},
      {{{0, 1, 4}, DType::kF32, DType::kF32, 100, true},
       "reduce-scatter 'gradients' of 100 f32 added to f32 over"},
      {{{0, 1, 4}, DType::kF32, DType::kF32, 100, false, 2},
       "reduce-scatter 'gradients' of 100 f32 to f32 over 4 ranks from 0 in "
       "steps of 1, blocks by 2 groups"},
      {{{0, 1, 2}},
       "reduce-scatter 'gradients' of 100 f32 to f32 over 2 ranks from 2 in "
       "steps of 1"},
      {{{0, 1, 1}},
       "reduce-scatter 'gradients' of 100 f32 to f32 over 1 ranks from 3"},
  };
  for (const Case& other : cases) {
    SCOPED_TRACE(other.text);
    ExpectDesync(
        [&](BlockingCollectives* comm) { return kUsual.Make(comm); },
        usual_text,
        [&](BlockingCollectives* comm) { return other.call.Make(comm); },
        other.text);
  }
  // The usual ranks name groups of neighbors, the odd one replicas.
  ExpectDesync(
      [&](BlockingCollectives* comm) {
        return TensorCall{{0, 1, 2}}.Make(comm);
      },
      "reduce-scatter 'gradients' of 100 f32 to f32 over 2 ranks from 0 in "
      "steps of 1",
      [&](BlockingCollectives* comm) {
        return TensorCall{{0, 2, 2}}.Make(comm);
      },
      "reduce-scatter 'gradients' of 100 f32 to f32 over 2 ranks from 1 in "
      "steps of 2");
}

TEST_P(CollectivesFaultTest, OtherCallsThatDifferAreDesync) {
  std::vector<char> recv(400);
  const auto gather = [](size_t bytes) {
    return [bytes](BlockingCollectives* comm) {
      std::vector<char> send(100);
      std::vector<char> all(400);
      return comm->AllGatherBlocks("parameters", RankSet::All(kWorldSize),
                                   send.data(), bytes, all.data());
    };
  };
  const auto broadcast = [](int root, size_t bytes) {
    return [root, bytes](BlockingCollectives* comm) {
      std::vector<char> data(100);
      return comm->Broadcast("weights", root, data.data(), bytes);
    };
  };
  const std::string gather_text =
      "all-gather of blocks 'parameters' of 100 bytes over 4 ranks from 0 in "
      "steps of 1";
  ExpectDesync(gather(100), gather_text, gather(64),
               "all-gather of blocks 'parameters' of 64 bytes");
  ExpectDesync(gather(100), gather_text, broadcast(1, 100),
               "broadcast 'weights' of 100 bytes from rank 1");
  ExpectDesync(
      broadcast(0, 100), "broadcast 'weights' of 100 bytes from rank 0",
      broadcast(2, 100), "broadcast 'weights' of 100 bytes from rank 2");
  ExpectDesync(broadcast(0, 100),
               "broadcast 'weights' of 100 bytes from rank 0", broadcast(0, 10),
               "broadcast 'weights' of 10 bytes from rank 0");
}

TEST_P(CollectivesFaultTest, DeadlineNamesTheMissingAndPoisonsTheLate) {
  const std::string url =
      UrlFor(backend(), UniqueName(), kWorldSize, parameters());
  const std::string side = UrlFor(backend(), UniqueName(), kWorldSize);
  RunEach(backend(), kWorldSize, [&](int rank) {
    const CommOptions options = {.rank = rank, .world_size = kWorldSize};
    auto comm = OpenCommunicator(url, options);
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    auto signal = OpenCommunicator(side, options);
    ASSERT_TRUE(signal.ok()) << signal.status().ToString();
    BlockingCollectives collectives(comm->get(), /*timeout=*/1);
    int32_t word = 0;
    SHARD_ASSERT_OK((*signal)->Barrier("go", Soon()));
    SHARD_ASSERT_OK(collectives.Broadcast("first", 0, &word, 4));
    constexpr int kLate = kWorldSize - 1;
    const TensorCall second{{0, 2, 2}};
    if (rank != kLate) {
      const Status status = second.Make(&collectives);
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
      EXPECT_EQ(status.rank(), kLate);
      EXPECT_TRUE(Contains(status.message(),
                           "'gradients': 1 of 4 ranks did not enter it within "
                           "1 s: rank [3]; the last it entered was broadcast "
                           "'first' of 4 bytes from rank 0"));
    }
    SHARD_ASSERT_OK((*signal)->Barrier("has failed", Soon()));
    const Status later = second.Make(&collectives);
    EXPECT_EQ(later.code(), StatusCode::kPoisoned);
    EXPECT_TRUE(Contains(later.message(), "DEADLINE_EXCEEDED: 'gradients': 1"));
    SHARD_EXPECT_OK((*signal)->Shutdown(Soon()));
  });
}

TEST_P(CollectivesFaultTest, LeavingWithoutShutdownIsALostRank) {
  Run([](BlockingCollectives* comm) {
    constexpr int kLeaving = 1;
    // Rank 1 is in another set than ranks 2 and 3.
    const TensorCall call{{0, 1, 2}};
    SHARD_ASSERT_OK(call.Make(comm));
    if (comm->rank() == kLeaving) return;  // RunGroup frees it.
    for (int i = 0; i < 2; ++i) {
      const Status status = call.Make(comm);
      EXPECT_EQ(status.code(), StatusCode::kRankLost);
      EXPECT_EQ(status.rank(), kLeaving);
      EXPECT_TRUE(
          Contains(status.message(), "left the group without Shutdown"));
      EXPECT_TRUE(Contains(status.message(), "before it entered 'gradients'"));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, CollectivesFaultTest,
                         ::testing::Combine(::testing::Values(Backend::kThreads,
                                                              Backend::kShm),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return BackendName(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "" : "NotDirect");
                         });

// A rank is killed at a random instant of a long reduce-scatter, between its
// tiles or within one. All survivors agree on the outcome.
TEST(KillInATensorTest, SurvivorsAgree) {
  for (int attempt = 0; attempt < 12; ++attempt) {
    constexpr int kRanks = 3;
    const std::string url =
        UrlFor(Backend::kShm, UniqueName(), kRanks, "direct=0");
    const int victim = attempt % kRanks;
    const auto results = RunRanks(kRanks, [&](const Rank& rank) {
      auto comm =
          OpenCommunicator(url, {.rank = rank.rank(), .world_size = kRanks});
      ASSERT_TRUE(comm.ok()) << comm.status().ToString();
      constexpr size_t kCount = 400000;  // The tensor has four tiles.
      std::vector<float> data(kRanks * kCount, 1);
      std::vector<float> sum(kCount);
      BlockingCollectives collectives(comm->get());
      if (rank.rank() == victim) {
        itimerval timer{};
        timer.it_value.tv_usec = 2000 + 931 * attempt;
        ::signal(SIGALRM, [](int) { ::raise(SIGKILL); });
        ::setitimer(ITIMER_REAL, &timer, nullptr);
      }
      int calls = 0;
      Status status;
      for (;;) {
        status = collectives.ReduceScatter(
            StrCat("call ", calls), RankSet::All(kRanks),
            {.send = data.data(), .count = kCount, .recv = sum.data()});
        if (!status.ok()) break;
        ++calls;
      }
      EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
      EXPECT_EQ(status.rank(), victim);
      rank.Report(StrCat(calls, " ", status.message()));
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
}  // namespace shard::testing::faults_test
