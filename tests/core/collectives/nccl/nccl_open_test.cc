// SPDX-License-Identifier: Apache-2.0
//
// Which NCCL is used, and what is said where it cannot be.

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/collectives/nccl/library.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/library.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/collectives/nccl/nccl_rank.h"
#include "tests/core/comm/tcp_hosts.h"

namespace shard::testing::nccl_open_test {
namespace {

StatusOr<std::shared_ptr<Collectives>> OpenOn(Communicator* comm, int ordinal,
                                              Transport transport) {
  SHARD_ASSIGN_OR_RETURN(const auto device, cuda::OpenDevice(StrCat(ordinal)));
  return OpenCollectives(comm, device.get(), EverySet(*comm),
                         {.transport = transport, .timeout = 20}, Soon());
}

bool UsesNccl() {
  return fake_nccl::Count().Calls("ncclCommInitRankConfig") > 0;
}

void RunNcclRanks(const fake_nccl::Options& options,
                  const std::function<void(Communicator*)>& body) {
  const FakeNccl fake(OneGpuEach(2), options);
  RunGroup(Backend::kThreads, 2, body);
}

TEST(NcclOpenTest, RanksWithAGpuEachUseIt) {
  for (const int version : {21800, 22005, 22809, 23001}) {
    SCOPED_TRACE(version);
    RunNcclRanks({.version = version}, [](Communicator* comm) {
      EXPECT_OK(OpenOn(comm, comm->rank(), Transport::kAuto));
      EXPECT_TRUE(UsesNccl());
    });
  }
}

// It moves nothing, and so makes no communicator.
TEST(NcclOpenTest, OneRankIsAskedForNoMoreThanTheLibrary) {
  const FakeNccl fake(OneGpuEach(1));
  RunGroup(Backend::kThreads, 1, [](Communicator* comm) {
    const auto opened = OpenOn(comm, 0, Transport::kNccl);
    ASSERT_OK(opened);
    EXPECT_EQ((*opened)->transport(), "staged");
    EXPECT_GT(fake_nccl::Count().Calls("ncclGetVersion"), 0u);
    EXPECT_FALSE(UsesNccl());
  });
}

TEST(NcclOpenTest, VersionsThatAreNotKnownAreNamed) {
  for (const auto& [version, text] :
       {std::pair(21705, "2.17.5"), std::pair(30000, "3.0.0")}) {
    SCOPED_TRACE(version);
    RunNcclRanks({.version = version}, [text = text](Communicator* comm) {
      ExpectError(OpenOn(comm, comm->rank(), Transport::kNccl),
                  StatusCode::kBackendUnavailable,
                  {"rank 0: no usable NCCL", text, "libshard needs 2.18.0"});
      EXPECT_OK(OpenOn(comm, comm->rank(), Transport::kAuto));
      EXPECT_FALSE(UsesNccl());
    });
  }
}

// NCCL's own error would come from the middle of its start. Later versions can
// be told to take such ranks; libshard does not use them so.
TEST(NcclOpenTest, RanksThatShareAGpuAreNamed) {
  for (const int version : {22809, 23001}) {
    SCOPED_TRACE(version);
    RunNcclRanks({.version = version}, [](Communicator* comm) {
      ExpectError(OpenOn(comm, 0, Transport::kNccl),
                  StatusCode::kBackendUnavailable,
                  {"ranks 0 and 1 have one GPU, for which libshard does not "
                   "use NCCL",
                   "collectives=staged"});
      EXPECT_OK(OpenOn(comm, 0, Transport::kAuto));
      EXPECT_FALSE(UsesNccl());
    });
  }
}

// Returns what rank 0 logs of its transport; the other ranks log nothing of it.
// `hosts`: those of the ranks, or null for one.
std::string TransportLine(const fake_nccl::Options& nccl, SumOrder order,
                          bool shares_gpu = false, int world_size = 2,
                          const TcpHosts* hosts = nullptr) {
  const FakeNccl fake(OneGpuEach(world_size), nccl);
  std::array<std::string, 4> lines;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      CommOptions options;
      options.rank = rank;
      options.world_size = world_size;
      options.timeout = 20;
      options.logger = Logger(
          [](int32_t level, const char* message, void* line) {
            const std::string_view text = message;
            if (text.find("tensors ") == text.npos) return;
            EXPECT_EQ(level, static_cast<int32_t>(LogLevel::kInfo));
            static_cast<std::string*>(line)->append(text);
          },
          LogLevel::kInfo, &lines[static_cast<size_t>(rank)]);
      if (hosts != nullptr) ASSERT_OK(hosts->Enter(rank));
      const auto comm = OpenCommunicator(
          hosts != nullptr
              ? hosts->Url(rank)
              : StrCat("threads:", world_size, "?name=transport-line"),
          options);
      ASSERT_OK(comm);
      const auto device = cuda::OpenDevice(StrCat(shares_gpu ? 0 : rank));
      ASSERT_OK(device);
      EXPECT_OK(OpenCollectives(
          comm->get(), device->get(), EverySet(**comm),
          {.transport = Transport::kAuto, .order = order, .timeout = 20},
          Soon()));
      EXPECT_OK((*comm)->Shutdown(Soon()));
    });
  }
  for (std::thread& it : ranks) it.join();
  for (size_t rank = 1; rank < lines.size(); ++rank) EXPECT_EQ(lines[rank], "");
  return lines[0];
}

