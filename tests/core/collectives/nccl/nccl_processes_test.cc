// SPDX-License-Identifier: Apache-2.0
//
// Collectives by NCCL of ranks that are processes, each with fakes of its own:
// one of them is killed, or has another library or variable than the others.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/collectives/nccl/nccl_rank.h"
#include "tests/ranks/ranks.h"

namespace shard::testing::nccl_processes_test {
namespace {

constexpr int kRanks = 3;
constexpr double kTimeout = 20;

// Gathers a byte of each rank, its number.
Status Gather(NcclRank* rank, std::vector<unsigned char>* gathered) {
  const auto me = static_cast<unsigned char>(rank->comm->rank());
  const DeviceTensor all(rank, std::vector<unsigned char>(kRanks, me));
  auto* const data = static_cast<unsigned char*>(all.data());
  rank->collectives->AllGatherBlocks("gather", rank->all, data + me, 1, data,
                                     rank->stream.get());
  const Status status = rank->Synchronize();
  rank->stream->Settle(Soon());
  *gathered = all.Read();
  return status;
}

TEST(NcclProcessesTest, AProcessThatIsKilledIsLost) {
  const std::string url = UrlFor(Backend::kShm, UniqueName(), kRanks);
  const auto results = RunRanks(kRanks, [&](const Rank& me) {
    const FakeNccl fake(OneGpuEach(kRanks));
    auto comm =
        OpenCommunicator(url, {.rank = me.rank(), .world_size = kRanks});
    ASSERT_OK(comm);
    NcclRank rank(comm->get(), {RankSet::All(kRanks)}, {.timeout = kTimeout});
    std::vector<unsigned char> gathered;
    ASSERT_OK(Gather(&rank, &gathered));
    EXPECT_EQ(gathered, (std::vector<unsigned char>{0, 1, 2}));
    if (me.rank() == 1) ::raise(SIGKILL);
    const auto begin = std::chrono::steady_clock::now();
    const Status status = Gather(&rank, &gathered);
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
    EXPECT_EQ(status.rank(), 1);
    EXPECT_LT(took.count(), kTimeout / 2);
  });
  ASSERT_EQ(results.size(), size_t{kRanks});
  EXPECT_EQ(results[1].signal, SIGKILL);
  EXPECT_TRUE(results[0].passed()) << results[0].ToString();
  EXPECT_TRUE(results[2].passed()) << results[2].ToString();
}

// The fake's processes do not map each other's memory.
TEST(NcclProcessesTest, MemoryOfAnotherProcessMayBeOutOfReach) {
  const std::string url = UrlFor(Backend::kShm, UniqueName(), kRanks);
  ExpectAllPassed(RunRanks(kRanks, [&](const Rank& me) {
    const FakeNccl fake(OneGpuEach(kRanks), {.version = 23102});
    const auto comm =
        OpenCommunicator(url, {.rank = me.rank(), .world_size = kRanks});
    ASSERT_OK(comm);
    {
      NcclRank rank(comm->get(), {RankSet::All(kRanks)});
      const auto memory =
          rank.collectives->Allocate(rank.device.get(), 100, "a test");
      ASSERT_OK(memory);
      const DeviceMemory* const all[] = {&*memory};
      const auto peers =
          rank.collectives->FindPeerMemory(comm->get(), all, Soon());
      ASSERT_OK(peers);
      EXPECT_EQ(peers->addresses.size(), 0u);
      EXPECT_TRUE(
          Contains(peers->why_not,
                   "rank 0: its GPU does not reach the memory of rank 1"));
    }
    EXPECT_OK((*comm)->Shutdown(Soon()));
  }));
}

TEST(NcclProcessesTest, DifferentVersionsAreNamed) {
  const std::string url = UrlFor(Backend::kShm, UniqueName(), kRanks);
  ExpectAllPassed(RunRanks(kRanks, [&](const Rank& me) {
    const FakeNccl fake(OneGpuEach(kRanks),
                        {.version = me.rank() == 1 ? 22005 : 22809});
    const auto comm =
        OpenCommunicator(url, {.rank = me.rank(), .world_size = kRanks});
    ASSERT_OK(comm);
    const auto device = cuda::OpenDevice(StrCat(me.rank()));
    ASSERT_OK(device);
    ExpectError(
        OpenCollectives(comm->get(), device->get(), {{RankSet::All(kRanks)}},
                        {.transport = Transport::kNccl}, Soon()),
        StatusCode::kBackendUnavailable,
        {"rank 0 has NCCL 2.28.9, rank 1 has 2.20.5",
         "install one version on all hosts"});
    EXPECT_EQ(fake_nccl::Count().Calls("ncclGetUniqueId"), 0u);
    EXPECT_OK((*comm)->Shutdown(Soon()));
  }));
}

// NCCL's own error would come from the middle of its start. The processes tell
// each other their GPUs' UUIDs before it.
TEST(NcclProcessesTest, ProcessesThatShareAGpuAreNamedBeforeNcclStarts) {
  const std::string url = UrlFor(Backend::kShm, UniqueName(), kRanks);
  ExpectAllPassed(RunRanks(kRanks, [&](const Rank& me) {
    const FakeNccl fake(OneGpuEach(kRanks));
    const auto comm =
        OpenCommunicator(url, {.rank = me.rank(), .world_size = kRanks});
    ASSERT_OK(comm);
    const auto device =
        cuda::OpenDevice(me.rank() == 2 ? "1" : StrCat(me.rank()));
    ASSERT_OK(device);
    const auto open = [&](Transport transport) {
      return OpenCollectives(comm->get(), device->get(),
                             {{RankSet::All(kRanks)}}, {.transport = transport},
                             Soon());
    };
    ExpectError(open(Transport::kNccl), StatusCode::kBackendUnavailable,
                {"ranks 1 and 2 have one GPU, for which libshard does not use "
                 "NCCL",
                 "collectives=staged"});
    EXPECT_OK(open(Transport::kAuto));
    for (const char* const symbol :
         {"ncclGetUniqueId", "ncclCommInitRankConfig"}) {
      EXPECT_EQ(fake_nccl::Count().Calls(symbol), 0u) << symbol;
    }
    EXPECT_OK((*comm)->Shutdown(Soon()));
  }));
}

// The variable of one rank names no interface of its host. The others wait for
// that rank in NCCL, and get its error with that variable.
TEST(NcclProcessesTest, TheInterfaceThatARankLacksIsNamedOnAllRanks) {
  const std::string url = UrlFor(Backend::kShm, UniqueName(), kRanks);
  for (int lacking = 0; lacking < kRanks; ++lacking) {
    SCOPED_TRACE(StrCat("rank ", lacking));
    ExpectAllPassed(RunRanks(kRanks, [&](const Rank& me) {
      const bool is_lacking = me.rank() == lacking;
      ASSERT_EQ(
          ::setenv("NCCL_SOCKET_IFNAME", is_lacking ? "no_such" : "lo", 1), 0);
      const FakeNccl fake(OneGpuEach(kRanks));
      const auto comm = OpenCommunicator(
          StrCat(url, "-", lacking), {.rank = me.rank(), .world_size = kRanks});
      ASSERT_OK(comm);
      const auto device = cuda::OpenDevice(StrCat(me.rank()));
      ASSERT_OK(device);
      const auto begin = std::chrono::steady_clock::now();
      const auto opened = OpenCollectives(
          comm->get(), device->get(), {{RankSet::All(kRanks)}},
          {.transport = Transport::kNccl}, Deadline::After(kTimeout));
      const std::chrono::duration<double> took =
          std::chrono::steady_clock::now() - begin;
      EXPECT_LT(took.count(), kTimeout / 2);
      ExpectError(
          opened, StatusCode::kInvalidArgument,
          {StrCat("rank ", lacking, ": ",
                  lacking == 0 ? "ncclGetUniqueId" : "ncclCommInitRankConfig"),
           "no socket interface found",
           "(NCCL_SOCKET_IFNAME=no_such) with shardctl doctor --nccl"});
      EXPECT_EQ(opened.status().rank(), lacking);
    }));
  }
}

}  // namespace
}  // namespace shard::testing::nccl_processes_test
