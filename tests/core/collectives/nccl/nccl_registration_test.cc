// SPDX-License-Identifier: Apache-2.0
//
// Memory that is registered with NCCL: on all ranks or on none, until it is
// freed, and never with communicators that have ended. The fake of NCCL refuses
// calls whose buffers are registered on some ranks alone, and memory that is
// freed while it is registered.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/collectives/nccl/nccl_rank.h"

namespace shard::testing::nccl_registration_test {
namespace {

using fake_nccl::Count;
using fake_nccl::Result;
using Bytes = std::vector<unsigned char>;

constexpr size_t kBytes = 5000;
// Of the blocks and the zeros that NcclRank opens collectives with.
constexpr uint64_t kReduceBytes = (1 << 16) + (1 << 15);

// Gathers `kBytes` bytes of each of the ranks, and expects those of all.
void ExpectGathers(NcclRank* rank) {
  const auto number = static_cast<unsigned char>(rank->comm->rank());
  const auto ranks = static_cast<size_t>(rank->comm->world_size());
  const DeviceTensor own(rank, Bytes(kBytes, number));
  const DeviceTensor all(rank, Bytes(ranks * kBytes, 99));
  rank->collectives->AllGatherBlocks("gather", rank->all, own.data(), kBytes,
                                     all.data(), rank->stream.get());
  ASSERT_OK(rank->Synchronize());
  Bytes expected;
  for (size_t r = 0; r < ranks; ++r) {
    expected.insert(expected.end(), kBytes, static_cast<unsigned char>(r));
  }
  EXPECT_TRUE(all.Read() == expected);
}

Bytes Read(Device* device, const DeviceMemory& memory) {
  Bytes bytes(memory.size());
  const auto stream = *device->CreateStream(StreamKind::kCompute);
  stream->Copy(bytes.data(), memory.data(), bytes.size());
  EXPECT_OK(stream->Synchronize(Soon()));
  return bytes;
}

// Waits for a condition that comes true.
void Await(const std::function<bool()>& condition) {
  const Deadline deadline = Soon();
  while (!condition()) {
    ASSERT_FALSE(deadline.Expired());
    std::this_thread::yield();
  }
}

TEST(NcclRegistrationTest, MemoryIsRegisteredWithAllCommunicators) {
  const FakeNccl fake(OneGpuEach(4));
  RunGroup(Backend::kThreads, 4, [](Communicator* comm) {
    // Of all ranks, and two of two ranks.
    NcclRank rank(comm, EverySet(*comm));
    constexpr uint64_t kComms = 3;
    const fake_nccl::Target me = {.rank = comm->rank()};
    const auto alive = [&] {
      const fake_nccl::Counts counts = Count(me);
      return counts.Calls("ncclCommRegister") -
             counts.Calls("ncclCommDeregister");
    };
    EXPECT_EQ(alive(), 2 * kComms);
    {
      const auto memory = rank.collectives->Allocate(rank.device.get(), kBytes,
                                                     "a test's tensor");
      ASSERT_OK(memory);
      EXPECT_EQ(memory->size(), kBytes);
      EXPECT_TRUE(Read(rank.device.get(), *memory) == Bytes(kBytes));
      EXPECT_EQ(alive(), 3 * kComms);
      const auto registered = rank.collectives->registered();
      ASSERT_TRUE(registered.has_value());
      EXPECT_EQ(registered->bytes, kReduceBytes + kBytes);
      EXPECT_EQ(registered->why_not, "");
    }
    EXPECT_EQ(alive(), 2 * kComms);
    EXPECT_EQ(rank.collectives->registered()->bytes, kReduceBytes);
    ExpectGathers(&rank);
    const auto none =
        rank.collectives->Allocate(rank.device.get(), 0, "nothing");
    ASSERT_OK(none);
    EXPECT_EQ(none->data(), nullptr);
    ASSERT_OK(comm->Barrier("end", Soon()));
  });
  // All is deregistered before any of its communicators ends.
  bool has_ended = false;
  for (const fake_nccl::CallRecord& call : fake_nccl::Log()) {
    EXPECT_EQ(
        call.result == Result::kSuccess || call.result == Result::kInProgress,
        true)
        << call.symbol;
    if (call.rank != 0) continue;
    has_ended = has_ended || call.symbol == "ncclCommFinalize";
    EXPECT_FALSE(has_ended && call.symbol == "ncclCommDeregister");
  }
  EXPECT_TRUE(has_ended);
}

// Memory keeps the communicators, with which it is registered.
TEST(NcclRegistrationTest, MemoryOutlivesItsCollectives) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(Backend::kThreads, 2, [](Communicator* comm) {
    DeviceMemory memory;
    NcclRank rank(comm, {RankSet::All(2)});
    memory = *rank.collectives->Allocate(rank.device.get(), kBytes, "a tensor");
    rank.failing.reset();
    rank.stream.reset();
    rank.collectives.reset();
    EXPECT_EQ(Count({.rank = comm->rank()}).Calls("ncclCommFinalize"), 0u);
    memory = DeviceMemory();
    EXPECT_EQ(Count({.rank = comm->rank()}).Calls("ncclCommFinalize"), 1u);
  });
}

// Nor does it log to the observer of these, which memory may outlive, too.
TEST(NcclRegistrationTest, MemoryThatOutlivesItsCollectivesLogsNothing) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(Backend::kThreads, 2, [](Communicator* comm) {
    DeviceMemory memory;
    NcclRank rank(comm, {RankSet::All(2)});
    memory = *rank.collectives->Allocate(rank.device.get(), kBytes, "a tensor");
    rank.failing.reset();
    rank.stream.reset();
    rank.collectives.reset();
    const fake_nccl::Target me = {.rank = comm->rank()};
    fake_nccl::FailCall("ncclCommDeregister", 1, Result::kInternalError, me);
    const uint64_t calls = Count(me).Calls("ncclCommDeregister");
    const auto logged = [&] {
      return comm->observer()->counters().Find("kept_memory")->calls;
    };
    const uint64_t before = logged();
    ASSERT_OK(comm->Barrier("end", Soon()));
    memory = DeviceMemory();
    EXPECT_EQ(Count(me).Calls("ncclCommDeregister"), calls + 1);
    EXPECT_EQ(logged(), before);
  });
}

