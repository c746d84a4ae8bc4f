// SPDX-License-Identifier: Apache-2.0
//
// Communicators of the fake NCCL: how they begin, answer and end.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_nccl/nccl_testing.h"

namespace shard::lifetime_test {
namespace {

using namespace testing::fake_nccl;

using LifetimeTest = NcclTest;

TEST_F(LifetimeTest, ACommunicatorTellsOfItself) {
  RunWithComm(2, [&](Rank* rank, Comm* comm) {
    int value = -1;
    EXPECT_NCCL(ncclCommCount(comm, &value));
    EXPECT_EQ(value, 2);
    EXPECT_NCCL(ncclCommUserRank(comm, &value));
    EXPECT_EQ(value, rank->rank());
    EXPECT_NCCL(ncclCommCuDevice(comm, &value));
    EXPECT_EQ(value, rank->rank());
  });
  EXPECT_STREQ(ncclGetErrorString(Result::kSuccess), "no error");
  EXPECT_STREQ(ncclGetErrorString(Result::kRemoteError),
               "remote process exited or there was a network error");
}

TEST_F(LifetimeTest, ABlockingCommunicatorWaitsInItsCalls) {
  Run(3, [&](Rank* rank) {
    Comm* comm = nullptr;
    EXPECT_NCCL(ncclCommInitRank(&comm, 3, id_, rank->rank()));
    Comm* half = nullptr;
    EXPECT_NCCL(ncclCommSplit(comm, rank->rank() % 2, 0, &half, nullptr));
    int size = 0;
    EXPECT_NCCL(ncclCommCount(half, &size));
    EXPECT_EQ(size, rank->rank() == 1 ? 1 : 2);
    EXPECT_NCCL(ncclCommFinalize(half));
    EXPECT_NCCL(ncclCommDestroy(half));
    EXPECT_NCCL(ncclCommFinalize(comm));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST_F(LifetimeTest, ACallInProgressIsPolled) {
  Options options;
  options.polls.init = 5;
  Begin(options);
  Rank rank(0, 0);
  Comm* comm = nullptr;
  EXPECT_EQ(rank.Begin(1, id_, &comm), Result::kInProgress);
  Result result = Result::kSuccess;
  int value = -1;
  for (int i = 0; i < 5; ++i) {
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
    EXPECT_EQ(result, Result::kInProgress);
    EXPECT_EQ(ncclCommCount(comm, &value), Result::kInvalidArgument);
  }
  EXPECT_STREQ(ncclGetLastError(comm),
               "Attempt to use communicator before the previous operation "
               "returned ncclSuccess");
  EXPECT_EQ(ncclCommDestroy(comm), Result::kInvalidArgument);
  EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
  EXPECT_NCCL(result);
  EXPECT_NCCL(ncclCommCount(comm, &value));
  EXPECT_NCCL(ncclCommDestroy(comm));
}

// A collective in progress is not in the stream yet.
TEST_F(LifetimeTest, ACollectiveInProgressIsNotLaunched) {
  Options options;
  options.polls.collective = 3;
  options.polls.group = 1;
  Begin(options);
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    float* const x = rank->Put(std::vector<float>{1});
    auto* const y = static_cast<float*>(rank->Make(4));
    EXPECT_EQ(ncclAllGather(x, y, 1, DataType::kFloat32, comm, rank->stream()),
              Result::kInProgress);
    EXPECT_EQ(ncclAllGather(x, y, 1, DataType::kFloat32, comm, rank->stream()),
              Result::kInvalidArgument);
    EXPECT_TRUE(rank->Synchronize());
    EXPECT_EQ(Count().launches, 0u);
    EXPECT_NCCL(Rank::Await(comm));
    EXPECT_EQ(Count().launches, 1u);
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(
        ncclAllGather(x, y, 1, DataType::kFloat32, comm, rank->stream()));
    EXPECT_EQ(ncclGroupEnd(), Result::kInProgress);
    EXPECT_EQ(Count().launches, 1u);
    EXPECT_NCCL(Rank::Await(comm));
    EXPECT_EQ(Count().launches, 2u);
    EXPECT_EQ(rank->Get(y, 1), std::vector<float>{1});
  });
}

TEST_F(LifetimeTest, ASplitOrdersRanksByKey) {
  RunWithComm(4, [&](Rank* rank, Comm* comm) {
    Comm* made = comm;
    // Ranks 0, 1 and 2, from the last to the first; rank 3 is in none.
    const int color = rank->rank() == 3 ? kNoColor : 7;
    EXPECT_EQ(ncclCommSplit(comm, color, -rank->rank(), &made, nullptr),
              Result::kInProgress);
    EXPECT_EQ(made, nullptr);
    EXPECT_NCCL(Rank::Await(comm));
    if (rank->rank() == 3) {
      EXPECT_EQ(made, nullptr);
      return;
    }
    ASSERT_NE(made, nullptr);
    int value = -1;
    EXPECT_NCCL(ncclCommUserRank(made, &value));
    EXPECT_EQ(value, 2 - rank->rank());
    EXPECT_NCCL(ncclCommCount(made, &value));
    EXPECT_EQ(value, 3);
    int* const x = rank->Put(std::vector<int>(3, rank->rank()));
    EXPECT_NCCL(ncclAllGather(x + 2 - rank->rank(), x, 1, DataType::kInt32,
                              made, rank->stream()));
    EXPECT_EQ(rank->Get(x, 3), (std::vector<int>{2, 1, 0}));
    Rank::Finish(made);
  });
}

TEST_F(LifetimeTest, ConfigurationsAreChecked) {
  Rank rank(0, 0);
  Comm* comm = nullptr;
  Config config;
  config.magic = 0;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id_, 0, &config),
            Result::kInvalidArgument);
  config = {};
  config.blocking = 2;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id_, 0, &config),
            Result::kInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(&comm, 1, id_, 1), Result::kInvalidArgument);
  EXPECT_STREQ(ncclGetLastError(nullptr), "Invalid rank requested : 1/1");
  EXPECT_EQ(ncclCommInitRank(&comm, 1, {}, 0), Result::kInvalidArgument);
  EXPECT_EQ(comm, nullptr);
}

