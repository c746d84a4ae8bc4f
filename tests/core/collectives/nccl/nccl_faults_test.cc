// SPDX-License-Identifier: Apache-2.0
//
// NCCL waits for ever for a rank that is late, lost, or calls something else.
// Every rank gets an error, in time and with the name of that rank, its stream
// fails, and NCCL's communicators are aborted.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/collectives/nccl/nccl_rank.h"

namespace shard::testing::nccl_faults_test {
namespace {

constexpr double kTimeout = 1;
constexpr size_t kBytes = 400;

using Clock = std::chrono::steady_clock;

// Gathers `bytes` bytes of each rank, and returns the stream's status.
Status Gather(NcclRank* rank, size_t bytes = kBytes) {
  const auto ranks = static_cast<size_t>(rank->comm->world_size());
  const DeviceTensor all(rank, std::vector<unsigned char>(ranks * bytes));
  auto* const own = static_cast<unsigned char*>(all.data()) +
                    static_cast<size_t>(rank->comm->rank()) * bytes;
  rank->collectives->AllGatherBlocks("gather", rank->all, own, bytes,
                                     all.data(), rank->stream.get());
  const Status status = rank->Synchronize();
  rank->stream->Settle(Soon());
  return status;
}

// Holds up a stream, so that its thread makes the calls of what is enqueued
// next, and not the host's.
class Gate {
 public:
  explicit Gate(Stream* stream) {
    stream->Call("gate", [is_open = is_open_] {
      EXPECT_TRUE(ComesTrue([&] { return is_open->load(); }));
      return Status();
    });
  }
  void Open() { *is_open_ = true; }

 private:
  const std::shared_ptr<std::atomic<bool>> is_open_ =
      std::make_shared<std::atomic<bool>>(false);
};

// Expects the error with which the family has ended. A rank that comes later is
// told of it.
void ExpectEnd(const Status& status, StatusCode code) {
  if (status.code() == code) return;
  EXPECT_EQ(status.code(), StatusCode::kPoisoned) << status.ToString();
  EXPECT_TRUE(Contains(status.message(), StatusCodeName(code)));
}

// Runs body(rank) on three ranks whose collectives have worked once, and
// expects all to have returned in time.
void RunNcclRanks(const std::function<void(NcclRank*)>& body) {
  const FakeNccl fake(OneGpuEach(3));
  RunGroup(
      Backend::kThreads, 3,
      [&](Communicator* comm) {
        NcclRank rank(comm, {RankSet::All(3)},
                      {.order = SumOrder::kLibrary, .timeout = kTimeout});
        ASSERT_OK(Gather(&rank));
        ASSERT_OK(comm->Barrier("begin", Soon()));
        const auto begin = Clock::now();
        body(&rank);
        EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(),
                  kTimeout + 1 + 2);
        EXPECT_FALSE(comm->Barrier("after", Soon()).ok());
      },
      /*shutdown=*/false);
}

TEST(NcclFaultsTest, ARankThatDoesNotComeIsNamed) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() == 1) {
      EXPECT_FALSE(rank->comm->Barrier("instead", Soon()).ok());
      return;
    }
    const Status status = Gather(rank);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
        << status.ToString();
    EXPECT_EQ(status.rank(), 1);
    // On the rank that comes second, too, which is told the first one's error.
    EXPECT_TRUE(status.message().starts_with("'gather': 1 of 3 ranks"))
        << status.message();
  });
}

TEST(NcclFaultsTest, RanksThatCallDifferentThingsAreNamed) {
  RunNcclRanks([](NcclRank* rank) {
    const bool differs = rank->comm->rank() == 2;
    const Status status = Gather(rank, differs ? kBytes / 2 : kBytes);
    ExpectEnd(status, StatusCode::kDesync);
    EXPECT_TRUE(Contains(status.message(), "an all-gather 'gather' of 400"));
    EXPECT_TRUE(
        Contains(status.message(),
                 "rank 2 an all-gather 'gather' of 200 bytes over 3 ranks"));
    EXPECT_FALSE(Contains(status.message(), "this rank"));
  });
}

TEST(NcclFaultsTest, RanksThatCallInAnotherOrderAreNamed) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() != 1) {
      const Status status = Gather(rank);
      ExpectEnd(status, StatusCode::kDesync);
      EXPECT_TRUE(Contains(status.message(), "an all-gather 'gather'"));
      EXPECT_TRUE(Contains(status.message(), "a broadcast 'word'"));
      return;
    }
    const DeviceTensor word(rank, std::vector<unsigned char>(8));
    rank->collectives->Broadcast("word", 0, word.data(), 8, rank->stream.get());
    rank->collectives->AllGatherBlocks("gather", rank->all, word.data(), 1,
                                       word.data(), rank->stream.get());
    ExpectEnd(rank->Synchronize(), StatusCode::kDesync);
    rank->stream->Settle(Soon());
  });
}

