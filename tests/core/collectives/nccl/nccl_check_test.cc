// SPDX-License-Identifier: Apache-2.0
//
// The check of NCCL between GPUs: one rank and several, and that each fault is
// found and named on all ranks.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/check.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/collectives/nccl/nccl_rank.h"

namespace shard::testing::nccl_check_test {
namespace {

// Runs the check on ranks with a GPU each, and returns their results.
std::vector<Status> CheckAll(int ranks, double seconds = 20,
                             bool shutdown = true) {
  std::vector<Status> all(static_cast<size_t>(ranks));
  RunGroup(
      Backend::kThreads, ranks,
      [&](Communicator* comm) {
        all[static_cast<size_t>(comm->rank())] = cuda::CheckCollectives(
            StrCat(comm->rank()), comm, Deadline::After(seconds));
      },
      shutdown);
  return all;
}
// The same for rank 0's result.
Status Check(int ranks, double seconds = 20, bool shutdown = true) {
  return CheckAll(ranks, seconds, shutdown)[0];
}

TEST(NcclCheckTest, MakesEachCall) {
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    const FakeNccl fake(OneGpuEach(ranks));
    EXPECT_OK(Check(ranks));
    // The device's own context: an abandoned one keeps the device's memory.
    EXPECT_EQ(fake_cuda::Count().Calls("cuDevicePrimaryCtxRetain"),
              static_cast<uint64_t>(ranks));
    const fake_nccl::Counts counts = fake_nccl::Count();
    for (const char* const symbol :
         {"ncclAllGather", "ncclBroadcast", "ncclSend", "ncclRecv",
          "ncclReduceScatter"}) {
      EXPECT_EQ(counts.Calls(symbol), static_cast<uint64_t>(ranks)) << symbol;
    }
  }
}

TEST(NcclCheckTest, AFailedCallIsNamedOnAllRanks) {
  for (const char* const symbol :
       {"ncclCommInitRankConfig", "ncclAllGather", "ncclBroadcast", "ncclSend",
        "ncclRecv", "ncclReduceScatter"}) {
    SCOPED_TRACE(symbol);
    for (const int ranks : {1, 2}) {
      const FakeNccl fake(OneGpuEach(ranks));
      fake_nccl::FailCall(symbol, 1, fake_nccl::Result::kSystemError,
                          {.rank = ranks - 1});
      for (const Status& status : CheckAll(ranks, 20, /*shutdown=*/false)) {
        ExpectError(status, StatusCode::kUnavailable,
                    {symbol, StrCat("rank ", status.rank())});
        // The start has no communicator yet, and so is any rank's.
        const bool is_start =
            std::string_view(symbol).find("Init") != std::string_view::npos;
        EXPECT_TRUE(is_start || status.rank() == ranks - 1) << status.rank();
      }
    }
  }
}

TEST(NcclCheckTest, ACallThatDoesNotEndIsNamed) {
  const std::pair<uint64_t, const char*> calls[] = {{1, "ncclAllGather"},
                                                    {5, "ncclReduceScatter"}};
  for (const auto& [number, name] : calls) {
    SCOPED_TRACE(name);
    const FakeNccl fake(OneGpuEach(1));
    fake_nccl::StickAt(number);
    ExpectError(Check(1, kSanitized ? 5 : 2, /*shutdown=*/false),
                StatusCode::kDeadlineExceeded, {name});
  }
}

TEST(NcclCheckTest, AVersionThatCannotBeUsedIsNamed) {
  const FakeNccl fake(OneGpuEach(2), {.version = 21705});
  ExpectError(Check(2), StatusCode::kBackendUnavailable,
              {"no usable NCCL", "2.17.5"});
}

}  // namespace
}  // namespace shard::testing::nccl_check_test