// As NCCL 2.28.9 does, on a machine that has its loopback alone, too.
TEST_F(LifetimeTest, AnInterfaceOfItsNameIsNeeded) {
  const Rank rank(0, 0);
  for (const auto& [names, is_there] :
       {std::pair("no_such", false), std::pair("=l", false),
        std::pair("l", true), std::pair("no_such,lo", true),
        std::pair("=lo", true), std::pair("^no_such", true),
        std::pair("^", true)}) {
    SCOPED_TRACE(names);
    ASSERT_EQ(::setenv("NCCL_SOCKET_IFNAME", names, 1), 0);
    const Result expected = is_there ? Result::kSuccess : Result::kInvalidUsage;
    UniqueId id = {};
    EXPECT_EQ(ncclGetUniqueId(&id), expected);
    Comm* comm = nullptr;
    const Result begun = rank.Begin(1, is_there ? id : id_, &comm);
    EXPECT_EQ(begun, is_there ? Result::kInProgress : expected);
    if (is_there) {
      EXPECT_NCCL(Rank::Await(comm));
      Rank::Finish(comm);
    } else {
      EXPECT_EQ(comm, nullptr);
      EXPECT_STREQ(ncclGetLastError(nullptr),
                   "Bootstrap : no socket interface found");
    }
  }
  ASSERT_EQ(::unsetenv("NCCL_SOCKET_IFNAME"), 0);
}

