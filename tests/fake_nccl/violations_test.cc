// SPDX-License-Identifier: Apache-2.0
//
// The fake NCCL finds what NCCL does not promise to survive.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/fake_nccl/nccl_testing.h"

namespace shard::violations_test {
namespace {

using namespace testing::fake_nccl;

class ViolationsTest : public NcclTest {
 protected:
  static Result Reduce(Rank* rank, Comm* comm, const void* send, void* recv,
                       size_t count = 1, DataType type = DataType::kFloat32) {
    return ncclAllReduce(send, recv, count, type, RedOp::kSum, comm,
                         rank->stream());
  }
};

TEST_F(ViolationsTest, TwoThreadsCallAtOnce) {
  Options options;
  options.call_delay = std::chrono::milliseconds(2);
  Begin(options);
  Run(1, [&](Rank* rank) {
    Comm* const comm = rank->Init(1, id_);
    ClearViolations();
    std::atomic<bool> stop = false;
    std::thread other([&] {
      Result result = Result::kSuccess;
      while (!stop) EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
    });
    int value = 0;
    EXPECT_TRUE(ComesTrue([&] {
      EXPECT_NCCL(ncclCommCount(comm, &value));
      return !Violations().empty();
    }));
    stop = true;
    other.join();
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  ExpectViolations(ViolationKind::kConcurrent,
                   " is called while another thread is in ncclComm");
}

TEST_F(ViolationsTest, TwoThreadsMayCallInTurns) {
  Run(1, [&](Rank* rank) {
    Comm* const comm = rank->Init(1, id_);
    std::thread other([&] {
      int value = 0;
      EXPECT_NCCL(ncclCommCount(comm, &value));
    });
    other.join();
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// A thread uses a communicator from its first call in a group to the group's
// end, and no other communicator.
TEST_F(ViolationsTest, AThreadCallsWithinAGroupOfAnother) {
  Run(1, [&](Rank* rank) {
    Comm* const comm = rank->Init(1, NewId());
    Comm* const other = rank->Init(1, NewId());
    float* const x = rank->Put(std::vector<float>{1});
    const auto call = [](Comm* on) {
      std::thread thread([&] {
        int value = 0;
        EXPECT_NCCL(ncclCommCount(on, &value));
      });
      thread.join();
    };
    EXPECT_NCCL(ncclGroupStart());
    call(comm);
    EXPECT_NCCL(Reduce(rank, comm, x, x));
    call(other);
    EXPECT_TRUE(Violations().empty());
    call(comm);
    ExpectViolations(ViolationKind::kConcurrent,
                     "ncclCommCount of rank 0 of 1 (communicator 1) is called "
                     "while another thread is in ncclAllReduce");
    EXPECT_NCCL(Reduce(rank, other, x, x));
    call(other);
    ExpectViolations(ViolationKind::kConcurrent, "(communicator 2)");
    EXPECT_NCCL(ncclGroupEnd());
    call(comm);
    call(other);
    EXPECT_TRUE(rank->Synchronize());
    EXPECT_NCCL(ncclCommDestroy(comm));
    EXPECT_NCCL(ncclCommDestroy(other));
  });
}

TEST_F(ViolationsTest, ACommunicatorIsUsedAfterItsEnd) {
  Run(1, [&](Rank* rank) {
    Comm* comm = rank->Init(1, NewId());
    Result result = Result::kSuccess;
    EXPECT_NCCL(ncclCommAbort(comm));
    EXPECT_EQ(ncclCommGetAsyncError(comm, &result), Result::kInvalidArgument);
    ExpectViolations(ViolationKind::kAfterEnd,
                     "ncclCommGetAsyncError of rank 0 of 1 (communicator 1) is "
                     "called after ncclCommAbort");
    EXPECT_EQ(ncclCommAbort(comm), Result::kInvalidArgument);
    ExpectViolations(ViolationKind::kAfterEnd, "after ncclCommAbort");
    comm = rank->Init(1, NewId());
    EXPECT_NCCL(ncclCommDestroy(comm));
    EXPECT_EQ(ncclCommDestroy(comm), Result::kInvalidArgument);
    ExpectViolations(ViolationKind::kAfterEnd, "after ncclCommDestroy");
    comm = rank->Init(1, NewId());
    float* const x = rank->Put(std::vector<float>{1});
    EXPECT_EQ(ncclCommFinalize(comm), Result::kInProgress);
    EXPECT_NCCL(Rank::Await(comm));
    EXPECT_EQ(Reduce(rank, comm, x, x), Result::kInvalidUsage);
    ExpectViolations(ViolationKind::kAfterEnd, "after ncclCommFinalize");
    EXPECT_EQ(ncclCommFinalize(comm), Result::kInvalidArgument);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST_F(ViolationsTest, MemoryIsNotTheDevices) {
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    float* const x = rank->Put(std::vector<float>{1});
    float host = 1;
    EXPECT_EQ(Reduce(rank, comm, &host, x), Result::kInvalidArgument);
    ExpectViolations(
        ViolationKind::kNotDeviceMemory,
        "ncclAllReduce of rank 0 of 1 (communicator 1) on device 0 "
        "is given no memory of a device");
    EXPECT_EQ(Reduce(rank, comm, x, x, 2), Result::kInvalidArgument);
    ExpectViolations(ViolationKind::kNotDeviceMemory,
                     "memory that has 4 bytes of 8");
    void* pinned = nullptr;
    EXPECT_CU(Api().MemHostAlloc(&pinned, 4, 0));
    EXPECT_EQ(Reduce(rank, comm, x, pinned), Result::kInvalidArgument);
    ExpectViolations(ViolationKind::kNotDeviceMemory, "pinned memory");
    EXPECT_CU(Api().MemFreeHost(pinned));
    Rank other(0, 1);
    float* const y = other.Put(std::vector<float>{1});
    Rank::PopCurrent();
    EXPECT_EQ(Reduce(rank, comm, x, y), Result::kInvalidArgument);
    ExpectViolations(ViolationKind::kNotDeviceMemory, "memory of device 1");
    other.MakeCurrent();
  });
  EXPECT_EQ(Count().launches, 0u);
}

TEST_F(ViolationsTest, AnotherContextIsCurrent) {
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    float* const x = rank->Put(std::vector<float>{1});
    {
      const Rank other(0, 1);
      EXPECT_NCCL(Reduce(rank, comm, x, x));  // NCCL finds its device itself.
    }
    ExpectViolations(
        ViolationKind::kWrongContext,
        "ncclAllReduce of rank 0 of 1 (communicator 1) on device 0 "
        "is called in a context of device 1");
    Rank::PopCurrent();
    EXPECT_NCCL(Reduce(rank, comm, x, x));
    rank->MakeCurrent();
    ExpectViolations(ViolationKind::kWrongContext, "in no context");
    EXPECT_TRUE(rank->Synchronize());
  });
}

// Ranks hang whose calls differ: in the operation, the number or type of
// elements, the root.
TEST_F(ViolationsTest, RanksCallDifferently) {
  struct Case {
    const char* text;
    Result (*call)(Rank*, Comm*, float*);
  };
  static const Case kCases[] = {
      {"ncclAllReduce of 2 f32",
       [](Rank* rank, Comm* comm, float* x) {
         return Reduce(rank, comm, x, x, 2);
       }},
      {"ncclAllReduce of 1 i32",
       [](Rank* rank, Comm* comm, float* x) {
         return Reduce(rank, comm, x, x, 1, DataType::kInt32);
       }},
      {"ncclReduceScatter of 1 f32",
       [](Rank* rank, Comm* comm, float* x) {
         return ncclReduceScatter(x, x, 1, DataType::kFloat32, RedOp::kSum,
                                  comm, rank->stream());
       }},
      {"ncclBroadcast of 1 f32 from rank 1",
       [](Rank* rank, Comm* comm, float* x) {
         return ncclBroadcast(x, x, 1, DataType::kFloat32, 1, comm,
                              rank->stream());
       }},
  };
  for (const Case& it : kCases) {
    SCOPED_TRACE(it.text);
    Begin();
    Run(2, [&](Rank* rank) {
      Comm* const comm = rank->Init(2, id_);
      float* const x = rank->Put(std::vector<float>(2));
      if (rank->rank() == 0) {
        EXPECT_NCCL(Reduce(rank, comm, x, x));
      } else {
        EXPECT_NCCL(it.call(rank, comm, x));
      }
      EXPECT_TRUE(ComesTrue([] { return !Violations().empty(); }));
      const CuEvent event = rank->Record();
      EXPECT_TRUE(Rank::IsPending(event));
      EXPECT_NCCL(ncclCommAbort(comm));
      EXPECT_TRUE(rank->Synchronize());
    });
    EXPECT_EQ(Count().ended, 0u);
    ExpectViolations(ViolationKind::kMismatch, it.text);
  }
}

TEST_F(ViolationsTest, ASendMeetsAnotherReceive) {
  Run(2, [&](Rank* rank) {
    Comm* const comm = rank->Init(2, id_);
    float* const x = rank->Put(std::vector<float>(2));
    if (rank->rank() == 0) {
      EXPECT_NCCL(ncclSend(x, 1, DataType::kFloat32, 1, comm, rank->stream()));
    } else {
      EXPECT_NCCL(ncclRecv(x, 2, DataType::kFloat32, 0, comm, rank->stream()));
    }
    EXPECT_TRUE(ComesTrue([] { return !Violations().empty(); }));
    EXPECT_NCCL(ncclCommAbort(comm));
    EXPECT_TRUE(rank->Synchronize());
  });
  ExpectViolations(ViolationKind::kMismatch,
                   "is in ncclSend of 2 f32, but rank 0 in ncclSend of 1 f32");
}

TEST_F(ViolationsTest, RanksAreInDifferentCalls) {
  Run(2, [&](Rank* rank) {
    Comm* const comm = rank->Init(2, id_);
    Comm* made = nullptr;
    if (rank->rank() == 0) {
      EXPECT_EQ(ncclCommSplit(comm, 0, 0, &made, nullptr), Result::kInProgress);
    } else {
      EXPECT_EQ(ncclCommFinalize(comm), Result::kInProgress);
    }
    Result result = Result::kSuccess;
    EXPECT_TRUE(ComesTrue([&] {
      EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
      return Violations().size() == 2;
    }));
    EXPECT_EQ(result, Result::kInProgress);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  ExpectViolations(ViolationKind::kMismatch,
                   "is in ncclCommSplit, but rank 1 in ncclCommFinalize");
}

TEST_F(ViolationsTest, RanksExpectAnotherNumberOfRanks) {
  Rank rank(0, 0);
  Comm* a = nullptr;
  Comm* b = nullptr;
  EXPECT_EQ(rank.Begin(2, id_, &a), Result::kInProgress);
  EXPECT_EQ(ncclCommInitRank(&b, 3, id_, 1), Result::kInvalidArgument);
  ExpectViolations(ViolationKind::kMismatch, "another number of ranks");
  EXPECT_NCCL(ncclCommAbort(a));
}

TEST_F(ViolationsTest, AUniqueIdIsUsedAgain) {
  Rank rank(0, 0);
  Comm* comm = nullptr;
  EXPECT_NCCL(ncclCommInitRank(&comm, 1, id_, 0));
  Comm* again = nullptr;
  EXPECT_EQ(ncclCommInitRank(&again, 1, id_, 0), Result::kInvalidUsage);
  ExpectViolations(ViolationKind::kAfterEnd,
                   "rank 0 of 1 uses a unique id again");
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST_F(ViolationsTest, OperationsAreSums) {
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    float* const x = rank->Put(std::vector<float>{1});
    EXPECT_EQ(ncclAllReduce(x, x, 1, DataType::kFloat32, RedOp::kAvg, comm,
                            rank->stream()),
              Result::kInvalidUsage);
    EXPECT_EQ(Reduce(rank, comm, x, x, 1, DataType::kFloat8e4m3),
              Result::kInvalidUsage);
    EXPECT_EQ(Reduce(rank, comm, x, x, 1, static_cast<DataType>(12)),
              Result::kInvalidArgument);
    EXPECT_NCCL(Reduce(rank, comm, nullptr, nullptr, 0));
    EXPECT_EQ(Count().launches, 0u);
  });
}

}  // namespace
}  // namespace shard::violations_test
