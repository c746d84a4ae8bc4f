// SPDX-License-Identifier: Apache-2.0
//
// A lock of the host's that its log function takes, as functions of Python take
// the interpreter's, and that a thread of the host holds until a collective has
// been aborted: the abort waits for no log.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/observe/logger.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/collectives/nccl/nccl_rank.h"
#include "tests/ranks/ranks.h"

namespace shard::testing::nccl_host_lock_test {
namespace {

constexpr double kTimeout = 1;
// An abort takes milliseconds, but for threads that do not get a processor.
constexpr double kLate = 6;

// One rank's. Its log function waits longer than the test, which then fails,
// but not for ever.
struct HostLock {
  std::mutex mutex;
  int ends = 0;  // GUARDED_BY(mutex)

  static void Log(int32_t, const char* message, void* lock) {
    if (!std::string_view(message).starts_with("the group ends here: ")) return;
    auto* const self = static_cast<HostLock*>(lock);
    // Not a timed mutex, whose calls the thread sanitizer does not know.
    if (!ComesTrue([&] { return self->mutex.try_lock(); },
                   Deadline::After(15))) {
      return;
    }
    ++self->ends;
    self->mutex.unlock();
  }
};

uint64_t AbortsOf(int rank) {
  return fake_nccl::Count({.rank = rank}).Calls("ncclCommAbort");
}

// Calls `fail` on each rank, once the lock is held and a gather of all ranks is
// enqueued, and expects its abort.
void ExpectAbort(StatusCode code, double timeout,
                 const std::function<void(NcclRank*)>& fail) {
  const FakeNccl fake(OneGpuEach(2));
  const std::string url = UrlFor(Backend::kThreads, UniqueName(), 2);
  RunEach(Backend::kThreads, 2, [&](int self) {
    HostLock lock;
    CommOptions options{.rank = self, .world_size = 2};
    options.logger = Logger(HostLock::Log, LogLevel::kInfo, &lock);
    auto comm = OpenCommunicator(url, options);
    ASSERT_OK(comm);
    {
      NcclRank rank(comm->get(), {RankSet::All(2)}, {.timeout = timeout});
      const DeviceTensor two(&rank, std::vector<unsigned char>(2));
      if (self == 0) fake_nccl::StickAt(1, {.rank = 1});
      ASSERT_OK((*comm)->Barrier("stuck", Soon()));
      std::unique_lock<std::mutex> held(lock.mutex);
      const auto begin = std::chrono::steady_clock::now();
      auto* const to = static_cast<unsigned char*>(two.data());
      rank.collectives->AllGatherBlocks("gather", rank.all, to + self, 1, to,
                                        rank.stream.get());
      fail(&rank);
      EXPECT_EQ(rank.Synchronize().code(), code);
      EXPECT_TRUE(ComesTrue([&] { return AbortsOf(self) == 1; }));
      const std::chrono::duration<double> took =
          std::chrono::steady_clock::now() - begin;
      EXPECT_LT(took.count(), kTimeout + kLate);
      EXPECT_EQ(lock.ends, 0);
      held.unlock();
      rank.stream->Settle(Soon());
    }
    comm->reset();
    EXPECT_EQ(lock.ends, 1);
  });
}

TEST(NcclHostLockTest, IsNotWaitedForByAnAbortOfACollectiveThatIsStuck) {
  ExpectAbort(StatusCode::kDeadlineExceeded, kTimeout, [](NcclRank*) {});
}

TEST(NcclHostLockTest, IsNotWaitedForByAnAbortAfterAnErrorOfNccl) {
  ExpectAbort(StatusCode::kUnavailable, 30, [](NcclRank* rank) {
    // A rank that has enqueued nothing has nothing to abort.
    ASSERT_OK(rank->comm->Barrier("enqueued", Soon()));
    // Asked by the watchdogs alone: the calls have been made.
    if (rank->comm->rank() != 1) return;
    fake_nccl::FailEveryCall("ncclCommGetAsyncError", 1,
                             fake_nccl::Result::kRemoteError, {.rank = 1});
  });
}

}  // namespace
}  // namespace shard::testing::nccl_host_lock_test
