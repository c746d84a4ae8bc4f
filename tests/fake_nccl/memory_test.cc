// SPDX-License-Identifier: Apache-2.0
//
// Memory that is registered with the fake NCCL, and communicators of fewer
// ranks, which versions have or have not.

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tests/fake_nccl/nccl_testing.h"

namespace shard::memory_test {
namespace {

using namespace testing::fake_nccl;

using MemoryTest = NcclTest;

constexpr size_t kBytes = 8192;

TEST_F(MemoryTest, RanksRegisterWindows) {
  RunWithComm(2, [&](Rank* rank, Comm* comm) {
    void* memory = nullptr;
    EXPECT_NCCL(ncclMemAlloc(&memory, kBytes));
    Window* window = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(comm, memory, kBytes, &window, 1),
              Result::kInProgress);
    EXPECT_EQ(window, nullptr);
    EXPECT_NCCL(Rank::Await(comm));
    EXPECT_NE(window, nullptr);
    EXPECT_NE(AliveText().find("registrations"), std::string::npos);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    EXPECT_EQ(ncclCommWindowDeregister(comm, window), Result::kInvalidArgument);
    EXPECT_NCCL(ncclMemFree(memory));
    EXPECT_EQ(ncclMemFree(memory), Result::kInvalidArgument);
    EXPECT_TRUE(rank->Synchronize());
  });
}

TEST_F(MemoryTest, WindowsTellWhereTheMemoryOfRanksInReachIs) {
  Options options;
  options.version = 22902;
  options.ranks_in_reach = 2;
  Begin(options);
  std::vector<void*> memory(3);
  RunWithComm(3, [&](Rank* rank, Comm* comm) {
    const int me = rank->rank();
    void** const own = &memory[static_cast<size_t>(me)];
    EXPECT_NCCL(ncclMemAlloc(own, kBytes));
    Window* window = nullptr;
    EXPECT_EQ(
        ncclCommWindowRegister(comm, *own, kBytes, &window, kWinCollSymmetric),
        Result::kInProgress);
    EXPECT_NCCL(Rank::Await(comm));
    for (int peer = 0; peer < 3; ++peer) {
      void* found = &found;
      EXPECT_NCCL(ncclGetPeerDevicePointer(window, 256, peer, &found));
      const bool is_near = peer / 2 == me / 2;
      EXPECT_EQ(
          found,
          is_near ? static_cast<char*>(memory[static_cast<size_t>(peer)]) + 256
                  : nullptr);
    }
    void* found = nullptr;
    EXPECT_EQ(ncclGetPeerDevicePointer(window, 0, 3, &found),
              Result::kInvalidArgument);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    EXPECT_EQ(ncclGetPeerDevicePointer(window, 0, 0, &found),
              Result::kInvalidArgument);
    EXPECT_NCCL(ncclMemFree(*own));
  });
}

// A window is its communicator's, which one thread at a time calls.
TEST_F(MemoryTest, AWindowIsUsedUnderItsCommunicatorsLock) {
  Options options;
  options.version = 22902;
  Begin(options);
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    void* own = nullptr;
    EXPECT_NCCL(ncclMemAlloc(&own, kBytes));
    Window* window = nullptr;
    EXPECT_EQ(
        ncclCommWindowRegister(comm, own, kBytes, &window, kWinCollSymmetric),
        Result::kInProgress);
    EXPECT_NCCL(Rank::Await(comm));
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(
        ncclAllGather(own, own, 1, DataType::kInt8, comm, rank->stream()));
    std::thread other([&] {
      void* found = nullptr;
      EXPECT_NCCL(ncclGetPeerDevicePointer(window, 0, 0, &found));
      EXPECT_EQ(found, own);
    });
    other.join();
    ExpectViolations(ViolationKind::kConcurrent,
                     "ncclGetPeerDevicePointer of rank 0 of 1 (communicator 1) "
                     "is called while another thread is in ncclAllGather");
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_TRUE(rank->Synchronize());
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    EXPECT_NCCL(ncclMemFree(own));
  });
}

TEST_F(MemoryTest, WindowsAreOfAlignedMemoryOfTheDevice) {
  RunWithComm(1, [&](Rank* rank, Comm* comm) {
    auto* const memory = static_cast<char*>(rank->Make(kBytes));
    Window* window = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(comm, memory + 16, 16, &window, 1),
              Result::kInvalidArgument);
    EXPECT_EQ(ncclCommWindowRegister(comm, memory, kBytes + 1, &window, 1),
              Result::kInvalidArgument);
    ExpectViolations(
        ViolationKind::kNotDeviceMemory,
        "ncclCommWindowRegister of rank 0 of 1 (communicator 1) is "
        "given no memory of device 0");
  });
}

