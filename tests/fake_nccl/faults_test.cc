// SPDX-License-Identifier: Apache-2.0
//
// Faults of the fake NCCL: calls that fail, ranks that hang or die, errors that
// come later, launches in another order, and aborts that hang.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/fake_nccl/nccl_testing.h"

namespace shard::faults_test {
namespace {

using namespace testing::fake_nccl;

class FaultsTest : public NcclTest {
 protected:
  // Gathers one element per rank.
  static Result Gather(Rank* rank, Comm* comm, float* x) {
    return ncclAllGather(x + rank->rank(), x, 1, DataType::kFloat32, comm,
                         rank->stream());
  }
  // Expects that a stream hangs until the communicator is aborted.
  static void ExpectHang(Rank* rank, Comm* comm) {
    const CuEvent event = rank->Record();
    const CuStream other = rank->MakeStream();
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(rank->Synchronize(other));
    EXPECT_TRUE(Rank::IsPending(event));
    EXPECT_NCCL(ncclCommAbort(comm));
    EXPECT_TRUE(rank->Synchronize());
  }
};

TEST_F(FaultsTest, CallsFailOnce) {
  Run(1, [&](Rank* rank) {
    FailCall("ncclCommInitRankConfig", 1, Result::kSystemError);
    Comm* comm = nullptr;
    EXPECT_EQ(rank->Begin(1, id_, &comm), Result::kSystemError);
    EXPECT_EQ(comm, nullptr);
    comm = rank->Init(1, id_);
    float* const x = rank->Put(std::vector<float>{1});
    FailCall("ncclAllGather", 2, Result::kInternalError);
    EXPECT_NCCL(Gather(rank, comm, x));
    EXPECT_EQ(Gather(rank, comm, x), Result::kInternalError);
    EXPECT_NCCL(Gather(rank, comm, x));
    FailCall("", 1, Result::kRemoteError);
    int value = 0;
    EXPECT_EQ(ncclCommCount(comm, &value), Result::kRemoteError);
    FailCall("ncclGroupEnd", 1, Result::kInternalError);
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(Gather(rank, comm, x));
    EXPECT_EQ(ncclGroupEnd(), Result::kInternalError);
    EXPECT_EQ(Count().launches, 2u);
    EXPECT_EQ(ncclGroupEnd(), Result::kInvalidUsage);  // The group has ended.
    FailCall("ncclCommAbort", 1, Result::kSystemError);
    EXPECT_EQ(ncclCommAbort(comm), Result::kSystemError);
    EXPECT_TRUE(rank->Synchronize());
    Rank::Finish(comm);
  });
  EXPECT_EQ(Count().Calls("ncclAllGather"), 4u);
}

TEST_F(FaultsTest, EveryKthCallFails) {
  RunWithComm(1, [&](Rank*, Comm* comm) {
    FailEveryCall("ncclCommCount", 3, Result::kSystemError);
    for (int call = 1; call <= 9; ++call) {
      int value = 0;
      EXPECT_EQ(ncclCommCount(comm, &value),
                call % 3 == 0 ? Result::kSystemError : Result::kSuccess);
    }
    EXPECT_EQ(NumFaults(), 3u);
    ClearFaults();
    for (int call = 1; call <= 3; ++call) {
      int value = 0;
      EXPECT_NCCL(ncclCommCount(comm, &value));
    }
    EXPECT_EQ(NumFaults(), 3u);
  });
}

TEST_F(FaultsTest, ADeadRankCountsOnceItIsWaitedFor) {
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    Kill(0);
    EXPECT_EQ(NumFaults(), 0u);
    float* const x = rank->Put(std::vector<float>{1});
    Gather(rank, comm, x);
    EXPECT_TRUE(ComesTrue([] { return NumFaults() == 1; }));
    ClearFaults();
    EXPECT_TRUE(rank->Synchronize());
  });
}