struct Reason {
  const char* name;
  std::function<void()> fault;
  fake_nccl::Options options;
  std::vector<std::string> texts;
};

class NcclReasonTest : public ::testing::TestWithParam<Reason> {};

// Where one rank cannot, none does.
TEST_P(NcclReasonTest, AllRanksUsePlainMemory) {
  const Reason& reason = GetParam();
  const FakeNccl fake(OneGpuEach(3), reason.options);
  if (reason.fault) reason.fault();
  RunGroup(Backend::kThreads, 3, [&](Communicator* comm) {
    NcclRank rank(comm, EverySet(*comm));
    EXPECT_EQ(fake_nccl::CountAlive().registrations, 0u);
    EXPECT_EQ(fake_nccl::CountAlive().allocations, 0u);
    const auto registered = rank.collectives->registered();
    ASSERT_TRUE(registered.has_value());
    EXPECT_EQ(registered->bytes, 0u);
    for (const std::string& text : reason.texts) {
      EXPECT_TRUE(Contains(registered->why_not, text)) << registered->why_not;
    }
    ExpectGathers(&rank);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Reasons, NcclReasonTest,
    ::testing::Values(
        Reason{"version",
               nullptr,
               {.version = 21805},
               {"rank 0: NCCL 2.18.5 does not register", "2.19.0 or later"}},
        Reason{"allocate",
               [] {
                 fake_nccl::FailCall("ncclMemAlloc", 2,
                                     Result::kUnhandledCudaError);
               },
               {},
               {"rank ", ": ncclMemAlloc: unhandled cuda error"}},
        Reason{"register",
               [] {
                 fake_nccl::FailCall("ncclCommRegister", 1,
                                     Result::kSystemError, {.rank = 1});
               },
               {},
               {"rank 1: ", ": ncclCommRegister: unhandled system error"}},
        Reason{"no_memory",
               [] {
                 fake_nccl::FailCall("ncclMemAlloc", 2,
                                     Result::kUnhandledCudaError, {},
                                     "Cuda failure 2 'out of memory'");
               },
               {},
               {"rank ", ": 2.0 MiB (2097152 bytes) of memory of cuda:",
                "use a higher stage (ncclMemAlloc: unhandled cuda error"}},
        Reason{"no_memory_to_register",
               [] {
                 fake_nccl::FailCall("ncclCommRegister", 1,
                                     Result::kSystemError, {.rank = 1},
                                     "ibv_reg_mr: Cannot allocate memory");
               },
               {},
               {"rank 1: ", "no memory to register 2.0 MiB (2097152 bytes)",
                "ulimit -l"}},
        Reason{
            "variable",
            nullptr,
            {.registers = false},
            {"rank 0: NCCL 2.28.9 registers nothing", "NCCL_LOCAL_REGISTER"}},
        Reason{"pieces",
               nullptr,
               {.memory_piece = size_t{8} << 20},
               {"pieces of 8.0 MiB"}}),
    [](const auto& info) { return std::string(info.param.name); });

// A later allocation fails as a device's does, and leaves nothing.
TEST(NcclRegistrationTest, AnAllocationThatFailsIsTold) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(Backend::kThreads, 2, [](Communicator* comm) {
    NcclRank rank(comm, {RankSet::All(2)});
    const auto allocate = [&](size_t bytes) {
      return rank.collectives->Allocate(rank.device.get(), bytes, "a tensor");
    };
    ExpectError(allocate(size_t{1} << 50), StatusCode::kResourceExhausted,
                {"a tensor: 1.0 PiB (1125899906842624 bytes) of memory of "
                 "cuda:",
                 "free of", "use a higher stage"});
    fake_nccl::FailCall("ncclCommRegister", 1, Result::kSystemError,
                        {.rank = comm->rank()});
    ExpectError(allocate(kBytes), StatusCode::kUnavailable,
                {"a tensor: ", ": ncclCommRegister: unhandled system error"});
    EXPECT_EQ(rank.collectives->registered()->bytes, kReduceBytes);
    ExpectGathers(&rank);
  });
}

// It is tried again, since the device's pool may have given memory back.
TEST(NcclRegistrationTest, MemoryThatIsNotThereTwiceIsTold) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(Backend::kThreads, 2, [](Communicator* comm) {
    NcclRank rank(comm, {RankSet::All(2)});
    const fake_nccl::Target me = {.rank = comm->rank()};
    const auto allocate = [&] {
      return rank.collectives->Allocate(rank.device.get(), kBytes, "a tensor");
    };
    const auto fail = [&](uint64_t call) {
      fake_nccl::FailCall("ncclCommRegister", call, Result::kUnhandledCudaError,
                          me, "Cuda failure 2 'out of memory'");
    };
    fail(1);
    EXPECT_OK(allocate());
    fail(1);
    fail(2);
    ExpectError(allocate(), StatusCode::kResourceExhausted,
                {"a tensor: NCCL has no memory to register 4.9 KiB (5000 bytes)"
                 " of cuda:",
                 "NCCL_LOCAL_REGISTER=0"});
    // The last error is of another call.
    fake_nccl::FailCall("ncclCommRegister", 1, Result::kInternalError, me,
                        "Cuda failure 2 'out of memory'");
    ExpectError(allocate(), StatusCode::kInternal, {"ncclCommRegister"});
    EXPECT_EQ(rank.collectives->registered()->bytes, kReduceBytes);
    ExpectGathers(&rank);
  });
}