TEST_F(LifetimeTest, ADeviceHasOneRankBefore230) {
  for (const int version : {22809, 23000, 30000}) {
    SCOPED_TRACE(version);
    Options options;
    options.version = version;
    Begin(options);
    int told = 0;
    EXPECT_NCCL(ncclGetVersion(&told));
    EXPECT_EQ(told, version);
    Rank first(0, 1);
    Rank second(1, 1);
    Comm* a = nullptr;
    Comm* b = nullptr;
    EXPECT_EQ(first.Begin(2, id_, &a), Result::kInProgress);
    EXPECT_EQ(second.Begin(2, id_, &b), Result::kInProgress);
    const bool shares = version >= 23000;
    const Result expected = shares ? Result::kSuccess : Result::kInvalidUsage;
    EXPECT_EQ(Rank::Await(a), expected);
    EXPECT_EQ(Rank::Await(b), expected);
    if (!shares) {
      EXPECT_STREQ(ncclGetLastError(b),
                   "Duplicate GPU detected : rank 1 and rank 0 both on CUDA "
                   "device 2000");
      EXPECT_EQ(ncclCommDestroy(a), Result::kInvalidUsage);
    }
    EXPECT_NCCL(ncclCommAbort(a));
    EXPECT_NCCL(ncclCommAbort(b));
  }
}

TEST_F(LifetimeTest, AnAbortEndsWhatHangs) {
  Run(2, [&](Rank* rank) {
    Comm* const comm = rank->Init(2, id_);
    float* const x = rank->Put(std::vector<float>(2));
    if (rank->rank() == 0) {
      EXPECT_NCCL(
          ncclAllGather(x, x, 1, DataType::kFloat32, comm, rank->stream()));
      EXPECT_NCCL(ncclAllReduce(x, x, 1, DataType::kFloat32, RedOp::kSum, comm,
                                rank->stream()));
      const CuEvent event = rank->Record();
      EXPECT_TRUE(Rank::IsPending(event));
    }
    EXPECT_NCCL(ncclCommAbort(comm));
    EXPECT_TRUE(rank->Synchronize());
  });
  EXPECT_EQ(Count().launches, 2u);
  EXPECT_EQ(Count().ended, 0u);
}

TEST_F(LifetimeTest, AnAbortEndsAnInitialization) {
  Rank rank(0, 0);
  Comm* comm = nullptr;
  EXPECT_EQ(rank.Begin(2, id_, &comm), Result::kInProgress);
  EXPECT_NCCL(ncclCommAbort(comm));
}

TEST_F(LifetimeTest, NullIsEnded) {
  EXPECT_NCCL(ncclCommDestroy(nullptr));
  EXPECT_NCCL(ncclCommAbort(nullptr));
  EXPECT_EQ(ncclCommFinalize(nullptr), Result::kInvalidArgument);
  EXPECT_EQ(ViolationText(),
            "ncclCommFinalize is called without a communicator\n");
  ClearViolations();
}

TEST_F(LifetimeTest, FinalizingWaitsForKernels) {
  StickAt(1);
  Run(1, [&](Rank* rank) {
    Comm* const comm = rank->Init(1, id_);
    float* const x = rank->Put(std::vector<float>(2));
    EXPECT_NCCL(
        ncclBroadcast(x, x, 1, DataType::kFloat32, 0, comm, rank->stream()));
    EXPECT_EQ(ncclCommFinalize(comm), Result::kInProgress);
    for (int i = 0; i < 100; ++i) {
      Result result = Result::kSuccess;
      EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
      EXPECT_EQ(result, Result::kInProgress);
    }
    EXPECT_NCCL(ncclCommAbort(comm));
    EXPECT_TRUE(rank->Synchronize());
  });
}

TEST_F(LifetimeTest, DestroyingWaitsForKernels) {
  Run(1, [&](Rank* rank) {
    Comm* const comm = rank->Init(1, id_);
    float* const x = rank->Put(std::vector<float>(2));
    EXPECT_NCCL(
        ncclBroadcast(x, x, 1, DataType::kFloat32, 0, comm, rank->stream()));
    EXPECT_NCCL(ncclCommDestroy(comm));
    EXPECT_EQ(Count().ended, 1u);
    EXPECT_TRUE(rank->Synchronize());
  });
}

}  // namespace
}  // namespace shard::lifetime_test