// The ranks announce the same, but NCCL runs something else on one of them.
TEST(NcclFaultsTest, KernelsInAnotherOrderEndAtTheDeadline) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(
      Backend::kThreads, 2,
      [&](Communicator* comm) {
        NcclRank rank(comm, {RankSet::All(2)}, {.timeout = kTimeout});
        if (comm->rank() == 0) fake_nccl::SwapAt(1, {.rank = 1});
        ASSERT_OK(comm->Barrier("set", Soon()));
        const DeviceTensor all(&rank, std::vector<unsigned char>(2 * kBytes));
        auto* const data = static_cast<unsigned char*>(all.data());
        const auto me = static_cast<size_t>(comm->rank());
        for (const size_t bytes : {kBytes, kBytes / 2}) {
          rank.collectives->AllGatherBlocks("gather", rank.all,
                                            data + me * bytes, bytes, data,
                                            rank.stream.get());
        }
        ExpectEnd(rank.Synchronize(), StatusCode::kDeadlineExceeded);
        rank.stream->Settle(Soon());
      },
      /*shutdown=*/false);
  EXPECT_TRUE(Contains(fake_nccl::ViolationText(), "is in ncclAllGather"));
  fake_nccl::ClearViolations();
}

TEST(NcclFaultsTest, AChildOfForkLeavesNcclAlone) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(Backend::kThreads, 2, [](Communicator* comm) {
    auto rank = std::make_unique<NcclRank>(comm, std::vector{RankSet::All(2)});
    ASSERT_OK(Gather(rank.get()));
    if (comm->rank() == 0) {
      InChild([&] {
        ::alarm(60);
        const uint64_t calls = fake_cuda::CountInChild();
        rank.reset();
        EXPECT_EQ(fake_cuda::CountInChild(), calls);
      });
    }
    ASSERT_OK(Gather(rank.get()));
    ASSERT_OK(comm->Barrier("gathered", Soon()));
  });
}

// One rank takes the sums of NCCL, and the others an all-to-all.
TEST(NcclFaultsTest, RanksThatSumInDifferentOrdersAreNamed) {
  RunNcclRanks([](NcclRank* rank) {
    const DeviceTensor sums(rank, std::vector<unsigned char>(3 * kBytes));
    ReduceScatterArgs args;
    args.send = sums.data();
    args.all_send = rank->comm->rank() == 2;
    args.count = kBytes / sizeof(float);
    args.recv = static_cast<unsigned char*>(sums.data()) +
                static_cast<size_t>(rank->comm->rank()) * kBytes;
    CollectiveGroup group(rank->collectives.get(), rank->stream.get());
    rank->collectives->ReduceScatter("sum", rank->all, args,
                                     rank->stream.get());
    group.End();
    const Status status = rank->Synchronize();
    rank->stream->Settle(Soon());
    ExpectEnd(status, StatusCode::kDesync);
    EXPECT_TRUE(Contains(status.message(), "a reduce-scatter 'sum' of 100"));
    EXPECT_TRUE(Contains(status.message(), "an all-to-all 'sum' of 100 f32"));
  });
}

TEST(NcclFaultsTest, ACollectiveOfAGroupThatIsStuckEnds) {
  for (const uint64_t stuck : {1, 2}) {
    SCOPED_TRACE(stuck);
    RunNcclRanks([&](NcclRank* rank) {
      if (rank->comm->rank() == 0) fake_nccl::StickAt(stuck, {.rank = 1});
      ASSERT_OK(rank->comm->Barrier("stuck", Soon()));
      const DeviceTensor all(rank, std::vector<unsigned char>(6 * kBytes));
      CollectiveGroup group(rank->collectives.get(), rank->stream.get());
      for (size_t i = 0; i < 2; ++i) {
        auto* const to =
            static_cast<unsigned char*>(all.data()) + i * 3 * kBytes;
        rank->collectives->AllGatherBlocks(
            i == 0 ? "gather" : "gather more", rank->all,
            to + static_cast<size_t>(rank->comm->rank()) * kBytes, kBytes, to,
            rank->stream.get());
      }
      group.End();
      const Status status = rank->Synchronize();
      rank->stream->Settle(Soon());
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
          << status.ToString();
      EXPECT_TRUE(Contains(status.message(), "'gather, gather more'"));
    });
  }
}

