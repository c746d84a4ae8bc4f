// SPDX-License-Identifier: Apache-2.0
//
// Groups of calls of the fake NCCL: one kernel, and sends that meet.

#include <gtest/gtest.h>

#include <vector>

#include "tests/fake_nccl/nccl_testing.h"

namespace shard::groups_test {
namespace {

using namespace testing::fake_nccl;

using GroupsTest = NcclTest;

constexpr size_t kCount = 20000;

// Sends to the next rank, and receives from the one before.
void PassOn(Rank* rank, Comm* comm, int n, const float* send, float* recv) {
  const int next = (rank->rank() + 1) % n;
  const int last = (rank->rank() + n - 1) % n;
  EXPECT_NCCL(
      ncclSend(send, kCount, DataType::kFloat32, next, comm, rank->stream()));
  EXPECT_NCCL(
      ncclRecv(recv, kCount, DataType::kFloat32, last, comm, rank->stream()));
}

TEST_F(GroupsTest, SendsAndReceivesOfAGroupMeet) {
  RunWithComm(3, [&](Rank* rank, Comm* comm) {
    const float value = static_cast<float>(rank->rank());
    float* const send = rank->Put(std::vector<float>(kCount, value));
    auto* const recv = static_cast<float*>(rank->Make(kCount * 4));
    EXPECT_NCCL(ncclGroupStart());
    PassOn(rank, comm, 3, send, recv);
    EXPECT_NCCL(ncclGroupEnd());
    const auto last = static_cast<float>((rank->rank() + 2) % 3);
    EXPECT_EQ(rank->Get(recv, kCount), std::vector<float>(kCount, last));
  });
  EXPECT_EQ(Count().launches, 3u);
  EXPECT_EQ(Count().Calls("ncclSend"), 3u);
  EXPECT_EQ(Count().Bytes("ncclSend"), 3u * kCount * 4);
}

TEST_F(GroupsTest, SendsThatCrossHangWithoutAGroup) {
  Run(2, [&](Rank* rank) {
    Comm* const comm = rank->Init(2, id_);
    float* const send = rank->Put(std::vector<float>(kCount));
    auto* const recv = static_cast<float*>(rank->Make(kCount * 4));
    PassOn(rank, comm, 2, send, recv);
    const CuEvent event = rank->Record();
    const CuStream other = rank->MakeStream();
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(rank->Synchronize(other));
    EXPECT_TRUE(Rank::IsPending(event));
    EXPECT_NCCL(ncclCommAbort(comm));
    EXPECT_TRUE(rank->Synchronize());
  });
}

TEST_F(GroupsTest, AGroupIsOneKernelOfAllItsStreams) {
  RunWithComm(2, [&](Rank* rank, Comm* comm) {
    const int other = 1 - rank->rank();
    float* const x = rank->Put(std::vector<float>(kCount, 1));
    float* const y = rank->Put(std::vector<float>(kCount, 2));
    const CuStream second = rank->MakeStream();
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(x, x, kCount, DataType::kFloat32, RedOp::kSum,
                              comm, rank->stream()));
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_NCCL(ncclAllReduce(y, y, kCount, DataType::kFloat32, RedOp::kSum,
                              comm, second));
    // Groups of both kinds do not mix.
    if (rank->rank() == 0) {
      EXPECT_NCCL(
          ncclSend(x, 0, DataType::kFloat32, other, comm, rank->stream()));
    } else {
      EXPECT_NCCL(
          ncclRecv(x, 0, DataType::kFloat32, other, comm, rank->stream()));
    }
    EXPECT_NCCL(ncclGroupEnd());
    // Each stream is behind the whole of it.
    EXPECT_CU(Api().MemsetD8Async(At(y), 0, 4, rank->stream()));
    EXPECT_CU(Api().MemsetD8Async(At(x), 0, 4, second));
    EXPECT_TRUE(rank->Synchronize(second));
    EXPECT_EQ(rank->Get(x + 1, kCount - 1), std::vector<float>(kCount - 1, 2));
    EXPECT_EQ(rank->Get(y + 1, kCount - 1), std::vector<float>(kCount - 1, 4));
  });
  EXPECT_EQ(Count().launches, 2u);
}

TEST_F(GroupsTest, ARankSendsToItself) {
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    float* const x = rank->Put(std::vector<float>(kCount, 3));
    auto* const y = static_cast<float*>(rank->Make(kCount * 4));
    EXPECT_NCCL(ncclGroupStart());
    PassOn(rank, comm, 1, x, y);
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_EQ(rank->Get(y, kCount), std::vector<float>(kCount, 3));
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(
        ncclSend(x, kCount, DataType::kFloat32, 0, comm, rank->stream()));
    EXPECT_EQ(ncclGroupEnd(), Result::kInvalidUsage);
    EXPECT_STREQ(ncclGetLastError(comm),
                 "Trying to send to self without a matching recv");
  });
}

TEST_F(GroupsTest, AWrongCallDropsItsGroup) {
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    float* const x = rank->Put(std::vector<float>{3});
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(
        ncclBroadcast(x, x, 1, DataType::kFloat32, 0, comm, rank->stream()));
    EXPECT_EQ(
        ncclBroadcast(x, x, 1, DataType::kFloat32, 1, comm, rank->stream()),
        Result::kInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), Result::kInvalidArgument);
    EXPECT_EQ(Count().launches, 0u);
    EXPECT_EQ(ncclGroupEnd(), Result::kInvalidUsage);
  });
}

TEST_F(GroupsTest, AWrongInitializationDropsItsGroup) {
  Rank rank(0, 0);
  Comm* comm = nullptr;
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_EQ(ncclCommInitRank(&comm, 1, id_, 2), Result::kInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), Result::kInvalidArgument);
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclGroupEnd());
}

// A thread has the ranks of several devices.
TEST_F(GroupsTest, AGroupMakesCommunicators) {
  std::vector<Comm*> comms(2);
  Rank first(0, 0);
  Rank second(1, 1);
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclCommInitRank(&comms[1], 2, id_, 1));
  first.MakeCurrent();
  EXPECT_NCCL(ncclCommInitRank(&comms[0], 2, id_, 0));
  EXPECT_NCCL(ncclGroupEnd());
  int device = -1;
  EXPECT_NCCL(ncclCommCuDevice(comms[0], &device));
  EXPECT_EQ(device, 0);
  EXPECT_NCCL(ncclCommDestroy(comms[0]));
  Rank::PopCurrent();
  EXPECT_NCCL(ncclCommDestroy(comms[1]));
}

}  // namespace
}  // namespace shard::groups_test
