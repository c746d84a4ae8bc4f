// SPDX-License-Identifier: Apache-2.0
//
// Memory that collectives use in windows of NCCL: on all ranks and with all
// communicators, or nowhere. Where one rank gets none, all know why, and go on
// without; one that hangs ends in time.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/collectives/nccl/nccl_rank.h"

namespace shard::testing::nccl_windows_test {
namespace {

using fake_nccl::Count;
using fake_nccl::Result;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr int kMakesWindows = 23102;

// One rank's memory of two sizes.
struct Memories {
  explicit Memories(NcclRank* rank)
      : a(*rank->collectives->Allocate(rank->device.get(), 5000, "a")),
        b(*rank->collectives->Allocate(rank->device.get(), 7000, "b")) {}

  StatusOr<bool> Share(NcclRank* rank, double seconds = 20) const {
    const DeviceMemory* const all[] = {&a, &b};
    return rank->collectives->ShareMemory(rank->comm, all,
                                          Deadline::After(seconds));
  }

  DeviceMemory a;
  DeviceMemory b;
};

// Gathers a byte of each rank.
void ExpectGathers(NcclRank* rank) {
  const auto number = static_cast<unsigned char>(rank->comm->rank());
  const auto ranks = static_cast<size_t>(rank->comm->world_size());
  const DeviceTensor own(rank, {number});
  const DeviceTensor all(rank, std::vector<unsigned char>(ranks, 99));
  rank->collectives->AllGatherBlocks("gather", rank->all, own.data(), 1,
                                     all.data(), rank->stream.get());
  ASSERT_OK(rank->Synchronize());
  const std::vector<unsigned char> gathered = all.Read();
  for (size_t r = 0; r < ranks; ++r) EXPECT_EQ(gathered[r], r);
}

TEST(NcclWindowsTest, AreMadeOnceWithAllCommunicators) {
  const FakeNccl fake(OneGpuEach(4), {.version = kMakesWindows});
  RunGroup(Backend::kThreads, 4, [](Communicator* comm) {
    // Of all ranks, and two of two ranks.
    NcclRank rank(comm, EverySet(*comm));
    constexpr uint64_t kComms = 3;
    const fake_nccl::Target me = {.rank = comm->rank()};
    {
      const Memories memory(&rank);
      for (int i = 0; i < 2; ++i) {
        const auto goes_on = memory.Share(&rank);
        ASSERT_OK(goes_on);
        EXPECT_TRUE(*goes_on);
        EXPECT_EQ(Count(me).Calls("ncclCommWindowRegister"), 2 * kComms);
      }
      EXPECT_EQ(rank.collectives->registered()->shared_bytes, 12000u);
      EXPECT_EQ(rank.collectives->registered()->why_not_shared, "");
      EXPECT_EQ(Count(me).Calls("ncclCommWindowDeregister"), 0u);
      ExpectGathers(&rank);
      ASSERT_OK(comm->Barrier("all have gathered", Soon()));
    }
    EXPECT_EQ(Count(me).Calls("ncclCommWindowDeregister"), 2 * kComms);
    EXPECT_EQ(rank.collectives->registered()->shared_bytes, 0u);
    ASSERT_OK(comm->Barrier("all have freed", Soon()));
  });
}

TEST(NcclWindowsTest, AnAbortEndsThemWithoutACall) {
  const FakeNccl fake(OneGpuEach(2), {.version = kMakesWindows});
  RunGroup(
      Backend::kThreads, 2,
      [](Communicator* comm) {
        NcclRank rank(comm, {RankSet::All(2)}, {.timeout = 0.5});
        const Memories memory(&rank);
        ASSERT_OK(memory.Share(&rank));
        if (comm->rank() == 0) fake_nccl::StickAt(1, {.rank = 1});
        ASSERT_OK(comm->Barrier("stuck", Soon()));
        rank.collectives->AllGatherBlocks("gather", rank.all, memory.a.data(),
                                          1, memory.b.data(),
                                          rank.stream.get());
        EXPECT_FALSE(rank.Synchronize().ok());
        rank.stream->Settle(Soon());
      },
      /*shutdown=*/false);
  EXPECT_EQ(Count().Calls("ncclCommWindowDeregister"), 0u);
}

struct Reason {
  const char* name;
  fake_nccl::Options options;
  std::vector<std::string> texts;
  const char* variable = nullptr;
  const char* value = "0";
};

class NcclNoWindowsTest : public ::testing::TestWithParam<Reason> {};

// The communicators go on.
TEST_P(NcclNoWindowsTest, AllRanksUsePlainMemory) {
  const Reason& reason = GetParam();
  const std::unique_ptr<const char, void (*)(const char*)> variable(
      reason.variable, [](const char* name) { ::unsetenv(name); });
  if (variable != nullptr) ::setenv(reason.variable, reason.value, 1);
  const FakeNccl fake(OneGpuEach(kRanks), reason.options);
  RunGroup(Backend::kThreads, kRanks, [&](Communicator* comm) {
    NcclRank rank(comm, EverySet(*comm));
    const Memories memory(&rank);
    const auto goes_on = memory.Share(&rank);
    ASSERT_OK(goes_on);
    EXPECT_TRUE(*goes_on);
    const auto registered = rank.collectives->registered();
    EXPECT_EQ(registered->shared_bytes, 0u);
    for (const std::string& text : reason.texts) {
      EXPECT_TRUE(Contains(registered->why_not_shared, text));
    }
    EXPECT_EQ(Count().Calls("ncclCommWindowDeregister"), 0u);
    ExpectGathers(&rank);
    ASSERT_OK(comm->Barrier("end", Soon()));
  });
  EXPECT_EQ(Count().Calls("ncclCommAbort"), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Reasons, NcclNoWindowsTest,
    ::testing::Values(
        Reason{"version",
               {.version = kMakesWindows - 1},
               {"rank 0: NCCL 2.31.1 makes no windows that collectives can "
                "use; use 2.31.2 or later"}},
        Reason{"not_registered",
               {.version = kMakesWindows, .registers = false},
               {"rank 0: memory is not registered with NCCL: "}},
        Reason{"win_enable",
               {.version = kMakesWindows},
               {"rank 0: NCCL_WIN_ENABLE=0, turns NCCL's windows off"},
               "NCCL_WIN_ENABLE"},
        Reason{"cumem_enable",
               {.version = kMakesWindows},
               {"rank 0: NCCL_CUMEM_ENABLE=0x0, turns NCCL's windows off"},
               "NCCL_CUMEM_ENABLE",
               "0x0"},
        Reason{"win_enable_by_a_word",  // No number, which is 0 to NCCL.
               {.version = kMakesWindows},
               {"rank 0: NCCL_WIN_ENABLE=off, turns NCCL's windows off"},
               "NCCL_WIN_ENABLE",
               "off"},
        Reason{"no_windows",
               {.version = kMakesWindows, .makes_windows = false},
               {"rank 0: NCCL makes no windows of this memory",
                "NCCL_WIN_ENABLE, NCCL_CUMEM_ENABLE"}}),
    [](const auto& info) { return std::string(info.param.name); });

struct Failure {
  const char* name;
  fake_nccl::Options options;
  std::function<void()> fault;
  std::vector<std::string> texts;
};

class NcclWindowFailureTest : public ::testing::TestWithParam<Failure> {};

// NCCL goes on with no call: the ranks open other communicators, and the family
// has not ended.
TEST_P(NcclWindowFailureTest, AllRanksOpenOthers) {
  const Failure& failure = GetParam();
  const FakeNccl fake(OneGpuEach(kRanks), failure.options);
  failure.fault();
  RunGroup(Backend::kThreads, kRanks, [&](Communicator* comm) {
    std::string why;
    {
      NcclRank rank(comm, EverySet(*comm));
      const Memories memory(&rank);
      const auto begin = Clock::now();
      const auto goes_on = memory.Share(&rank);
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
      ASSERT_OK(goes_on);
      EXPECT_FALSE(*goes_on);
      why = rank.collectives->registered()->why_not_shared;
      for (const std::string& text : failure.texts) {
        EXPECT_TRUE(Contains(why, text));
      }
    }
    const auto calls = [] { return Count().Calls("ncclCommWindowRegister"); };
    ASSERT_OK(comm->Barrier("all have ended", Soon()));
    const uint64_t before = calls();
    ASSERT_OK(comm->Barrier("all have counted", Soon()));
    NcclRank rank(comm, EverySet(*comm), {.why_not_shared = why});
    const Memories memory(&rank);
    const auto goes_on = memory.Share(&rank);
    ASSERT_OK(goes_on);
    EXPECT_TRUE(*goes_on);
    EXPECT_EQ(calls(), before);
    EXPECT_EQ(rank.collectives->registered()->why_not_shared, why);
    EXPECT_GT(rank.collectives->registered()->bytes, 12000u);
    ExpectGathers(&rank);
    ASSERT_OK(comm->Barrier("end", Soon()));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Failures, NcclWindowFailureTest,
    ::testing::Values(
        Failure{"error",
                {.version = kMakesWindows},
                [] {
                  fake_nccl::FailCall("ncclCommWindowRegister", 2,
                                      Result::kSystemError, {.rank = 1});
                },
                {"rank 1: ncclCommWindowRegister: unhandled system error"}},
        Failure{"no_memory",
                {.version = kMakesWindows},
                [] {
                  fake_nccl::FailCall("ncclCommWindowRegister", 1,
                                      Result::kUnhandledCudaError, {.rank = 2},
                                      "Cuda failure 2 'out of memory'");
                },
                {"rank 2: ncclCommWindowRegister: ",
                 "leave NCCL more of the "
                 "memory of ",
                 "NCCL_WIN_ENABLE=0 on all ranks"}},
        // The others would wait for it until the deadline.
        Failure{"one_has_none",
                {.version = kMakesWindows, .rank_without_windows = 1},
                [] {},
                {"rank 1: NCCL makes no windows of this memory"}}),
    [](const auto& info) { return std::string(info.param.name); });

// A call that does not return, as where a driver hangs, holds up the others no
// longer than the deadline.
TEST(NcclWindowsTest, ACallThatHangsEndsInTime) {
  constexpr double kSeconds = 1;
  const FakeNccl fake(OneGpuEach(kRanks), {.version = kMakesWindows});
  std::atomic<int> others = 0;
  RunGroup(
      Backend::kThreads, kRanks,
      [&](Communicator* comm) {
        NcclRank rank(comm, {RankSet::All(kRanks)});
        const Memories memory(&rank);
        if (comm->rank() == 0) {
          fake_nccl::HangCalls("ncclCommWindowRegister", {.rank = 1});
        }
        ASSERT_OK(comm->Barrier("hangs", Soon()));
        const auto begin = Clock::now();
        const Status status = memory.Share(&rank, kSeconds).status();
        const std::chrono::duration<double> took = Clock::now() - begin;
        EXPECT_FALSE(status.ok());
        if (comm->rank() == 1) return;
        EXPECT_LT(took.count(), kSeconds + 5);
        ExpectError(status, StatusCode::kDeadlineExceeded,
                    {"make windows with NCCL"});
        EXPECT_EQ(status.rank(), 1);
        if (++others == kRanks - 1) fake_nccl::ReleaseCalls();
      },
      /*shutdown=*/false);
}

}  // namespace
}  // namespace shard::testing::nccl_windows_test
