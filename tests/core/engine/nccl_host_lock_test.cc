// SPDX-License-Identifier: Apache-2.0
//
// A lock of the host's that its log function takes, as functions of Python take
// the interpreter's, and that a thread of the host holds while it waits for the
// device. The thread waits for an abort, and so the abort waits for no log.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "core/observe/logger.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/driver_testing.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_host_lock_test {
namespace {

using cuda::CuStream;
using cuda_training::HostsStream;
using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::ComesTrue;
using testing::FakeNccl;

constexpr int kRanks = 2;
constexpr double kTimeout = 1;
// An abort takes milliseconds, but for threads that do not get a processor.
constexpr double kLate = 6;

class HostLock {
 public:
  std::timed_mutex& mutex() { return mutex_; }
  int ends() const { return ends_; }
  bool is_held() const { return is_held_; }
  // Tells that the test has the lock, or had it.
  void Hold() { is_held_ = true; }

  Logger logger() { return Logger(Log, LogLevel::kInfo, this); }

 private:
  // Waits for a thread that never lets go longer than the test, which then
  // fails, but not for ever.
  static void Log(int32_t, const char* message, void* lock) {
    constexpr std::string_view kEnd = "the group ends here: ";
    if (std::string_view(message).substr(0, kEnd.size()) != kEnd) return;
    auto* const self = static_cast<HostLock*>(lock);
    const std::unique_lock<std::timed_mutex> held(self->mutex_,
                                                  std::chrono::seconds(15));
    ++self->ends_;
  }

  std::timed_mutex mutex_;
  std::atomic<int> ends_ = 0;
  std::atomic<bool> is_held_ = false;
};

// How the group ends: by a collective that never does, or by a call of rank 1.
enum class End { kStuck, kAborted };

// Two ranks of stage 3. Rank 0 holds the lock, which the log functions of both
// ranks take, until its device goes on.
class NcclHostLockTest : public ::testing::TestWithParam<End> {
 protected:
  static bool IsStuck() { return GetParam() == End::kStuck; }

  // Acquires a unit whose parameters do not come. Returns the seconds in which
  // the device went on.
  static double Wait(const RankTraining& rank, CuStream stream,
                     HostLock* lock) {
    const bool holds = rank.rank() == 0;
    std::unique_lock<std::timed_mutex> held(lock->mutex(), std::defer_lock);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_OK(rank.engine()->UnitAcquire(1, Pass::kForward, 0));
    if (holds) {
      held.lock();
      lock->Hold();
    } else if (!IsStuck()) {
      EXPECT_TRUE(ComesTrue([&] { return lock->is_held(); }));
      rank.comm()->Abort(Cancelled("enough"));
    }
    EXPECT_EQ(testing::fake_cuda::StreamSynchronize(stream),
              cuda::CuResult::kSuccess);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin)
        .count();
  }
};

TEST_P(NcclHostLockTest, IsNotWaitedForByAnAbort) {
  testing::fake_cuda::Options gpus;
  gpus.devices = kRanks;
  const FakeNccl fake(gpus);
  const Form form = {.world_size = kRanks, .stage = 3};
  const auto plan = MakePlan(form);
  HostLock lock;
  CommOptions options;
  options.timeout = 30;
  options.logger = lock.logger();
  RunThreadRanks(
      kRanks,
      [&](const std::shared_ptr<Communicator>& comm) {
        const HostsStream stream(comm->rank());
        RankTraining rank(form, plan, comm, IsStuck() ? kTimeout : 60);
        ASSERT_OK(rank.Create());
        ASSERT_OK(rank.engine()->SetStream(stream.get()));
        ASSERT_OK(rank.Fill());
        ASSERT_OK(rank.Synchronize());
        ASSERT_OK(rank.Meet("filled"));
        if (comm->rank() == 0) testing::fake_nccl::StickAt(1, {.rank = 1});
        ASSERT_OK(rank.Meet("stuck"));
        EXPECT_LT(Wait(rank, stream.get(), &lock), kTimeout + kLate);
        ExpectError(
            rank.engine()->Synchronize(0),
            IsStuck() ? StatusCode::kDeadlineExceeded : StatusCode::kPoisoned,
            {IsStuck() ? "gather parameters of unit 1" : "enough"});
        rank.End();
      },
      options, "direct=0");
  EXPECT_EQ(lock.ends(), kRanks);
}

INSTANTIATE_TEST_SUITE_P(, NcclHostLockTest,
                         ::testing::Values(End::kStuck, End::kAborted),
                         [](const auto& info) {
                           return std::string(
                               info.param == End::kStuck ? "stuck" : "aborted");
                         });

}  // namespace
}  // namespace shard::nccl_host_lock_test