// As those of a host that NCCL finds no interface for.
TEST_F(FaultsTest, CallsWithoutACommunicatorHang) {
  HangCalls("ncclGetUniqueId");
  std::thread caller([] {
    UniqueId id = {};
    EXPECT_NCCL(ncclGetUniqueId(&id));
  });
  EXPECT_TRUE(ComesTrue([] { return NumHanging() == 1; }));
  EXPECT_EQ(CountAlive().comms, 0u);  // Other calls go on.
  ReleaseCalls();
  caller.join();
}

TEST_F(FaultsTest, ATargetIsARankAndASize) {
  RunWithComm(2, [&](Rank* rank, Comm* comm) {
    if (rank->rank() == 0) {
      FailCall("ncclCommCount", 1, Result::kSystemError, {.rank = 1});
      FailCall("ncclCommUserRank", 1, Result::kSystemError, {.size = 3});
    }
    float* const x = rank->Put(std::vector<float>(2));
    EXPECT_NCCL(Gather(rank, comm, x));  // Both are behind the faults.
    EXPECT_TRUE(rank->Synchronize());
    int value = 0;
    EXPECT_EQ(ncclCommCount(comm, &value),
              rank->rank() == 1 ? Result::kSystemError : Result::kSuccess);
    EXPECT_NCCL(ncclCommUserRank(comm, &value));
  });
  EXPECT_EQ(Count({.rank = 1}).Calls("ncclAllGather"), 1u);
  EXPECT_EQ(Count({.size = 3}).Calls("ncclAllGather"), 0u);
}

TEST_F(FaultsTest, ACollectiveIsStuckUntilTheAbort) {
  StickAt(2, {.rank = 1});
  Run(2, [&](Rank* rank) {
    Comm* const comm = rank->Init(2, id_);
    float* const x = rank->Put(std::vector<float>(2));
    EXPECT_NCCL(Gather(rank, comm, x));
    EXPECT_TRUE(rank->Synchronize());
    EXPECT_NCCL(Gather(rank, comm, x));
    EXPECT_NCCL(Gather(rank, comm, x));
    ExpectHang(rank, comm);
  });
  EXPECT_EQ(Count().ended, 2u);
}

TEST_F(FaultsTest, AnErrorComesLater) {
  FailAsyncAt(1, Result::kRemoteError, {.rank = 0});
  Run(2, [&](Rank* rank) {
    Comm* const comm = rank->Init(2, id_);
    float* const x = rank->Put(std::vector<float>(2));
    EXPECT_NCCL(Gather(rank, comm, x));
    Result result = Result::kSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
    if (rank->rank() == 0) {
      EXPECT_EQ(result, Result::kRemoteError);
      EXPECT_EQ(Gather(rank, comm, x), Result::kRemoteError);
      EXPECT_EQ(ncclCommDestroy(comm), Result::kRemoteError);
    } else {
      EXPECT_EQ(result, Result::kSuccess);
    }
    ExpectHang(rank, comm);
  });
}

TEST_F(FaultsTest, ADeadRankDoesNotArrive) {
  Run(2, [&](Rank* rank) {
    Comm* const comm = rank->Init(2, id_);
    if (rank->rank() == 1) Kill(1);
    float* const x = rank->Put(std::vector<float>(2));
    EXPECT_NCCL(Gather(rank, comm, x));
    ExpectHang(rank, comm);
  });
  // Nor at calls that wait for others.
  id_ = NewId();
  Run(2, [&](Rank* rank) {
    Comm* comm = nullptr;
    EXPECT_EQ(rank->Begin(2, id_, &comm), Result::kInProgress);
    for (int i = 0; i < 100; ++i) {
      Result result = Result::kSuccess;
      EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
      EXPECT_EQ(result, Result::kInProgress);
    }
    EXPECT_NCCL(ncclCommAbort(comm));
  });
}

TEST_F(FaultsTest, LaunchesInAnotherOrderHang) {
  SwapAt(1, {.rank = 1});
  Run(2, [&](Rank* rank) {
    Comm* const comm = rank->Init(2, id_);
    float* const x = rank->Put(std::vector<float>(2));
    EXPECT_NCCL(Gather(rank, comm, x));
    EXPECT_NCCL(ncclAllReduce(x, x, 2, DataType::kFloat32, RedOp::kSum, comm,
                              rank->stream()));
    // Each must see the other before that aborts.
    EXPECT_TRUE(ComesTrue([] { return Violations().size() == 2; }));
    ExpectHang(rank, comm);
  });
  ExpectViolations(ViolationKind::kMismatch,
                   " is in ncclAllGather of 1 f32, but rank 1 in ncclAllReduce "
                   "of 2 f32");
}