TEST(NcclFaultsTest, ACollectiveThatIsStuckEnds) {
  for (int stuck = 0; stuck < 3; ++stuck) {
    SCOPED_TRACE(stuck);
    RunNcclRanks([&](NcclRank* rank) {
      if (rank->comm->rank() == 0) fake_nccl::StickAt(1, {.rank = stuck});
      ASSERT_OK(rank->comm->Barrier("stuck", Soon()));
      const Status status = Gather(rank);
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded)
          << status.ToString();
      EXPECT_TRUE(Contains(status.message(), "'gather'"));
    });
  }
}

// NCCL says that no call blocks. The host of one that does waits for NCCL; all
// others, and the family, do not.
TEST(NcclFaultsTest, ACallThatBlocksEndsTheFamily) {
  std::atomic<int> ended = 0;
  RunNcclRanks([&](NcclRank* rank) {
    const bool blocks = rank->comm->rank() == 0;
    if (blocks) fake_nccl::HangCalls("ncclAllGather", {.rank = 0});
    // So that the other ranks' watchdogs do not find it.
    if (!blocks) rank->collectives->SetDeadline(Deadline::After(20));
    ASSERT_OK(rank->comm->Barrier("set", Soon()));
    std::thread other;
    if (blocks) {
      other = std::thread([&] {
        EXPECT_TRUE(ComesTrue(
            [&] { return ended == 2 && !rank->stream->status().ok(); }));
        fake_nccl::ReleaseCalls();
      });
    }
    const Status status = Gather(rank);
    if (blocks) other.join();
    ++ended;
    ExpectEnd(status, StatusCode::kDeadlineExceeded);
    EXPECT_EQ(status.rank(), 0);
    EXPECT_TRUE(Contains(status.message(),
                         "'gather': a call of NCCL on rank 0 has not "
                         "returned within 1 s"));
  });
}

// The error says what waits for the one that is stuck: all of the stream.
TEST(NcclFaultsTest, ThoseBehindOneThatIsStuckAreNamed) {
  for (const bool blocks : {false, true}) {
    SCOPED_TRACE(blocks ? "a call blocks" : "a collective does not end");
    RunNcclRanks([&](NcclRank* rank) {
      if (rank->comm->rank() == 0 && blocks) {
        fake_nccl::HangCalls("ncclAllGather", {.rank = 0});
      } else if (rank->comm->rank() == 0) {
        fake_nccl::StickAt(1, {.rank = 0});
      } else {
        rank->collectives->SetDeadline(Deadline::After(20));
      }
      ASSERT_OK(rank->comm->Barrier("set", Soon()));
      const DeviceTensor all(rank, std::vector<unsigned char>(3));
      auto* const to = static_cast<unsigned char*>(all.data());
      Gate gate(rank->stream.get());
      const auto gather = [&](const char* tag) {
        rank->collectives->AllGatherBlocks(
            tag, rank->all, to + rank->comm->rank(), 1, to, rank->stream.get());
      };
      gather("stuck");
      {
        CollectiveGroup group(rank->collectives.get(), rank->stream.get());
        gather("a");
        gather("b");
        group.End();
      }
      for (const char* const tag : {"c", "d", "e", "f"}) gather(tag);
      gate.Open();
      const Status status = rank->Synchronize();
      fake_nccl::ReleaseCalls();
      rank->stream->Settle(Soon());
      ExpectEnd(status, StatusCode::kDeadlineExceeded);
      EXPECT_TRUE(Contains(status.message(),
                           blocks ? "'stuck': a call of NCCL on rank 0 has not "
                                    "returned within 1 s; queued"
                                  : "'stuck' took longer than 1 s"));
      EXPECT_TRUE(
          Contains(status.message(),
                   "; queued behind it: 'a, b', 'c', 'd', 'e' and 1 more"));
    });
  }
}

