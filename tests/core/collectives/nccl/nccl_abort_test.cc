// SPDX-License-Identifier: Apache-2.0
//
// Aborts of communicators: of several at once, and those that NCCL does not
// finish. An abort ends in time in any case, makes no call of NCCL on a
// communicator beside another one, and leaves the process alive.

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/collectives/nccl/library.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/driver.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/collectives/nccl/nccl_rank.h"

#if SHARD_TESTS_ADDRESS_SANITIZER
#include <sanitizer/lsan_interface.h>
#endif

namespace shard::testing::nccl_abort_test {
namespace {

using nccl::NcclApi;
using nccl::NcclComm;
using nccl::NcclType;
using nccl::RankComms;

constexpr double kSeconds = 0.3;  // Of an abort.

double SecondsOf(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - begin;
  return took.count();
}

// The communicators of one rank, alone.
struct Comms {
  explicit Comms(Communicator* control)
      : notices(*control->OpenNotices("a test", 8, Soon())),
        context(*cuda::Context::Open(control->rank())),
        comms(*RankComms::Open(control, notices, context, *nccl::OpenNccl(),
                               EverySet(*control), Soon())),
        all(RankSet::All(control->world_size())) {}

  // Enqueues a gather, which moves nothing before the abort: of a byte of each
  // rank into `memory`, or of none.
  Status Enqueue() const { return Enqueue(all); }
  Status Enqueue(
      const RankSet& set, std::byte* memory = nullptr,
      const RankComms::Check& check = [] { return Status(); }) const {
    Status status;
    const Status ran = context->Run([&] {
      status = comms->Enqueue(
          "gather", set,
          [&](const NcclApi& api, NcclComm comm) {
            return api.AllGather(memory, memory, memory == nullptr ? 0 : 1,
                                 NcclType::kInt8, comm, nullptr);
          },
          check);
      return Status();
    });
    return ran.ok() ? status : ran;
  }

