// SPDX-License-Identifier: Apache-2.0
//
// Memory of other ranks that a rank's kernels reach: where it is, why a rank
// does not reach it, and ranks that do not come.

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/collectives/nccl/nccl_rank.h"

namespace shard::testing::nccl_peer_memory_test {
namespace {

using fake_nccl::Count;
using fake_nccl::Result;

constexpr int kRanks = 3;
constexpr int kMakesWindows = 23102;

// One rank's memory of two sizes.
struct Memories {
  explicit Memories(NcclRank* rank, size_t second = 7000)
      : a(*rank->collectives->Allocate(rank->device.get(), 5000, "a")),
        b(*rank->collectives->Allocate(rank->device.get(), second, "b")) {}

  StatusOr<PeerMemory> Find(NcclRank* rank, double seconds = 20) const {
    const DeviceMemory* const all[] = {&a, &b};
    return rank->collectives->FindPeerMemory(rank->comm, all,
                                             Deadline::After(seconds));
  }

  DeviceMemory a;
  DeviceMemory b;
};

TEST(NcclPeerMemoryTest, IsWhereTheOtherRanksHaveIt) {
  const FakeNccl fake(OneGpuEach(kRanks), {.version = kMakesWindows});
  // The ranks are threads of one process, and see one another's addresses.
  std::vector<std::vector<std::byte*>> expected(
      2, std::vector<std::byte*>(kRanks));
  RunGroup(Backend::kThreads, kRanks, [&](Communicator* comm) {
    NcclRank rank(comm, EverySet(*comm));
    const auto me = static_cast<size_t>(comm->rank());
    const fake_nccl::Target mine = {.rank = comm->rank()};
    {
      const Memories memory(&rank);
      expected[0][me] = memory.a.data();
      expected[1][me] = memory.b.data();
      const auto peers = memory.Find(&rank);
      ASSERT_OK(peers);
      EXPECT_EQ(peers->why_not, "");
      ASSERT_EQ(peers->addresses.size(), 2u);
      ASSERT_OK(comm->Barrier("all have found", Soon()));
      EXPECT_TRUE(peers->addresses == expected);
      EXPECT_EQ(Count(mine).Calls("ncclCommWindowRegister"), 2u);
      EXPECT_EQ(Count(mine).Calls("ncclCommWindowDeregister"), 0u);
    }
    // Windows end with their memory.
    EXPECT_EQ(Count(mine).Calls("ncclCommWindowDeregister"), 2u);
    ASSERT_OK(comm->Barrier("all have freed", Soon()));
  });
}

struct Reason {
  const char* name;
  fake_nccl::Options options;
  std::function<void()> fault;
  std::vector<std::string> texts;
};

class NcclPeerReasonTest : public ::testing::TestWithParam<Reason> {};

// Where one rank does not reach another one, all know it.
TEST_P(NcclPeerReasonTest, IsThatOfAllRanks) {
  const Reason& reason = GetParam();
  const FakeNccl fake(OneGpuEach(kRanks), reason.options);
  if (reason.fault) reason.fault();
  RunGroup(Backend::kThreads, kRanks, [&](Communicator* comm) {
    NcclRank rank(comm, {RankSet::All(kRanks)});
    const Memories memory(&rank);
    const auto peers = memory.Find(&rank);
    ASSERT_OK(peers);
    EXPECT_EQ(peers->addresses.size(), 0u);
    for (const std::string& text : reason.texts) {
      EXPECT_TRUE(Contains(peers->why_not, text));
    }
    // Collectives go on.
    const DeviceTensor tensor(&rank, std::vector<unsigned char>(100));
    rank.collectives->Broadcast("broadcast", 0, tensor.data(), 100,
                                rank.stream.get());
    EXPECT_OK(rank.Synchronize());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Reasons, NcclPeerReasonTest,
    ::testing::Values(
        Reason{
            "version",
            {},
            nullptr,
            {"rank 0: NCCL 2.28.9 makes no windows that collectives can use; "
             "use 2.31.2 or later"}},
        Reason{"not_registered",
               {.version = kMakesWindows, .registers = false},
               nullptr,
               {"rank 0: memory is not registered with NCCL: ",
                "registers nothing; unset NCCL_LOCAL_REGISTER"}},
        Reason{"no_windows",
               {.version = kMakesWindows, .makes_windows = false},
               nullptr,
               {"rank 0: NCCL makes no windows of this memory",
                "NCCL_WIN_ENABLE"}},
        Reason{"out_of_reach",
               {.version = kMakesWindows, .ranks_in_reach = 2},
               nullptr,
               {"rank 0: its GPU does not reach the memory of rank 2"}},
        Reason{"address",
               {.version = kMakesWindows},
               [] {
                 fake_nccl::FailCall("ncclGetPeerDevicePointer", 2,
                                     Result::kInternalError);
               },
               {"rank ", ": ncclGetPeerDevicePointer: internal error"}}),
    [](const auto& info) { return std::string(info.param.name); });

// NCCL promises nothing for two threads in one communicator: the call has the
// communicator's lock, which a later call waits for.
TEST(NcclPeerMemoryTest, AddressesAreFoundByOneCallAtATime) {
  const FakeNccl fake(OneGpuEach(kRanks), {.version = kMakesWindows});
  RunGroup(Backend::kThreads, kRanks, [&](Communicator* comm) {
    NcclRank rank(comm, {RankSet::All(kRanks)}, {.timeout = 1});
    const Memories memory(&rank);
    std::thread other;
    if (comm->rank() == 1) {
      fake_nccl::HangCalls("ncclGetPeerDevicePointer", {.rank = 1});
      other = std::thread([&] {
        EXPECT_TRUE(ComesTrue([] { return fake_nccl::NumHanging() == 1; }));
        ExpectError(rank.collectives->Allocate(rank.device.get(), 100, "later"),
                    StatusCode::kDeadlineExceeded,
                    {"ncclGetPeerDevicePointer on rank 1 has not returned"});
        fake_nccl::ReleaseCalls();
      });
    }
    EXPECT_OK(memory.Find(&rank));
    if (other.joinable()) other.join();
    ASSERT_OK(comm->Barrier("all have found", Soon()));
  });
}

TEST(NcclPeerMemoryTest, RanksHaveTheSameMemory) {
  const FakeNccl fake(OneGpuEach(kRanks), {.version = kMakesWindows});
  RunGroup(
      Backend::kThreads, kRanks,
      [&](Communicator* comm) {
        NcclRank rank(comm, {RankSet::All(kRanks)});
        const Memories memory(&rank, comm->rank() == 2 ? 7001 : 7000);
        ExpectError(memory.Find(&rank), StatusCode::kDesync,
                    {"allocation 1 of rank 0 has 7000 bytes, that of rank 2 "
                     "has 7001"});
      },
      /*shutdown=*/false);
}

// The others would wait for it in NCCL.
TEST(NcclPeerMemoryTest, AnErrorOfOneRankIsThatOfAll) {
  const FakeNccl fake(OneGpuEach(kRanks), {.version = kMakesWindows});
  fake_nccl::FailCall("ncclCommWindowRegister", 1, Result::kSystemError,
                      {.rank = 1});
  RunGroup(
      Backend::kThreads, kRanks,
      [&](Communicator* comm) {
        NcclRank rank(comm, {RankSet::All(kRanks)});
        const Memories memory(&rank);
        const auto begin = std::chrono::steady_clock::now();
        const Status status = memory.Find(&rank, 60).status();
        ExpectError(status, StatusCode::kUnavailable,
                    {"rank 1: ncclCommWindowRegister: unhandled system error"});
        EXPECT_EQ(status.rank(), 1);
        EXPECT_LT(std::chrono::steady_clock::now() - begin,
                  std::chrono::seconds(20));
      },
      /*shutdown=*/false);
}

TEST(NcclPeerMemoryTest, ARankThatDoesNotComeEndsTheWait) {
  const FakeNccl fake(OneGpuEach(kRanks), {.version = kMakesWindows});
  RunGroup(
      Backend::kThreads, kRanks,
      [&](Communicator* comm) {
        NcclRank rank(comm, {RankSet::All(kRanks)});
        const Memories memory(&rank);
        ASSERT_OK(comm->Barrier("all have memory", Soon()));
        fake_nccl::Kill(1);
        ExpectError(memory.Find(&rank, kSanitized ? 5 : 1),
                    StatusCode::kDeadlineExceeded,
                    {"NCCL has not made its windows within"});
      },
      /*shutdown=*/false);
}

}  // namespace
}  // namespace shard::testing::nccl_peer_memory_test