void ExpectTexts(const std::string& line,
                 const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    EXPECT_NE(line.find(text), std::string::npos) << line;
  }
}

TEST(NcclOpenTest, TheLogTellsHowTensorsMove) {
  ExpectTexts(TransportLine({.version = 22809}, SumOrder::kLibrary),
              {"tensors are moved by NCCL 2.28.9, f32 gradients are summed by "
               "NCCL in its own order, others in fp32 in the order of ranks, "
               "their memory is registered"});
  ExpectTexts(
      TransportLine({.version = 22809, .registers = false},
                    SumOrder::kRankOrder),
      {"NCCL 2.28.9, gradients are summed in the order of ranks, their memory "
       "is not registered: rank 0: NCCL 2.28.9 registers"});
  // Of shard groups, too.
  ExpectTexts(
      TransportLine({.version = 22809}, SumOrder::kLibrary, false, 4),
      {"NCCL 2.28.9 in sets of 2, 2, 4 ranks; in each of these f32 gradients "
       "are summed by NCCL in its own order, others in fp32"});
  ExpectTexts(TransportLine({.version = 22809}, SumOrder::kRankOrder, true),
              {"tensors pass through the host's memory: ranks 0 and 1 have one "
               "GPU"});
}

TEST(NcclOpenTest, TheLogTellsOnHowManyHostsASetIs) {
  {
    const TcpHosts hosts(std::vector<int>{0, 1, 3});
    ExpectTexts(
        TransportLine({.version = 22809}, SumOrder::kLibrary, false, 3, &hosts),
        {"tensors are moved by NCCL 2.28.9 between 2 hosts, f32 "
         "gradients are summed by NCCL in its own order"});
  }
  {
    const TcpHosts hosts(std::vector<int>{0, 2, 4});
    ExpectTexts(TransportLine({.version = 22809}, SumOrder::kRankOrder, false,
                              4, &hosts),
                {"NCCL 2.28.9 in sets of 2, 2, 4 ranks on at most 1, 2, 2 "
                 "hosts; in each of these gradients are summed in the order of "
                 "ranks"});
  }
}

// A GPU is known by its UUID, which no other one has on whatever host: two
// containers that are hosts of their own may have the same.
TEST(NcclOpenTest, RanksOfTwoHostsMayShareAGpu) {
  const TcpHosts hosts(std::vector<int>{0, 1, 2});
  ExpectTexts(
      TransportLine({.version = 22809}, SumOrder::kRankOrder, true, 2, &hosts),
      {"tensors pass through the host's memory: ranks 0 and 1 have one "
       "GPU"});
}

TEST(NcclOpenTest, StagedUsesNone) {
  RunNcclRanks({}, [](Communicator* comm) {
    EXPECT_OK(OpenOn(comm, comm->rank(), Transport::kStaged));
    EXPECT_FALSE(UsesNccl());
  });
}

// NCCL reads the file at its first call, which here comes later.
TEST(NcclOpenTest, BlockingCommunicatorsAreRefusedInAFileToo) {
  const TempFolder folder;
  const std::string path = folder / "nccl.conf";
  ::setenv("NCCL_CONF_FILE", path.c_str(), 1);
  const FakeNccl fake(OneGpuEach(1));
  WriteText(path, "#NCCL_COMM_BLOCKING=1\nNCCL_COMM_BLOCKING=0\n");
  EXPECT_OK(nccl::OpenNccl());
  WriteText(path, "NCCL_DEBUG=WARN\nNCCL_COMM_BLOCKING=1\n");
  ExpectError(nccl::OpenNccl(), StatusCode::kBackendUnavailable,
              {"NCCL_COMM_BLOCKING=1, in ", path, "remove it there"});
  ::unsetenv("NCCL_CONF_FILE");
}

// The process has the fake of NCCL beside it, in which a search of the whole
// process would find the symbol.
TEST(NcclOpenTest, ALibraryThatIsKeptIsStillSearchedAlone) {
  auto libc =
      cuda::Library::Open("libc.so.6", cuda::Library::Origin::kAnywhere);
  ASSERT_OK(libc);
  libc->Keep();
  EXPECT_NE(libc->Find<void()>("abort"), nullptr);
  EXPECT_EQ(libc->Find<void()>("ncclCommAbort"), nullptr);
  EXPECT_NE(libc->FindPath(), "");
}

// Each call of the start fails once, on one rank: all ranks get its error.
TEST(NcclOpenTest, AFailedStartIsTheErrorOfAllRanks) {
  for (const char* const symbol :
       {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommSplit"}) {
    SCOPED_TRACE(symbol);
    const FakeNccl fake(OneGpuEach(4));
    fake_nccl::FailCall(symbol, 1, fake_nccl::Result::kSystemError);
    RunGroup(
        Backend::kThreads, 4,
        [&](Communicator* comm) {
          const auto opened = OpenOn(comm, comm->rank(), Transport::kAuto);
          EXPECT_FALSE(opened.ok());
          EXPECT_TRUE(Contains(opened.status().ToString(), symbol));
          EXPECT_NE(opened.status().code(), StatusCode::kDeadlineExceeded);
        },
        /*shutdown=*/false);
  }
}

}  // namespace
}  // namespace shard::testing::nccl_open_test