TEST_F(MemoryTest, RegistrationsEndBeforeTheirMemory) {
  Run(1, [&](Rank* rank) {
    Comm* const comm = rank->Init(1, id_);
    void* memory = nullptr;
    void* handle = nullptr;
    EXPECT_NCCL(ncclMemAlloc(&memory, kBytes));
    EXPECT_NCCL(ncclCommRegister(comm, memory, kBytes, &handle));
    EXPECT_NCCL(ncclMemFree(memory));
    ExpectViolations(ViolationKind::kRegistered,
                     "ncclMemFree of memory that is registered");
    EXPECT_NCCL(ncclCommDestroy(comm));
    ExpectViolations(ViolationKind::kRegistered,
                     "is destroyed with registered memory");
  });
  Run(1, [&](Rank* rank) {
    Comm* const comm = rank->Init(1, NewId());
    void* const memory = rank->Make(kBytes);
    void* handle = nullptr;
    EXPECT_NCCL(ncclCommRegister(comm, memory, kBytes, &handle));
    EXPECT_NCCL(ncclCommDeregister(comm, handle));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// NCCL promises nothing for such calls.
TEST_F(MemoryTest, BuffersAreRegisteredOnAllRanksOrOnNone) {
  for (const bool everywhere : {true, false}) {
    SCOPED_TRACE(everywhere);
    Begin({});
    Run(2, [&](Rank* rank) {
      Comm* const comm = rank->Init(2, id_);
      int* const x = rank->Put(std::vector<int>(2, rank->rank()));
      void* handle = nullptr;
      if (everywhere || rank->rank() == 1) {
        EXPECT_NCCL(ncclCommRegister(comm, x, 2 * sizeof(int), &handle));
      }
      EXPECT_NCCL(ncclAllGather(x + rank->rank(), x, 1, DataType::kInt32, comm,
                                rank->stream()));
      if (everywhere) {
        EXPECT_EQ(rank->Get(x, 2), (std::vector<int>{0, 1}));
        EXPECT_NCCL(ncclCommDeregister(comm, handle));
        Rank::Finish(comm);
        return;
      }
      // A rank whose communicator is aborted sends no more.
      ASSERT_TRUE(ComesTrue([] { return Violations().size() == 2; }));
      EXPECT_NCCL(ncclCommAbort(comm));
      EXPECT_TRUE(rank->Synchronize());
    });
    if (everywhere) continue;
    ASSERT_EQ(Violations().size(), 2u);
    ExpectViolations(ViolationKind::kMismatch,
                     "ncclAllGather of 1 i32, what it reads is registered, "
                     "what it writes is registered");
  }
}

// NCCL's kernels take the offset of one rank for that of all.
TEST_F(MemoryTest, BuffersAreAtOnePlaceOfAWindow) {
  constexpr size_t kElsewhere = 64;
  for (const bool everywhere : {true, false}) {
    SCOPED_TRACE(everywhere);
    Begin({});
    Run(2, [&](Rank* rank) {
      Comm* const comm = rank->Init(2, id_);
      void* memory = nullptr;
      EXPECT_NCCL(ncclMemAlloc(&memory, kBytes));
      Window* window = nullptr;
      EXPECT_EQ(ncclCommWindowRegister(comm, memory, kBytes, &window,
                                       kWinCollSymmetric),
                Result::kInProgress);
      EXPECT_NCCL(Rank::Await(comm));
      auto* const recv = static_cast<char*>(memory) +
                         (everywhere || rank->rank() == 0 ? 0 : kElsewhere);
      EXPECT_NCCL(ncclAllGather(recv + rank->rank(), recv, 1, DataType::kInt8,
                                comm, rank->stream()));
      if (everywhere) {
        EXPECT_TRUE(rank->Synchronize());
        EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
        Rank::Finish(comm);
      } else {
        ASSERT_TRUE(ComesTrue([] { return Violations().size() == 2; }));
        EXPECT_NCCL(ncclCommAbort(comm));
        EXPECT_TRUE(rank->Synchronize());
      }
      EXPECT_NCCL(ncclMemFree(memory));
    });
    if (everywhere) continue;
    ASSERT_EQ(Violations().size(), 2u);
    ExpectViolations(ViolationKind::kMismatch, ", at 64 of window ");
  }
}

// A rank without windows does not wait for the others.
TEST_F(MemoryTest, ARankMayHaveNoWindow) {
  Options options;
  options.rank_without_windows = 1;
  Begin(options);
  Run(2, [&](Rank* rank) {
    Comm* const comm = rank->Init(2, id_);
    void* memory = nullptr;
    EXPECT_NCCL(ncclMemAlloc(&memory, kBytes));
    Window* window = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(comm, memory, kBytes, &window,
                                     kWinCollSymmetric),
              rank->rank() == 1 ? Result::kSuccess : Result::kInProgress);
    EXPECT_EQ(window, nullptr);
    EXPECT_NCCL(ncclCommAbort(comm));
    EXPECT_NCCL(ncclMemFree(memory));
  });
}

TEST_F(MemoryTest, NcclTakesWholePieces) {
  Options options;
  options.memory_piece = 1 << 16;
  options.registers = false;
  Begin(options);
  Run(1, [&](Rank* rank) {
    Comm* const comm = rank->Init(1, id_);
    void* memory = nullptr;
    void* handle = &memory;
    EXPECT_NCCL(ncclMemAlloc(&memory, kBytes));
    testing::fake_cuda::Memory found = {};
    ASSERT_TRUE(testing::fake_cuda::FindMemory(memory, &found));
    EXPECT_EQ(found.bytes, options.memory_piece);
    EXPECT_NCCL(ncclCommRegister(comm, memory, kBytes, &handle));
    EXPECT_EQ(handle, nullptr);
    EXPECT_NCCL(ncclCommDeregister(comm, handle));
    EXPECT_NCCL(ncclMemFree(memory));
    Rank::Finish(comm);
  });
}

TEST_F(MemoryTest, AllocationsFail) {
  Rank rank(0, 0);
  void* memory = nullptr;
  testing::fake_cuda::FailCall("cuMemAlloc", 1, CuResult::kOutOfMemory);
  EXPECT_EQ(ncclMemAlloc(&memory, kBytes), Result::kUnhandledCudaError);
  EXPECT_EQ(ncclMemAlloc(&memory, 0), Result::kInvalidArgument);
}

TEST_F(MemoryTest, OldVersionsLackCalls) {
  Options options;
  options.version = 21805;
  Begin(options);
  Rank rank(0, 0);
  void* memory = nullptr;
  EXPECT_NCCL(ncclMemAlloc(&memory, kBytes));
  EXPECT_NCCL(ncclMemFree(memory));
  ASSERT_EQ(Violations().size(), 2u);
  ExpectViolations(ViolationKind::kNotInVersion,
                   "ncclMemAlloc is called, which version 21805 does not have");
}

TEST_F(MemoryTest, RanksThatAreLeftShrink) {
  Run(3, [&](Rank* rank) {
    Comm* const comm = rank->Init(3, id_);
    int* const x = rank->Put(std::vector<int>(3, rank->rank()));
    Comm* made = nullptr;
    int dead = 1;
    int self = rank->rank();
    if (rank->rank() == 1) {
      EXPECT_NCCL(ncclCommAbort(comm));
      return;
    }
    // It hangs, because rank 1 does not come.
    EXPECT_NCCL(ncclAllGather(x + rank->rank(), x, 1, DataType::kInt32, comm,
                              rank->stream()));
    EXPECT_EQ(ncclCommShrink(comm, &self, 1, &made, nullptr, 1),
              Result::kInvalidArgument);
    EXPECT_EQ(ncclCommShrink(comm, &dead, 1, &made, nullptr, 1),
              Result::kInProgress);
    EXPECT_NCCL(Rank::Await(comm));
    int value = 0;
    EXPECT_NCCL(ncclCommUserRank(made, &value));
    EXPECT_EQ(value, rank->rank() / 2);
    EXPECT_NCCL(ncclAllGather(x + rank->rank(), x, 1, DataType::kInt32, made,
                              rank->stream()));
    EXPECT_EQ(rank->Get(x, 2), (std::vector<int>{0, 2}));
    Rank::Finish(made);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
}

TEST_F(MemoryTest, ARevokedCommunicatorIsOnlyManaged) {
  Run(2, [&](Rank* rank) {
    Comm* const comm = rank->Init(2, id_);
    int* const x = rank->Put(std::vector<int>(2, rank->rank()));
    const auto gather = [&] {
      return ncclAllGather(x + rank->rank(), x, 1, DataType::kInt32, comm,
                           rank->stream());
    };
    if (rank->rank() == 0) {
      EXPECT_NCCL(gather());
    }
    EXPECT_EQ(ncclCommRevoke(comm, 0), Result::kInProgress);
    EXPECT_NCCL(Rank::Await(comm));
    EXPECT_TRUE(rank->Synchronize());
    EXPECT_EQ(gather(), Result::kInvalidUsage);
    EXPECT_EQ(ncclCommFinalize(comm), Result::kInvalidUsage);
    Comm* made = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, 0, 0, &made, nullptr), Result::kInProgress);
    EXPECT_NCCL(Rank::Await(comm));
    Rank::Finish(made);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  ExpectViolations(ViolationKind::kAfterEnd, "is called after ncclCommRevoke");
}

}  // namespace
}  // namespace shard::memory_test