// One GPU has room for the trial, but not for what follows. Memory is free
// there, but no whole piece.
TEST(NcclRegistrationTest, MemoryThatEndsOnOneRankIsTheErrorOfAll) {
  constexpr size_t kPiece = size_t{2} << 20;
  fake_cuda::Options gpus = OneGpuEach(3);
  gpus.memory_bytes = 8 * kPiece;
  const FakeNccl fake(gpus, {.memory_piece = kPiece});
  RunGroup(Backend::kThreads, 3, [&](Communicator* comm) {
    const auto device = *cuda::OpenDevice(StrCat(comm->rank()));
    DeviceMemory filled;
    if (comm->rank() == 1) {
      filled = *device->Allocate(6 * kPiece + kPiece / 2, "the test");
    }
    const auto opened =
        OpenCollectives(comm, device.get(), EverySet(*comm),
                        {.transport = Transport::kNccl,
                         .reduce = {size_t{1} << 16, size_t{1} << 15}},
                        Soon());
    EXPECT_EQ(opened.status().rank(), 1);
    ExpectError(opened.status(), StatusCode::kResourceExhausted,
                {"zeros: 32.0 KiB (32768 bytes) of memory of cuda:1",
                 "use a higher stage"});
    ASSERT_OK(comm->Barrier("told", Soon()));
    EXPECT_EQ(fake_nccl::AliveText(), "");
  });
}