// By the watchdog of all communicators, by each stream that fails, and by each
// call that comes later.
TEST(NcclFaultsTest, TheEndOfAFamilyIsLoggedOnceByEachRank) {
  const FakeNccl fake(OneGpuEach(4));
  RunGroup(
      Backend::kThreads, 4,
      [](Communicator* comm) {
        NcclRank rank(comm, EverySet(*comm), {.timeout = kTimeout});
        const auto half = RankSet::Of(comm->rank(), 1, 2);
        const auto other = *rank.device->CreateStream(StreamKind::kCompute);
        other->OnError([&](const Status& error) { comm->Abort(error); });
        const auto failing = rank.collectives->OnFailure(
            [&](const Status& error) { other->Fail(error); });
        const DeviceTensor all(&rank, std::vector<unsigned char>(8));
        auto* to = static_cast<unsigned char*>(all.data());
        const auto gather = [&](const RankSet& set, Stream* stream) {
          rank.collectives->AllGatherBlocks(
              "gather", set, to + set.IndexOf(comm->rank()), 1, to, stream);
        };
        if (comm->rank() == 0) {
          fake_nccl::StickAt(1, {.rank = 1, .size = 4});
          fake_nccl::StickAt(1, {.rank = 1, .size = 2});
        }
        ASSERT_OK(comm->Barrier("stuck", Soon()));
        const auto ends = [&] {
          return comm->observer()->counters().Find("abort")->calls;
        };
        EXPECT_EQ(ends(), 0u);
        gather(rank.all, rank.stream.get());
        to += 4;
        gather(half, other.get());
        EXPECT_FALSE(rank.Synchronize().ok());
        EXPECT_FALSE(other->Synchronize(Soon()).ok());
        rank.stream->Settle(Soon());
        other->Settle(Soon());
        const auto late = *rank.device->CreateStream(StreamKind::kCompute);
        gather(rank.all, late.get());
        EXPECT_FALSE(late->Synchronize(Soon()).ok());
        EXPECT_FALSE(comm->Barrier("after", Soon()).ok());
        comm->Abort(Cancelled("enough"));
        EXPECT_EQ(ends(), 1u);
      },
      /*shutdown=*/false);
}

// Shards and their replicas have a communicator each.
TEST(NcclFaultsTest, ACallThatBlocksDoesNotHoldUpOtherSets) {
  const FakeNccl fake(OneGpuEach(4));
  RunGroup(Backend::kThreads, 4, [](Communicator* comm) {
    NcclRank rank(comm, EverySet(*comm));
    const auto shards = RankSet::Of(comm->rank(), 1, 2);
    const auto replicas = RankSet::Of(comm->rank(), 2, 2);
    const auto other = *rank.device->CreateStream(StreamKind::kCompute);
    const DeviceTensor two(&rank, std::vector<unsigned char>(2));
    const DeviceTensor sums(&rank, std::vector<unsigned char>(8));
    if (comm->rank() == 0) fake_nccl::HangCalls("ncclAllGather");
    ASSERT_OK(comm->Barrier("set", Soon()));
    Gate gate(rank.stream.get());
    auto* const to = static_cast<unsigned char*>(two.data());
    rank.collectives->AllGatherBlocks("gather", replicas,
                                      to + replicas.IndexOf(comm->rank()), 1,
                                      to, rank.stream.get());
    gate.Open();
    ASSERT_TRUE(ComesTrue([] { return fake_nccl::NumHanging() == 4; }));
    ASSERT_OK(comm->Barrier("hang", Soon()));
    Gate other_gate(other.get());
    rank.collectives->ReduceScatter(
        "sum", shards, {.send = sums.data(), .count = 1, .recv = sums.data()},
        other.get());
    other_gate.Open();
    EXPECT_OK(other->Synchronize(Deadline::After(10)));
    EXPECT_EQ(fake_nccl::NumHanging(), 4u);
    ASSERT_OK(comm->Barrier("summed", Soon()));
    if (comm->rank() == 0) fake_nccl::ReleaseCalls();
    EXPECT_OK(rank.Synchronize());
  });
}

// The calls of two streams, the host's and the watchdog's are made at once; the
// fake finds two that are on one communicator.
TEST(NcclFaultsTest, CallsOnACommunicatorAreMadeInTurn) {
  fake_nccl::Options options;
  options.call_delay = std::chrono::microseconds(200);
  const FakeNccl fake(OneGpuEach(4), options);
  RunGroup(Backend::kThreads, 4, [](Communicator* comm) {
    NcclRank rank(comm, EverySet(*comm));
    const auto half = RankSet::Of(comm->rank(), 1, 2);
    const auto other = *rank.device->CreateStream(StreamKind::kCompute);
    const DeviceTensor four(&rank, std::vector<unsigned char>(4));
    const DeviceTensor two(&rank, std::vector<unsigned char>(2));
    const auto gather = [&](const RankSet& set, const DeviceTensor& to,
                            Stream* stream) {
      auto* const all = static_cast<unsigned char*>(to.data());
      rank.collectives->AllGatherBlocks(
          "gather", set, all + set.IndexOf(comm->rank()), 1, all, stream);
    };
    Gate gate(rank.stream.get());
    Gate other_gate(other.get());
    for (int i = 0; i < 20; ++i) {
      gather(rank.all, four, rank.stream.get());
      gather(half, two, other.get());
    }
    gate.Open();
    other_gate.Open();
    for (int i = 0; i < 10; ++i) {
      EXPECT_OK(
          rank.collectives->Allocate(rank.device.get(), kBytes, "a tensor"));
    }
    EXPECT_OK(rank.Synchronize());
    EXPECT_OK(other->Synchronize(Soon()));
  });
}

