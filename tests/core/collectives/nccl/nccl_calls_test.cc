// SPDX-License-Identifier: Apache-2.0
//
// Calls of NCCL that do not return, are long in progress, or give a collective
// that does not end. They end in time, with an error that names them, and hold
// up no others. No two are made on a communicator at once.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/collectives/nccl/nccl_faults.h"
#include "tests/core/collectives/nccl/nccl_rank.h"

namespace shard::testing::nccl_calls_test {
namespace {

// The ranks announce the same, but NCCL runs something else on one of them.
TEST(NcclCallsTest, KernelsInAnotherOrderEndAtTheDeadline) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(
      Backend::kThreads, 2,
      [&](Communicator* comm) {
        NcclRank rank(comm, {RankSet::All(2)}, {.timeout = kFaultSeconds});
        if (comm->rank() == 0) fake_nccl::SwapAt(1, {.rank = 1});
        ASSERT_OK(comm->Barrier("set", Soon()));
        const DeviceTensor all(&rank,
                               std::vector<unsigned char>(2 * kFaultBytes));
        auto* const data = static_cast<unsigned char*>(all.data());
        const auto me = static_cast<size_t>(comm->rank());
        for (const size_t bytes : {kFaultBytes, kFaultBytes / 2}) {
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

TEST(NcclCallsTest, ACollectiveOfAGroupThatIsStuckEnds) {
  for (const uint64_t stuck : {1, 2}) {
    SCOPED_TRACE(stuck);
    RunNcclRanks([&](NcclRank* rank) {
      if (rank->comm->rank() == 0) fake_nccl::StickAt(stuck, {.rank = 1});
      ASSERT_OK(rank->comm->Barrier("stuck", Soon()));
      const DeviceTensor all(rank, std::vector<unsigned char>(6 * kFaultBytes));
      CollectiveGroup group(rank->collectives.get(), rank->stream.get());
      for (size_t i = 0; i < 2; ++i) {
        auto* const to =
            static_cast<unsigned char*>(all.data()) + i * 3 * kFaultBytes;
        rank->collectives->AllGatherBlocks(
            i == 0 ? "gather" : "gather more", rank->all,
            to + static_cast<size_t>(rank->comm->rank()) * kFaultBytes,
            kFaultBytes, to, rank->stream.get());
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

TEST(NcclCallsTest, ACollectiveThatIsStuckEnds) {
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
TEST(NcclCallsTest, ACallThatBlocksEndsTheFamily) {
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

// Memory is registered with the communicator of which a collective comes next.
TEST(NcclCallsTest, ARegistrationThatBlocksIsNamed) {
  std::atomic<int> ended = 0;
  RunNcclRanks([&](NcclRank* rank) {
    const bool blocks = rank->comm->rank() == 0;
    const DeviceTensor all(rank, std::vector<unsigned char>(3));
    std::thread registers;
    if (blocks) {
      fake_nccl::HangCalls("ncclCommRegister", {.rank = 0});
      registers = std::thread([&] {
        static_cast<void>(rank->collectives->Allocate(rank->device.get(),
                                                      kFaultBytes, "a tensor"));
      });
      EXPECT_TRUE(ComesTrue([] { return fake_nccl::NumHanging() == 1; }));
    } else {
      // So that the other ranks' watchdogs do not find it.
      rank->collectives->SetDeadline(Deadline::After(20));
    }
    ASSERT_OK(rank->comm->Barrier("set", Soon()));
    auto* const to = static_cast<unsigned char*>(all.data());
    rank->collectives->AllGatherBlocks("gather", rank->all,
                                       to + rank->comm->rank(), 1, to,
                                       rank->stream.get());
    const Status status = rank->Synchronize();
    ++ended;
    if (blocks) {
      EXPECT_TRUE(ComesTrue([&] { return ended == 3; }));
      fake_nccl::ReleaseCalls();
      registers.join();
    }
    rank->stream->Settle(Soon());
    ExpectEnd(status, StatusCode::kDeadlineExceeded);
    EXPECT_EQ(status.rank(), 0);
    EXPECT_TRUE(Contains(status.message(),
                         "ncclCommRegister on rank 0 has not returned"))
        << status.message();
  });
}

// The error says what waits for the one that is stuck: all of the stream.
TEST(NcclCallsTest, ThoseBehindOneThatIsStuckAreNamed) {
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

// Shards and their replicas have a communicator each.
TEST(NcclCallsTest, ACallThatBlocksDoesNotHoldUpOtherSets) {
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
TEST(NcclCallsTest, CallsOnACommunicatorAreMadeInTurn) {
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
      EXPECT_OK(rank.collectives->Allocate(rank.device.get(), kFaultBytes,
                                           "a tensor"));
    }
    EXPECT_OK(rank.Synchronize());
    EXPECT_OK(other->Synchronize(Soon()));
  });
}

// Two streams use one communicator. NCCL refuses a call on it while that of the
// other stream is in progress, which holds no lock between its polls.
TEST(NcclCallsTest, ACallWaitsForThatOfAnotherStream) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(Backend::kThreads, 2, [](Communicator* comm) {
    NcclRank rank(comm, {RankSet::All(2)});
    const fake_nccl::Target me = {.rank = comm->rank()};
    const auto other = *rank.device->CreateStream(StreamKind::kCompute);
    const DeviceTensor two(&rank, std::vector<unsigned char>(2));
    const DeviceTensor more(&rank, std::vector<unsigned char>(2));
    const auto gather = [&](const DeviceTensor& to, Stream* stream) {
      auto* const all = static_cast<unsigned char*>(to.data());
      rank.collectives->AllGatherBlocks("gather", rank.all, all + comm->rank(),
                                        1, all, stream);
    };
    fake_nccl::SlowCall("ncclGroupEnd", 1, 100, me);
    Gate gate(rank.stream.get());
    gather(two, rank.stream.get());
    gate.Open();
    EXPECT_TRUE(ComesTrue(
        [&] { return fake_nccl::Count(me).Calls("ncclAllGather") == 1; }));
    gather(more, other.get());
    EXPECT_OK(rank.Synchronize());
    EXPECT_OK(other->Synchronize(Soon()));
  });
}

}  // namespace
}  // namespace shard::testing::nccl_calls_test
