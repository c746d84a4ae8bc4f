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
#include <string>
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

// Opens collectives by NCCL on all ranks at once, and returns their errors by
// rank. Rank `late` comes when all others have returned.
std::vector<Status> OpenAll(double timeout = 20, int late = -1) {
  std::vector<Status> opened(kRanks);
  std::atomic<int> returned = 0;
  RunGroup(
      Backend::kThreads, kRanks,
      [&](Communicator* comm) {
        const auto device = cuda::OpenDevice(StrCat(comm->rank()));
        ASSERT_OK(device);
        while (comm->rank() == late && returned < kRanks - 1) {
          std::this_thread::yield();
        }
        const auto begin = std::chrono::steady_clock::now();
        opened[static_cast<size_t>(comm->rank())] =
            OpenCollectives(comm, device->get(), EverySet(*comm),
                            {.transport = Transport::kNccl,
                             .reduce = {size_t{1} << 16, size_t{1} << 15},
                             .timeout = timeout},
                            Deadline::After(timeout))
                .status();
        const std::chrono::duration<double> took =
            std::chrono::steady_clock::now() - begin;
        EXPECT_LT(took.count(), timeout + kSlack);
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

// One result of one call on one rank is the error of all, which names the rank.
TEST(NcclStartTest, AnErrorOfOneRankIsThatOfAll) {
  // As with an interface that is not there.
  ASSERT_EQ(::setenv("NCCL_SOCKET_IFNAME", "no_such", 1), 0);
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
             "(NCCL_SOCKET_IFNAME=no_such) with shardctl doctor"});
      }
    }
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
