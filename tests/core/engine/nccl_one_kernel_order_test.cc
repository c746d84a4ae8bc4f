// SPDX-License-Identifier: Apache-2.0
//
// Waits of the kernels of a step for each other: a step ends after all ranks
// have stored, and where a rank does not come before the hosts have ended the
// waits, all ranks get an error, and nothing is updated. A rank whose host ends
// them later may make the step.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/collectives/collectives.h"
#include "kernels/cuda/update_elements.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/engine/one_kernel_training.h"
#include "tests/fake_cuda/kernel_accesses.h"

namespace shard::nccl_one_kernel_order_test {
namespace {

using one_kernel_training::FakeNccl;
using one_kernel_training::Gpus;
using one_kernel_training::HoldStream;
using one_kernel_training::MakeEngineOn;
using one_kernel_training::MakePlan;
using one_kernel_training::ParamsOf;
using one_kernel_training::Step;
using one_kernel_training::WithPeers;

// A rank whose kernel has met the others, and then takes long, has stored
// nothing yet: the steps of the others end after it.
TEST(OneKernelOrderTest, AStepEndsOnceAllRanksHaveStored) {
  using testing::fake_cuda::Progress;
  constexpr uint32_t kSlow = 1;
  const FakeNccl fake(Gpus(3), WithPeers());
  const auto plan = MakePlan({.ranks = 3});
  std::atomic<bool> waits = false;
  std::atomic<bool> stores = false;
  testing::fake_cuda::DescribeWaits(
      "shard_update_AdamW", [&](const void* args, std::function<void()> run) {
        const auto* const launched =
            static_cast<const cuda::UpdateElementsArgs*>(args);
        return
            [&, launched, update = testing::BeginUpdate(args, std::move(run))] {
              const cuda::PeerMeetings& meetings = *launched->meetings;
              const bool has_met =
                  meetings.rank == kSlow &&
                  *cuda::FlagAt(meetings, cuda::PeerFlag::kCome, 0, kSlow) > 0;
              if (has_met) waits = true;
              return has_met && !stores ? Progress::kWaits : update();
            };
      });
  std::thread later([&] {
    EXPECT_TRUE(testing::ComesTrue([&] { return waits.load(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stores = true;
  });
  RunThreadRanks(
      3,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions options;
        options.one_kernel = true;
        const auto engine = MakeEngineOn("cuda", plan, comm, options);
        ASSERT_OK(engine);
        ASSERT_OK(cuda_training::Fill(engine->get()));
        ASSERT_OK(Step(engine->get(), comm->rank(), 1));
        ASSERT_OK((*engine)->Synchronize(0));
        EXPECT_TRUE(stores);
        // The kernel of the slow rank uses this one's memory.
        EXPECT_TRUE(testing::ComesTrue([&] { return stores.load(); }));
      },
      30, "direct=0");
  later.join();
}

constexpr int kRanks = 3;
constexpr int kHeld = 1;

// By rank: the launches, and whether the kernel of the second step has come to
// the others.
std::array<std::atomic<int>, kRanks> launches;
std::array<std::atomic<bool>, kRanks> has_come;

// Returns whether all ranks make the second step, and only that of kHeld has
// not come.
bool OthersWait() {
  return launches[kHeld] == 2 &&
         std::count(has_come.begin(), has_come.end(), true) == kRanks - 1;
}

void WatchKernels() {
  for (auto& count : launches) count = 0;
  for (auto& come : has_come) come = false;
  testing::fake_cuda::DescribeWaits(
      "shard_update_AdamW", [](const void* args, std::function<void()> run) {
        const auto* const launched =
            static_cast<const cuda::UpdateElementsArgs*>(args);
        ++launches[launched->meetings->rank];
        return [launched, update = testing::BeginUpdate(args, std::move(run))] {
          const cuda::PeerMeetings& meetings = *launched->meetings;
          const auto progress = update();
          const uint32_t rank = meetings.rank;
          if (cuda::LoadShared(
                  cuda::FlagAt(meetings, cuda::PeerFlag::kCome, 0, rank)) > 1) {
            has_come[rank] = true;
          }
          return progress;
        };
      });
}

// Three ranks make a step, and then one in which the kernels of two wait for
// that of rank 1, whose stream is held. `fail` is called on each rank before
// that step, and `expect` with its status. Nothing is updated anywhere.
void HoldInStep(
    const StepOptions& options,
    const std::function<void(const std::shared_ptr<Communicator>&)>& fail,
    const std::function<void(const Status&)>& expect) {
  const FakeNccl fake(Gpus(kRanks), WithPeers());
  WatchKernels();
  const auto plan = MakePlan({.ranks = kRanks});
  std::atomic<bool> released = false;
  std::atomic<int> ended = 0;
  RunThreadRanks(
      kRanks,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions engine_options;
        engine_options.one_kernel = true;
        const auto engine = MakeEngineOn("cuda", plan, comm, engine_options);
        ASSERT_OK(engine);
        ASSERT_OK(cuda_training::Fill(engine->get()));
        ASSERT_OK(Step(engine->get(), comm->rank(), 1));
        ASSERT_OK((*engine)->Synchronize(0));
        const std::vector<std::byte> before = ParamsOf(engine->get());
        if (comm->rank() == kHeld) {
          HoldStream(&(*engine)->host_stream(), &released);
        }
        fail(comm);
        const auto begin = std::chrono::steady_clock::now();
        expect((*engine)->Step(options, nullptr));
        const std::chrono::duration<double> seconds =
            std::chrono::steady_clock::now() - begin;
        EXPECT_LT(seconds.count(), kSanitized ? 10 : 2.5);
        // A host may see the deadline before its watchdog does, and a kernel
        // that is let go then may still make the step.
        if (++ended == kRanks) {
          EXPECT_TRUE(testing::ComesTrue([] {
            return testing::fake_nccl::Count().Calls("ncclCommAbort") >= kRanks;
          }));
          released = true;
        }
        EXPECT_TRUE(testing::ComesTrue([&] { return released.load(); }));
        testing::fake_cuda::RunAll();
        EXPECT_TRUE(testing::ComesTrue(
            [] { return testing::fake_cuda::NumPending() == 0; },
            Deadline::After(5)));
        EXPECT_TRUE(ParamsOf(engine->get()) == before);
      },
      30, "direct=0");
}

TEST(OneKernelFailureTest, ARankWhoseStreamIsHeldEndsAll) {
  StepOptions options;
  options.timeout = 1;
  // All ranks have come to the step: nobody knows whose stream it is.
  HoldInStep(
      options, [](const auto&) {},
      [](const Status& status) {
        // The first rank that sees the deadline tells the others.
        EXPECT_NE(status.ToString().find("DEADLINE_EXCEEDED"),
                  std::string::npos)
            << status.ToString();
      });
}

// The hosts wait for the end of kernels that the failure ends.
TEST(OneKernelFailureTest, AStepThatWasEndedIsAnError) {
  constexpr int kRounds = kSanitized ? 2 : 8;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    std::thread killer;
    StepOptions options;
    options.timeout = 60;
    HoldInStep(
        options,
        [&](const std::shared_ptr<Communicator>& comm) {
          if (comm->rank() != kHeld) return;
          killer = std::thread([comm] {
            EXPECT_TRUE(testing::ComesTrue(OthersWait));
            comm->Abort(RankLost(kHeld, "a test"));
          });
        },
        [](const Status& status) { EXPECT_FALSE(status.ok()); });
    killer.join();
  }
}

// Returns the parameters of a rank's range as this rank has them.
std::vector<std::byte> RangeOf(Engine* engine, int rank) {
  std::vector<std::byte> bytes;
  for (const EngineBuffer& buffer : engine->memory().buffers()) {
    const int64_t numel = buffer.plan->layout.shard_numel();
    const auto* const begin = static_cast<const std::byte*>(
        buffer.ParamAt(engine->plan().RangeOf(rank) * numel));
    bytes.insert(bytes.end(), begin,
                 begin + DTypeBytes(buffer.plan->dtype, numel));
  }
  return bytes;
}

// The flags of the others stay in the memory of a rank that comes after they
// have given up. Its watchdog is late, and its host ends its waits after it has
// come and before it sees the flags: it updates its range, and stores it on all
// ranks.
TEST(OneKernelFailureTest, ARankThatFindsTheFailureLateMakesTheStep) {
  using testing::fake_cuda::Progress;
  const FakeNccl fake(Gpus(kRanks), WithPeers());
  const auto plan = MakePlan({.ranks = kRanks});
  std::atomic<int> launches_held = 0;
  std::atomic<bool> has_begun = false;
  std::atomic<bool> is_late = false;
  testing::fake_cuda::DescribeWaits(
      "shard_update_AdamW", [&](const void* args, std::function<void()> run) {
        const auto* const launched =
            static_cast<const cuda::UpdateElementsArgs*>(args);
        const bool holds =
            launched->meetings->rank == kHeld && ++launches_held == 2;
        return [&, launched, holds,
                update = testing::BeginUpdate(args, std::move(run))] {
          if (!holds) return update();
          if (!has_begun.exchange(true)) {
            const Progress progress = update();
            is_late = true;
            return progress;
          }
          return cuda::LoadShared(&launched->meetings->waits->ended) == 0
                     ? Progress::kWaits
                     : update();
        };
      });
  std::atomic<bool> released = false;
  std::atomic<bool> is_over = false;
  std::atomic<int> ended = 0;
  RunThreadRanks(
      kRanks,
      [&](const std::shared_ptr<Communicator>& comm) {
        EngineOptions engine_options;
        engine_options.one_kernel = true;
        const auto engine = MakeEngineOn("cuda", plan, comm, engine_options);
        ASSERT_OK(engine);
        ASSERT_OK(cuda_training::Fill(engine->get()));
        ASSERT_OK(Step(engine->get(), comm->rank(), 1));
        ASSERT_OK((*engine)->Synchronize(0));
        std::vector<std::vector<std::byte>> before;
        for (int rank = 0; rank < kRanks; ++rank) {
          before.push_back(RangeOf(engine->get(), rank));
        }
        if (comm->rank() == kHeld) {
          HoldStream(&(*engine)->host_stream(), &released);
          testing::fake_nccl::HangCalls("ncclCommGetAsyncError",
                                        {.rank = kHeld});
        }
        StepOptions options;
        options.timeout = 1;
        EXPECT_FALSE((*engine)->Step(options, nullptr).ok());
        if (++ended == kRanks) {
          EXPECT_TRUE(testing::ComesTrue([] {
            return testing::fake_nccl::Count().Calls("ncclCommAbort") >=
                   kRanks - 1;
          }));
          released = true;
          EXPECT_TRUE(testing::ComesTrue([&] { return is_late.load(); }));
          testing::fake_nccl::ReleaseCalls();
          EXPECT_TRUE(testing::ComesTrue(
              [] { return testing::fake_cuda::NumPending() == 0; }));
          is_over = true;
        }
        EXPECT_TRUE(testing::ComesTrue([&] { return is_over.load(); }));
        for (int rank = 0; rank < kRanks; ++rank) {
          EXPECT_EQ(
              RangeOf(engine->get(), rank) == before[static_cast<size_t>(rank)],
              rank != kHeld)
              << rank;
        }
      },
      30, "direct=0");
}

// The memory of other ranks is used until all kernels have ended.
TEST(OneKernelFailureTest, AnEngineEndsAfterAStepThatNobodyAwaits) {
  const FakeNccl fake(Gpus(3), WithPeers());
  const auto plan = MakePlan({.ranks = 3});
  RunThreadRanks(
      3,
      [&](const std::shared_ptr<Communicator>& comm) {
        const cuda_training::HostsStream stream(comm->rank());
        ASSERT_NE(stream.get(), nullptr);
        EngineOptions options;
        options.one_kernel = true;
        auto engine = MakeEngineOn("cuda", plan, comm, options);
        ASSERT_OK(engine);
        ASSERT_OK((*engine)->SetStream(stream.get()));
        ASSERT_OK(cuda_training::Fill(engine->get()));
        for (int step = 1; step <= 2; ++step) {
          ASSERT_OK(Step(engine->get(), comm->rank(), step));
        }
        engine->reset();
      },
      30, "direct=0");
}

}  // namespace
}  // namespace shard::nccl_one_kernel_order_test