// A communicator registers nothing while it is at another call.
TEST(NcclRegistrationTest, MemoryWaitsForACallThatIsInProgress) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(Backend::kThreads, 2, [](Communicator* comm) {
    NcclRank rank(comm, {RankSet::All(2)});
    const fake_nccl::Target me = {.rank = comm->rank()};
    const DeviceTensor two(&rank, Bytes(2));
    auto* const to = static_cast<unsigned char*>(two.data());
    fake_nccl::SlowCall("ncclGroupEnd", 1, 100, me);
    std::atomic<bool> goes = false;
    rank.stream->Call("gate", [&] {
      Await([&] { return goes.load(); });
      return Status();
    });
    rank.collectives->AllGatherBlocks("gather", rank.all, to + comm->rank(), 1,
                                      to, rank.stream.get());
    goes = true;
    Await([&] { return Count(me).Calls("ncclAllGather") == 1; });
    auto memory =
        rank.collectives->Allocate(rank.device.get(), kBytes, "a tensor");
    EXPECT_OK(memory);
    fake_nccl::SlowCall("ncclGroupEnd", 1, 100, me);
    rank.collectives->AllGatherBlocks("gather", rank.all, to + comm->rank(), 1,
                                      to, rank.stream.get());
    memory = DeviceMemory();
    EXPECT_OK(rank.Synchronize());
    EXPECT_EQ(rank.collectives->registered()->bytes, kReduceBytes + 2);
  });
}

// Communicators that were aborted are given no calls any more, and memory is
// freed after them.
TEST(NcclRegistrationTest, NothingIsDeregisteredAfterAnAbort) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(
      Backend::kThreads, 2,
      [](Communicator* comm) {
        NcclRank rank(comm, {RankSet::All(2)}, {.timeout = 0.5});
        const fake_nccl::Target me = {.rank = comm->rank()};
        const uint64_t before = Count(me).Calls("ncclCommDeregister");
        if (comm->rank() == 0) fake_nccl::StickAt(1, {.rank = 1});
        ASSERT_OK(comm->Barrier("stuck", Soon()));
        const DeviceTensor two(&rank, Bytes(2));
        auto* const to = static_cast<unsigned char*>(two.data());
        rank.collectives->AllGatherBlocks("gather", rank.all, to + comm->rank(),
                                          1, to, rank.stream.get());
        EXPECT_FALSE(rank.Synchronize().ok());
        rank.stream->Settle(Soon());
        Await([&] { return Count(me).Calls("ncclCommAbort") == 1; });
        // Nothing is allocated any more either.
        ExpectError(
            rank.collectives->Allocate(rank.device.get(), kBytes, "a tensor"),
            StatusCode::kCancelled, {"aborted before 'a tensor'"});
        EXPECT_EQ(Count(me).Calls("ncclCommDeregister"), before);
        EXPECT_FALSE(comm->Barrier("after", Soon()).ok());
      },
      /*shutdown=*/false);
}

// NCCL keeps it, and the communicators are aborted in the end.
TEST(NcclRegistrationTest, MemoryThatIsNotDeregisteredIsFreedInTheEnd) {
  const FakeNccl fake(OneGpuEach(2));
  RunGroup(Backend::kThreads, 2, [](Communicator* comm) {
    NcclRank rank(comm, {RankSet::All(2)});
    const fake_nccl::Target me = {.rank = comm->rank()};
    const auto logged = [&] {
      return comm->observer()->counters().Find("kept_memory")->calls;
    };
    const uint64_t before_logs = logged();
    for (size_t i = 1; i <= 2; ++i) {
      fake_nccl::FailCall("ncclCommDeregister", 1, Result::kInternalError, me);
      const uint64_t before = Count(me).Calls("ncclCommDeregister");
      static_cast<void>(
          rank.collectives->Allocate(rank.device.get(), kBytes, "a tensor"));
      EXPECT_EQ(Count(me).Calls("ncclCommDeregister"), before + 1);
      EXPECT_EQ(rank.collectives->registered()->bytes,
                kReduceBytes + i * kBytes);
      EXPECT_EQ(logged() - before_logs, 1u);
    }
    ExpectGathers(&rank);
    ASSERT_OK(comm->Barrier("end", Soon()));
  });
  EXPECT_EQ(Count().Calls("ncclCommAbort"), 2u);
}

}  // namespace
}  // namespace shard::testing::nccl_registration_test