  const std::shared_ptr<Notices> notices;
  const std::shared_ptr<cuda::Context> context;
  const std::unique_ptr<RankComms> comms;
  const RankSet all;
};

class NcclAbortTest : public ::testing::Test {
 protected:
  // An abandoned context stays.
  void SetUp() override { ResetWithNccl(OneGpuEach(4)); }
  void TearDown() override {
    EXPECT_TRUE(ComesTrue([] { return fake_nccl::AliveText().empty(); }));
    EXPECT_EQ(fake_nccl::ViolationText(), "");
  }
  // Runs body(comms) on the first of the ranks.
  static void Run(const std::function<void(Comms*)>& body, int ranks = 2) {
    RunGroup(Backend::kThreads, ranks, [&](Communicator* control) {
      Comms comms(control);
      if (control->rank() == 0) body(&comms);
      ASSERT_OK(control->Barrier("done", Soon()));
      if (control->rank() != 0) {
        EXPECT_TRUE(comms.comms->Abort());
      }
    });
  }
};

TEST_F(NcclAbortTest, OneThatHangsIsLeft) {
  if (kAddressSanitized) GTEST_SKIP() << "the queue is left, which is a leak";
  Run([](Comms* rank) {
    fake_nccl::HangCalls("ncclCommAbort", {.rank = 0});
    EXPECT_LT(SecondsOf([&] {
                EXPECT_FALSE(rank->comms->Abort(kSeconds));
                EXPECT_TRUE(rank->context->is_abandoned());
                EXPECT_EQ(rank->Enqueue().code(), StatusCode::kCancelled);
                EXPECT_OK(rank->comms->AsyncError());
                // An abort after that one waits for nothing.
                EXPECT_FALSE(rank->comms->Abort(30));
              }),
              kSeconds + 5);
    EXPECT_TRUE(ComesTrue([] { return fake_nccl::NumHanging() == 1; }));
    fake_nccl::ReleaseCalls();
    EXPECT_TRUE(ComesTrue([&] { return rank->comms->Abort(kSeconds); }));
  });
}

// NCCL promises that calls do not block. One that does is not disturbed by a
// call beside it, and the abort comes once it ends.
TEST_F(NcclAbortTest, OneBehindACallThatBlocksIsLeft) {
  if (kAddressSanitized) GTEST_SKIP() << "the queue is left, which is a leak";
  Run([](Comms* rank) {
    fake_nccl::HangCalls("ncclAllGather", {.rank = 0});
    std::thread blocked([&] { (void)rank->Enqueue().ok(); });
    EXPECT_TRUE(ComesTrue([] { return fake_nccl::NumHanging() == 1; }));
    EXPECT_LT(SecondsOf([&] {
                EXPECT_OK(rank->comms->AsyncError());
                EXPECT_FALSE(rank->comms->Abort(kSeconds));
              }),
              kSeconds + 5);
    EXPECT_TRUE(rank->context->is_abandoned());
    EXPECT_EQ(fake_nccl::Count({.rank = 0}).Calls("ncclCommAbort"), 0u);
    fake_nccl::ReleaseCalls();
    blocked.join();
    EXPECT_TRUE(ComesTrue([] {
      return fake_nccl::Count({.rank = 0}).Calls("ncclCommAbort") == 1;
    }));
  });
}

// The same of one communicator: the others are looked at and aborted meanwhile,
// and what waits for this one ends in time.
TEST_F(NcclAbortTest, OthersDoNotWaitForACallThatBlocks) {
  if (kAddressSanitized) GTEST_SKIP() << "the queue is left, which is a leak";
  Run(
      [](Comms* rank) {
        const auto aborts = [](int size) {
          return fake_nccl::Count({.rank = 0, .size = size})
              .Calls("ncclCommAbort");
        };
        fake_nccl::HangCalls("ncclAllGather", {.rank = 0, .size = 4});
        std::thread blocked([&] { (void)rank->Enqueue().ok(); });
        EXPECT_TRUE(ComesTrue([] { return fake_nccl::NumHanging() == 1; }));
        EXPECT_OK(rank->Enqueue(RankSet::Of(0, 1, 2)));
        EXPECT_OK(rank->Enqueue(RankSet::Of(0, 2, 2)));
        fake_nccl::FailCall("ncclCommGetAsyncError", 2,
                            fake_nccl::Result::kRemoteError,
                            {.rank = 0, .size = 2});
        ExpectError(rank->comms->AsyncError(), StatusCode::kUnavailable,
                    {"rank 0: ncclCommGetAsyncError"});
        const auto check = [deadline = Deadline::After(kSeconds)]() -> Status {
          return deadline.Expired() ? DeadlineExceeded("late") : Status();
        };
        EXPECT_LT(SecondsOf([&] {
                    ExpectError(rank->comms->Allocate("a test", 64, check),
                                StatusCode::kDeadlineExceeded, {"late"});
                    EXPECT_EQ(fake_nccl::CountAlive().allocations, 0u);
                  }),
                  kSeconds + 1);
        EXPECT_FALSE(rank->comms->Abort(kSeconds));
        EXPECT_EQ(aborts(2), 2u);
        EXPECT_EQ(aborts(4), 0u);
        fake_nccl::ReleaseCalls();
        blocked.join();
        EXPECT_TRUE(ComesTrue([&] { return aborts(4) == 1; }));
      },
      /*ranks=*/4);
}

TEST_F(NcclAbortTest, OneThatFailsIsTold) {
  Run([](Comms* rank) {
    fake_nccl::FailCall("ncclCommAbort", 1, fake_nccl::Result::kSystemError,
                        {.rank = 0});
    EXPECT_FALSE(rank->comms->Abort());
    EXPECT_FALSE(rank->context->is_abandoned());
  });
  EXPECT_EQ(fake_nccl::CountAlive().comms, 1u);
  fake_nccl::Reset();
}

// NCCL refuses calls on a communicator while another one is in progress.
TEST_F(NcclAbortTest, ACallThatWasGivenUpIsWaitedForByTheNext) {
  Run([](Comms* rank) {
    const auto memory =
        rank->comms->Allocate("a test", 64, [] { return Status(); });
    ASSERT_OK(memory);
    fake_nccl::SlowCall("ncclGroupEnd", 1, 20, {.rank = 0});
    const auto late = []() -> Status { return DeadlineExceeded("late"); };
    for (int i = 0; i < 2; ++i) {
      ExpectError(rank->Enqueue(rank->all, memory->data, late),
                  StatusCode::kDeadlineExceeded, {"late"});
      EXPECT_EQ(fake_nccl::Count({.rank = 0}).Calls("ncclAllGather"), 1u);
    }
    EXPECT_OK(rank->Enqueue(rank->all, memory->data));
    EXPECT_EQ(fake_nccl::Count({.rank = 0}).Calls("ncclAllGather"), 2u);
    EXPECT_TRUE(rank->comms->Abort());
  });
}

// A rank is told as the one whose call blocks only while NCCL has the call, and
// not while the call waits for its turn.
TEST_F(NcclAbortTest, ACallIsMadeOnlyInsideNccl) {
  Run([](Comms* rank) {
    const auto memory =
        rank->comms->Allocate("a test", 64, [] { return Status(); });
    ASSERT_OK(memory);
    fake_nccl::SlowCall("ncclGroupEnd", 1, 20, {.rank = 0});
    const auto late = []() -> Status { return DeadlineExceeded("late"); };
    EXPECT_FALSE(rank->Enqueue(rank->all, memory->data, late).ok());
    RankComms::Calling calling = nullptr;
    int waits = 0;
    bool counts_waits = false;
    bool counts_call = false;
    EXPECT_OK(rank->context->Run([&] {
      return rank->comms->Enqueue(
          "gather", rank->all,
          [&](const NcclApi& api, NcclComm comm) {
            counts_call = calling != nullptr;
            return api.AllGather(memory->data, memory->data, 1, NcclType::kInt8,
                                 comm, nullptr);
          },
          [&] {
            ++waits;
            counts_waits |= calling != nullptr;
            return Status();
          },
          &calling);
    }));
    EXPECT_GT(waits, 0);
    EXPECT_FALSE(counts_waits);
    EXPECT_TRUE(counts_call);
    EXPECT_TRUE(calling == nullptr);
    EXPECT_TRUE(rank->comms->Abort());
  });
}

// Kernels of such a communicator may write there, as long as the process lives.
TEST_F(NcclAbortTest, MemoryOfOneThatDoesNotEndIsKept) {
  Run([](Comms* rank) {
    const auto memory =
        rank->comms->Allocate("a test", 64, [] { return Status(); });
    ASSERT_OK(memory);
    fake_nccl::FailCall("ncclCommAbort", 1, fake_nccl::Result::kSystemError,
                        {.rank = 0});
    EXPECT_FALSE(rank->comms->Abort());
    // NCCL is not asked twice.
    EXPECT_FALSE(rank->comms->Abort());
    EXPECT_EQ(fake_nccl::Count({.rank = 0}).Calls("ncclCommAbort"), 1u);
    rank->comms->Free(memory->data);
  });
  EXPECT_EQ(fake_nccl::CountAlive().comms, 1u);
  EXPECT_EQ(fake_nccl::CountAlive().allocations, 1u);
  EXPECT_EQ(fake_nccl::ViolationText(), "");
  fake_nccl::Reset();
}

// Kernels that an abort ends may use the memory until then.
TEST_F(NcclAbortTest, MemoryIsFreedAfterIt) {
  Run([](Comms* rank) {
    const auto memory =
        rank->comms->Allocate("a test", 64, [] { return Status(); });
    ASSERT_OK(memory);
    fake_nccl::HangCalls("ncclCommAbort", {.rank = 0});
    std::thread aborting([&] { EXPECT_TRUE(rank->comms->Abort()); });
    EXPECT_TRUE(ComesTrue([] { return fake_nccl::NumHanging() == 1; }));
    rank->comms->Free(memory->data);
    EXPECT_EQ(fake_nccl::CountAlive().allocations, 1u);
    fake_nccl::ReleaseCalls();
    aborting.join();
  });
}

// NCCL may write it until the abort ends, which the communicators and their
// memory may not wait for.
TEST_F(NcclAbortTest, TheHandleOfAWindowOutlivesOneThatHangs) {
  ResetWithNccl(OneGpuEach(2), {.version = 23102});
  RunGroup(Backend::kThreads, 2, [&](Communicator* control) {
    auto rank = std::make_unique<Comms>(control);
    if (control->rank() == 0) {
#if SHARD_TESTS_ADDRESS_SANITIZER
      // The abort's queue is left, which is a leak.
      const __lsan::ScopedDisabler left;
#endif
      const auto memory =
          rank->comms->Allocate("a test", 64, [] { return Status(); });
      ASSERT_OK(memory);
      // The other rank does not come.
      const auto late = []() -> Status { return DeadlineExceeded("late"); };
      ExpectError(rank->comms->OpenWindow(0, memory->data, late),
                  StatusCode::kDeadlineExceeded, {"late"});
      fake_nccl::HangCalls("ncclCommAbort", {.rank = 0});
      EXPECT_FALSE(rank->comms->Abort(kSeconds));
      rank.reset();
      EXPECT_EQ(fake_nccl::NumHanging(), 1u);
      fake_nccl::ReleaseCalls();
      EXPECT_TRUE(ComesTrue([] { return fake_nccl::CountAlive().comms == 1; }));
    }
    ASSERT_OK(control->Barrier("done", Soon()));
    if (rank != nullptr) {
      EXPECT_TRUE(rank->comms->Abort());
    }
  });
  // The driver is not asked to free memory of a context that was abandoned.
  EXPECT_EQ(fake_nccl::CountAlive().allocations, 1u);
  EXPECT_EQ(fake_nccl::ViolationText(), "");
  fake_nccl::Reset();
}

// An abort waits for the kernels of the device, those of other communicators
// too.
TEST(NcclAbortsTest, CommunicatorsThatAreStuckTogetherEnd) {
  constexpr double kTimeout = 1;
  const FakeNccl fake(OneGpuEach(4));
  RunGroup(
      Backend::kThreads, 4,
      [&](Communicator* comm) {
        NcclRank rank(comm, EverySet(*comm), {.timeout = kTimeout});
        const auto half = RankSet::Of(comm->rank(), 1, 2);
        const auto other = *rank.device->CreateStream(StreamKind::kCompute);
        const auto failing = rank.collectives->OnFailure(
            [&](const Status& error) { other->Fail(error); });
        const DeviceTensor all(&rank, std::vector<unsigned char>(4));
        const DeviceTensor two(&rank, std::vector<unsigned char>(2));
        if (comm->rank() == 0) {
          fake_nccl::StickAt(1, {.rank = 1, .size = 4});
          fake_nccl::StickAt(1, {.rank = 1, .size = 2});
        }
        ASSERT_OK(comm->Barrier("stuck", Soon()));
        const auto gather = [&](const RankSet& set, const DeviceTensor& to,
                                Stream* stream) {
          auto* const own = static_cast<unsigned char*>(to.data()) +
                            set.IndexOf(comm->rank());
          rank.collectives->AllGatherBlocks("gather", set, own, 1, to.data(),
                                            stream);
        };
        const double took = SecondsOf([&] {
          gather(rank.all, all, rank.stream.get());
          gather(half, two, other.get());
          EXPECT_FALSE(rank.Synchronize().ok());
          rank.stream->Settle(Soon());
          other->Settle(Soon());
        });
        EXPECT_LT(took, kTimeout + RankComms::kAbortSeconds / 2);
        EXPECT_FALSE(comm->Barrier("after", Soon()).ok());
      },
      /*shutdown=*/false);
}

// The same through all layers, with the bound that hosts get: the memory stays,
// and the host goes on.
TEST(NcclAbortsTest, AHostOutlivesAnAbortThatHangs) {
  if (std::getenv("SHARD_TEST_LONG") == nullptr)
    GTEST_SKIP() << "takes 10 s: only with SHARD_TEST_LONG";
  constexpr double kTimeout = 1;
  ResetWithNccl(OneGpuEach(2));
  RunGroup(
      Backend::kThreads, 2,
      [&](Communicator* comm) {
        const double took = SecondsOf([&] {
          NcclRank rank(comm, {RankSet::All(2)}, {.timeout = kTimeout});
          if (comm->rank() == 0) {
            fake_nccl::StickAt(1, {.rank = 1});
            fake_nccl::HangCalls("ncclCommAbort");
          }
          ASSERT_OK(comm->Barrier("stuck", Soon()));
          const DeviceTensor two(&rank, std::vector<unsigned char>(2));
          auto* const to = static_cast<unsigned char*>(two.data());
          rank.collectives->AllGatherBlocks(
              "gather", rank.all, to + comm->rank(), 1, to, rank.stream.get());
          EXPECT_EQ(rank.Synchronize().code(), StatusCode::kDeadlineExceeded);
          EXPECT_FALSE(comm->Barrier("after", Soon()).ok());
        });
        EXPECT_LT(took, kTimeout + RankComms::kAbortSeconds + 5);
      },
      /*shutdown=*/false);
  fake_nccl::ReleaseCalls();
  EXPECT_TRUE(ComesTrue([] { return fake_nccl::AliveText().empty(); }));
  EXPECT_EQ(fake_nccl::CountAlive().registrations, 0u);
  EXPECT_EQ(fake_nccl::ViolationText(), "");
}

}  // namespace
}  // namespace shard::testing::nccl_abort_test
