// SPDX-License-Identifier: Apache-2.0
//
// A lock of the host's that its log function takes, as functions of Python take
// the interpreter's, and that a thread of the host holds while it waits for
// what an abort ends. So the abort waits for no log.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "core/observe/logger.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_host_lock_test {
namespace {

using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::ComesTrue;
using testing::FakeNccl;
using testing::fake_nccl::Count;

constexpr int kRanks = 2;
constexpr double kTimeout = 1;
// An abort takes milliseconds, but for threads that do not get a processor.
constexpr double kLate = 6;

class HostLock {
 public:
  std::mutex& mutex() { return mutex_; }
  int ends() const { return ends_; }
  bool is_held() const { return is_held_; }
  // Tells that the test has the lock, or had it.
  void Hold() { is_held_ = true; }
  // The ranks that have acquired the unit.
  int acquired() const { return acquired_; }
  void AddAcquired() { ++acquired_; }

  Logger logger() { return Logger(Log, LogLevel::kInfo, this); }

 private:
  // Waits for a thread that never lets go longer than the test, which then
  // fails, but not for ever.
  static void Log(int32_t, const char* message, void* lock) {
    constexpr std::string_view kEnd = "the group ends here: ";
    if (std::string_view(message).substr(0, kEnd.size()) != kEnd) return;
    auto* const self = static_cast<HostLock*>(lock);
    // Not a timed mutex, whose calls the thread sanitizer does not know.
    const bool has_it =
        ComesTrue([&] { return self->mutex_.try_lock(); }, Deadline::After(15));
    ++self->ends_;
    if (has_it) self->mutex_.unlock();
  }

  std::mutex mutex_;
  std::atomic<int> ends_ = 0;
  std::atomic<int> acquired_ = 0;
  std::atomic<bool> is_held_ = false;
};

// How the group ends: by a collective that never does, or by a call of rank 1.
enum class End { kStuck, kAborted };

// Two ranks of stage 3. A thread beside rank 0's holds the lock, which the log
// functions of both ranks take, until the rank's communicator is aborted.
class NcclHostLockTest : public ::testing::TestWithParam<End> {
 protected:
  static bool IsStuck() { return GetParam() == End::kStuck; }

  static uint64_t Launched() {
    return Count({.rank = 0}).launches + Count({.rank = 1}).launches;
  }

  // Acquires a unit whose parameters do not come, and waits for them, while the
  // other thread of the rank does its part. Returns the error.
  // `launched`: kernels of NCCL before.
  static Status AwaitUnit(const RankTraining& rank, uint64_t launched,
                          HostLock* lock) {
    const bool holds = rank.rank() == 0;
    std::thread other([&] {
      if (holds) {
        HoldUntilTheAbort(lock);
      } else if (!IsStuck()) {
        EXPECT_TRUE(ComesTrue([&] {
          return lock->is_held() && Launched() == launched + kRanks &&
                 lock->acquired() == kRanks;
        }));
        rank.comm()->Abort(Cancelled("enough"));
      }
    });
    EXPECT_TRUE(ComesTrue([&] { return lock->is_held(); }));
    EXPECT_OK(rank.engine()->UnitAcquire(1, Pass::kForward, 0));
    lock->AddAcquired();
    Status waited = rank.engine()->Synchronize(60);
    other.join();
    return waited;
  }

 private:
  static void HoldUntilTheAbort(HostLock* lock) {
    const std::lock_guard<std::mutex> held(lock->mutex());
    lock->Hold();
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(ComesTrue(
        [] { return Count({.rank = 0}).Calls("ncclCommAbort") > 0; }));
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), kTimeout + kLate);
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
        RankTraining rank(form, plan, comm, IsStuck() ? kTimeout : 60);
        ASSERT_OK(rank.Create());
        ASSERT_OK(rank.Fill());
        ASSERT_OK(rank.Synchronize());
        ASSERT_OK(rank.Meet("filled"));
        const uint64_t launched = Launched();
        if (comm->rank() == 0) testing::fake_nccl::StickAt(1, {.rank = 1});
        ASSERT_OK(rank.Meet("stuck"));
        ExpectError(
            AwaitUnit(rank, launched, &lock),
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