TEST(NcclFaultsTest, AnErrorOfNcclIsThatOfAllRanks) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() == 0) {
      fake_nccl::FailAsyncAt(1, fake_nccl::Result::kRemoteError, {.rank = 1});
    }
    ASSERT_OK(rank->comm->Barrier("set", Soon()));
    const Status status = Gather(rank);
    ExpectEnd(status, StatusCode::kUnavailable);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_TRUE(Contains(status.message(), "rank 1: NCCL: remote"));
  });
}

TEST(NcclFaultsTest, ACallThatFailsEndsAllRanks) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() == 0) {
      fake_nccl::FailCall("ncclAllGather", 1,
                          fake_nccl::Result::kUnhandledCudaError, {.rank = 1});
    }
    ASSERT_OK(rank->comm->Barrier("set", Soon()));
    const Status status = Gather(rank);
    ExpectEnd(status, StatusCode::kUnavailable);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_TRUE(Contains(status.message(), "rank 1: gather"));
  });
}

TEST(NcclFaultsTest, ARankThatLeavesIsLost) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(
      Backend::kThreads, 2,
      [&](Communicator* comm) {
        NcclRank rank(comm, {RankSet::All(2)}, {.timeout = 20});
        ASSERT_OK(Gather(&rank));
        if (comm->rank() == 1) return;
        const auto begin = Clock::now();
        const Status status = Gather(&rank);
        EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
        EXPECT_EQ(status.rank(), 1);
        // The end of the other rank's communicators is a part of it.
        EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(),
                  10);
      },
      /*shutdown=*/false);
}

TEST(NcclFaultsTest, AnAbortEndsTheCollectivesOfAllRanks) {
  RunNcclRanks([](NcclRank* rank) {
    if (rank->comm->rank() == 1) {
      rank->comm->Abort(Cancelled("enough"));
      return;
    }
    const Status status = Gather(rank);
    EXPECT_EQ(status.code(), StatusCode::kPoisoned) << status.ToString();
    EXPECT_TRUE(Contains(status.message(), "enough"));
  });
}

// Nothing is on the wire, so no watchdog has aborted the communicators; the
// other rank does not end its own meanwhile.
TEST(NcclFaultsTest, AFamilyThatHasEndedIsNotWaitedForAtTheEnd) {
  const FakeNccl fake(OneGpuEach(2));
  std::promise<void> ended;
  RunGroup(
      Backend::kThreads, 2,
      [&](Communicator* comm) {
        auto rank =
            std::make_unique<NcclRank>(comm, std::vector{RankSet::All(2)});
        ASSERT_OK(Gather(rank.get()));
        ASSERT_OK(comm->Barrier("gathered", Soon()));
        if (comm->rank() == 1) {
          comm->Abort(Cancelled("enough"));
          ended.get_future().wait();
          return;
        }
        EXPECT_FALSE(comm->Barrier("aborted", Soon()).ok());
        const auto begin = Clock::now();
        rank.reset();
        EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(),
                  1.5);
        ended.set_value();
      },
      /*shutdown=*/false);
}

// A communicator can be opened again in the process, as often as ranks are
// lost.
TEST(NcclFaultsTest, AProcessGoesOnAfterwards) {
  const FakeNccl fake(OneGpuEach(2));
  const int rounds = std::getenv("SHARD_TEST_LONG") != nullptr ? 100 : 5;
  for (int i = 0; i < rounds; ++i) {
    RunGroup(
        Backend::kThreads, 2,
        [&](Communicator* comm) {
          NcclRank rank(comm, {RankSet::All(2)}, {.timeout = kTimeout});
          ASSERT_OK(Gather(&rank));
          if (comm->rank() == 1) return;
          EXPECT_FALSE(Gather(&rank).ok());
        },
        /*shutdown=*/false);
  }
}

}  // namespace
}  // namespace shard::testing::nccl_faults_test
