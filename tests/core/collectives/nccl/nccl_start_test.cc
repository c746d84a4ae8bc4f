// SPDX-License-Identifier: Apache-2.0
//
// A start of NCCL that fails, or does not end, on one of the ranks: all of them
// get one error, in time, and nothing is left.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/cuda_device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/collectives/nccl/nccl_rank.h"

namespace shard::testing::nccl_start_test {
namespace {

using fake_nccl::Result;

constexpr int kRanks = 4;
constexpr double kTimeout = 1;
// Seconds beyond a timeout.
constexpr double kSlack = kSanitized ? 5 : 1;

// Opens collectives by NCCL. `may_be_late`: this rank does not return in time.
Status Open(Communicator* comm, double timeout, bool may_be_late = false) {
  SHARD_ASSIGN_OR_RETURN(const auto device,
                         cuda::OpenDevice(StrCat(comm->rank())));
  const auto begin = std::chrono::steady_clock::now();
  const Status opened =
      OpenCollectives(comm, device.get(), EverySet(*comm),
                      {.transport = Transport::kNccl,
                       .reduce = {size_t{1} << 16, size_t{1} << 15},
                       .timeout = timeout},
                      Deadline::After(timeout))
          .status();
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - begin;
  EXPECT_TRUE(may_be_late || took.count() < timeout + kSlack) << took.count();
  return opened;
}

// Opens collectives by NCCL on all ranks at once, and returns their errors by
// rank. Rank `late` comes when all others have returned.
std::vector<Status> OpenAll(double timeout = 20, int late = -1) {
  std::vector<Status> opened(kRanks);
  std::atomic<int> returned = 0;
  RunGroup(
      Backend::kThreads, kRanks,
      [&](Communicator* comm) {
        while (comm->rank() == late && returned < kRanks - 1) {
          std::this_thread::yield();
        }
        opened[static_cast<size_t>(comm->rank())] = Open(comm, timeout);
        ++returned;
      },
      /*shutdown=*/false);
  return opened;
}

TEST(NcclStartTest, ACallThatStaysInProgressEndsAtTheDeadline) {
  for (const char* const symbol : {"ncclCommInitRankConfig", "ncclCommSplit"}) {
    SCOPED_TRACE(symbol);
    const FakeNccl fake(OneGpuEach(kRanks));
    fake_nccl::SlowCall(symbol, 1, INT_MAX, {.rank = 2});
    for (const Status& status : OpenAll(kTimeout)) {
      ExpectError(status, StatusCode::kDeadlineExceeded,
                  {"within 1 s", "NCCL_DEBUG=INFO", "doctor --nccl"});
    }
  }
}

// A rank that is late finds the error of the others.
TEST(NcclStartTest, AUniqueIdThatDoesNotComeEndsAtTheDeadline) {
  const FakeNccl fake(OneGpuEach(kRanks));
  const std::vector<Status> opened = OpenAll(kTimeout, 0);
  for (const Status& status : opened) {
    EXPECT_EQ(status.rank(), 0);
    EXPECT_TRUE(Contains(status.ToString(), "DEADLINE_EXCEEDED"));
    EXPECT_TRUE(Contains(status.message(), "rank [0]"));
  }
}

// Expects the others to name rank 0 at the deadline, which they do not wait
// longer for. `stall`: called before each of rank 0's calls on the
// communicator, `end` once the others have returned.
void ExpectRank0IsNamed(const std::function<void(std::string_view what)>& stall,
                        const std::function<void()>& end) {
  std::atomic<int> returned = 0;
  std::vector<std::thread> ranks;
  const std::string url = StrCat("threads:", kRanks, "?name=", UniqueName());
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      CommOptions options = {.rank = rank, .world_size = kRanks};
      if (rank == 0) options.phase_hook = stall;
      const auto comm = OpenCommunicator(url, options);
      ASSERT_OK(comm);
      const Status status = Open(comm->get(), kTimeout, rank == 0);
      EXPECT_TRUE(Contains(status.ToString(), "DEADLINE_EXCEEDED"));
      if (rank == 0) return;
      EXPECT_EQ(status.rank(), 0);
      EXPECT_TRUE(Contains(status.message(), "rank [0]"));
      if (++returned == kRanks - 1) end();
    });
  }
  for (std::thread& it : ranks) it.join();
}