TEST_F(FaultsTest, CallsHang) {
  HangCalls("ncclCommAbort");
  HangCalls("ncclAllGather", {.size = 2});
  Run(1, [&](Rank* rank) {
    Comm* const comm = rank->Init(1, id_);
    EXPECT_NCCL(Gather(rank, comm, rank->Put(std::vector<float>(1))));
    std::thread other([&] { EXPECT_NCCL(ncclCommAbort(comm)); });
    EXPECT_TRUE(ComesTrue([] { return NumHanging() == 1; }));
    EXPECT_EQ(CountAlive().comms, 1u);
    ReleaseCalls();
    other.join();
    EXPECT_EQ(CountAlive().comms, 0u);
    EXPECT_EQ(NumHanging(), 0u);
    EXPECT_TRUE(rank->Synchronize());
  });
}

TEST_F(FaultsTest, AnAbortWaitsForOtherKernelsOfTheDevice) {
  StickAt(1);
  Run(1, [&](Rank* rank) {
    Comm* const first = rank->Init(1, id_);
    Comm* const second = rank->Init(1, NewId());
    EXPECT_NCCL(Gather(rank, second, rank->Put(std::vector<float>(1))));
    std::thread other([&] { EXPECT_NCCL(ncclCommAbort(first)); });
    EXPECT_TRUE(ComesTrue([] { return NumHanging() == 1; }));
    EXPECT_EQ(CountAlive().comms, 2u);
    EXPECT_NCCL(ncclCommAbort(second));
    other.join();
    EXPECT_EQ(CountAlive().comms, 0u);
    EXPECT_TRUE(rank->Synchronize());
  });
}

TEST_F(FaultsTest, ACallIsInProgressForLong) {
  SlowCall("ncclAllGather", 2, 5);
  Run(1, [&](Rank* rank) {
    Comm* const comm = rank->Init(1, id_);
    float* const x = rank->Put(std::vector<float>{1});
    EXPECT_NCCL(Gather(rank, comm, x));
    EXPECT_EQ(Gather(rank, comm, x), Result::kInProgress);
    Result result = Result::kSuccess;
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(Count().launches, 1u);
      EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
      EXPECT_EQ(result, i < 5 ? Result::kInProgress : Result::kSuccess);
    }
    EXPECT_EQ(Count().launches, 2u);
    EXPECT_TRUE(rank->Synchronize());
    Rank::Finish(comm);
  });
}

// A rank that waits for one that is dead fails in the end.
TEST_F(FaultsTest, ADeadlineEndsABlockingCall) {
  Options options;
  options.deadline = std::chrono::milliseconds(20);
  Begin(options);
  Rank rank(0, 0);
  Comm* comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id_, 0), Result::kSystemError);
  EXPECT_EQ(comm, nullptr);
  ExpectViolations(ViolationKind::kDeadline,
                   "ncclCommInitRank has waited for 20 ms");
}

TEST_F(FaultsTest, ALostDeviceDropsCollectives) {
  StickAt(1);
  Run(1, [&](Rank* rank) {
    Comm* const comm = rank->Init(1, id_);
    float* const x = rank->Put(std::vector<float>(2));
    EXPECT_NCCL(Gather(rank, comm, x));
    EXPECT_NE(testing::fake_cuda::NumPending(), 0u);
    testing::fake_cuda::LoseAtCall("", 1);
    EXPECT_EQ(Gather(rank, comm, x), Result::kUnhandledCudaError);
    EXPECT_EQ(testing::fake_cuda::NumPending(), 0u);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  EXPECT_TRUE(testing::fake_cuda::IsLost());
}

}  // namespace
}  // namespace shard::faults_test