// Rank 0 has agreed with the others on NCCL, and has an id that they wait for.
TEST(NcclStartTest, AUniqueIdThatIsNotSentEndsAtTheDeadline) {
  const FakeNccl fake(OneGpuEach(kRanks));
  std::promise<void> ended;
  int calls = 0;
  ExpectRank0IsNamed(
      [&](std::string_view what) {
        // The ranks have agreed on the first one.
        if (what != "open NCCL's communicators" || ++calls != 2) return;
        EXPECT_EQ(fake_nccl::Count().Calls("ncclGetUniqueId"), 1u);
        ended.get_future().wait();
      },
      [&] { ended.set_value(); });
  EXPECT_EQ(calls, 2);
}

TEST(NcclStartTest, AUniqueIdThatNcclDoesNotMakeEndsAtTheDeadline) {
  const FakeNccl fake(OneGpuEach(kRanks));
  fake_nccl::HangCalls("ncclGetUniqueId");
  ExpectRank0IsNamed([](std::string_view) {},
                     [] {
                       EXPECT_EQ(fake_nccl::NumHanging(), 1u);
                       fake_nccl::ReleaseCalls();
                     });
}

// One result of one call on one rank is the error of all, which names the rank.
TEST(NcclStartTest, AnErrorOfOneRankIsThatOfAll) {
  ASSERT_EQ(::setenv("NCCL_SOCKET_IFNAME", "lo", 1), 0);
  for (const char* const symbol : {"ncclGetUniqueId", "ncclCommInitRankConfig",
                                   "ncclCommSplit", "ncclCommGetAsyncError"}) {
    for (int result = 1; result < static_cast<int>(Result::kInProgress);
         ++result) {
      SCOPED_TRACE(StrCat(symbol, " returns ", result));
      const FakeNccl fake(OneGpuEach(kRanks));
      fake_nccl::FailCall(symbol, 1, static_cast<Result>(result));
      const std::vector<Status> opened = OpenAll();
      const int failed = opened[0].rank();
      EXPECT_GE(failed, 0);
      for (const Status& status : opened) {
        EXPECT_EQ(status.ToString(), opened[0].ToString());
        ExpectError(
            status, opened[0].code(),
            {StrCat("rank ", failed, ": nccl"), StrCat("(", result, ")"),
             "(NCCL_SOCKET_IFNAME=lo) with shardctl doctor --nccl"});
      }
    }
  }
  ASSERT_EQ(::unsetenv("NCCL_SOCKET_IFNAME"), 0);
}

TEST(NcclStartTest, AnInterfaceThatIsNotThereIsNamedOnAllRanks) {
  ASSERT_EQ(::setenv("NCCL_SOCKET_IFNAME", "no_such", 1), 0);
  const FakeNccl fake(OneGpuEach(kRanks));
  for (const Status& status : OpenAll()) {
    ExpectError(status, StatusCode::kInvalidArgument,
                {"rank 0: ncclGetUniqueId", "no socket interface found",
                 "(NCCL_SOCKET_IFNAME=no_such) with shardctl doctor --nccl"});
  }
  ASSERT_EQ(::unsetenv("NCCL_SOCKET_IFNAME"), 0);
}

TEST(NcclStartTest, MemoryThatEndsOnOneRankIsTheErrorOfAll) {
  for (const char* const symbol :
       {"cuEventCreate", "cuMemAllocAsync", "cuMemAllocFromPoolAsync"}) {
    for (uint64_t call = 1;; ++call) {
      SCOPED_TRACE(StrCat(symbol, " call ", call));
      const FakeNccl fake(OneGpuEach(kRanks));
      fake_cuda::FailCall(symbol, call, cuda::CuResult::kOutOfMemory);
      const std::vector<Status> opened = OpenAll();
      fake_cuda::ClearFailures();
      for (const Status& status : opened) {
        EXPECT_EQ(status.ToString(), opened[0].ToString());
      }
      if (opened[0].ok()) break;
    }
  }
}

}  // namespace
}  // namespace shard::testing::nccl_start_test
