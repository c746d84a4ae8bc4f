// SPDX-License-Identifier: Apache-2.0
//
// Waits of two ranks that look like a deadlock and are none. Each rank looks
// for deadlocks as soon as it waits, and a test lets the ranks meet after they
// have looked.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/mapping.h"
#include "core/base/strings.h"
#include "core/comm/direct/group.h"
#include "core/comm/host_waits.h"
#include "tests/core/comm/backends.h"

namespace shard::direct::no_deadlock_test {
namespace {

constexpr int kRanks = 2;

// Counts how often the waits of a rank ask for its peer. A wait asks before it
// looks for deadlocks.
class CountingLiveness final : public Liveness {
 public:
  bool IsDead(int rank) const override {
    ++asked_;
    if (on_asked_) on_asked_(rank);
    return peer_is_dead_;
  }
  std::string Name(int rank) const override { return StrCat("rank ", rank); }

  int asked() const { return asked_; }
  void KillPeer() { peer_is_dead_ = true; }
  // REQUIRES: no rank waits yet.
  void set_on_asked(std::function<void(int rank)> on_asked) {
    on_asked_ = std::move(on_asked);
  }

 private:
  mutable std::atomic<int> asked_{0};
  std::atomic<bool> peer_is_dead_{false};
  std::function<void(int rank)> on_asked_;
};

// A rank with the groups of its host's communicator and of its engine.
struct Rank {
  std::shared_ptr<CountingLiveness> liveness;
  std::shared_ptr<Group> comm;
  std::shared_ptr<Group> engine;

  HostCall* call() const { return &comm->host_waits().call(); }

  // Waits until a wait of this rank that goes on has looked for deadlocks, all
  // of it from now on. Returns early when the groups have failed.
  void AwaitLook() const {
    const int before = liveness->asked();
    while (liveness->asked() < before + 2 && !comm->failed()) {
      std::this_thread::yield();
    }
  }
};

Status Meet(const std::shared_ptr<Group>& group) {
  return group->Begin({Operation::kBarrier, "meet"}, nullptr, 0,
                      testing::Soon());
}

class NoDeadlockTest : public ::testing::Test {
 protected:
  Rank MakeRank(int rank) {
    Rank made;
    made.liveness = std::make_shared<CountingLiveness>();
    made.comm = std::make_shared<Group>(
        BlockIn(comm_memory_), Membership(BlockIn(comm_memory_).get(), rank),
        kRanks, made.liveness, /*find_deadlocks_at_once=*/true);
    made.engine = std::make_shared<Group>(BlockIn(engine_memory_), made.comm);
    return made;
  }

 private:
  static std::shared_ptr<ControlBlock> BlockIn(Mapping& memory) {
    return {std::shared_ptr<void>(),
            reinterpret_cast<ControlBlock*>(memory.data())};
  }

  Mapping comm_memory_ = *Mapping::Anonymous(ControlBlock::Bytes(kRanks));
  Mapping engine_memory_ = *Mapping::Anonymous(ControlBlock::Bytes(kRanks));

 protected:
  const Rank zero_ = MakeRank(0);
  const Rank one_ = MakeRank(1);

  // Says of a rank what its mirror would.
  void SetPresence(int rank, Presence presence) {
    BlockIn(comm_memory_)->slots()[rank].presence = presence;
  }
};

// The library of rank 0 waits in the engine's group, while the host works in
// its call before it meets the host of rank 1.
TEST_F(NoDeadlockTest, AThreadOfTheLibraryHoldsNoHost) {
  const HostCall::Scope call(zero_.call(), "sum");
  zero_.engine->host_waits().AddWork();
  std::thread library([&] {
    SHARD_EXPECT_OK(Meet(zero_.engine));
    zero_.engine->host_waits().FinishWork();
  });
  std::thread host_of_one([&] {
    const HostCall::Scope call_of_one(one_.call(), "sum");
    SHARD_EXPECT_OK(Meet(one_.comm));
    SHARD_EXPECT_OK(Meet(one_.engine));
  });
  zero_.AwaitLook();
  one_.AwaitLook();
  SHARD_EXPECT_OK(Meet(zero_.comm));
  library.join();
  host_of_one.join();
}

// Rank 0 waits in the engine's group for rank 1, whose library has work there,
// while the host of rank 1 waits for rank 0.
TEST_F(NoDeadlockTest, PendingWorkIsWaitedFor) {
  one_.engine->host_waits().AddWork();
  std::thread host_of_zero([&] {
    const HostCall::Scope call(zero_.call(), "step, sum");
    SHARD_EXPECT_OK(Meet(zero_.engine));
    SHARD_EXPECT_OK(Meet(zero_.comm));
  });
  std::thread host_of_one([&] {
    const HostCall::Scope call(one_.call(), "sum");
    SHARD_EXPECT_OK(Meet(one_.comm));
  });
  zero_.AwaitLook();
  one_.AwaitLook();
  SHARD_EXPECT_OK(Meet(one_.engine));
  one_.engine->host_waits().FinishWork();
  host_of_zero.join();
  host_of_one.join();
}

// The host of rank 0 waits for work that is done, and is about to go on; the
// library has begun its next work already.
TEST_F(NoDeadlockTest, AHostWhoseWorkIsDoneGoesOn) {
  HostWaits& waits = zero_.engine->host_waits();
  const HostCall::Scope call(zero_.call(), "acquire, sum");
  const uint64_t first = waits.AddWork();
  waits.AddWork();
  std::thread library([&] {
    waits.FinishWork();
    SHARD_EXPECT_OK(Meet(zero_.engine));
    waits.FinishWork();
  });
  std::thread host_of_one([&] {
    const HostCall::Scope call_of_one(one_.call(), "sum, step");
    SHARD_EXPECT_OK(Meet(one_.comm));
    SHARD_EXPECT_OK(Meet(one_.engine));
  });
  {
    HostWaits::Scope waiting(&waits);
    waiting.Begin(first);
    zero_.AwaitLook();
    one_.AwaitLook();
  }
  SHARD_EXPECT_OK(Meet(zero_.comm));
  library.join();
  host_of_one.join();
}

// Programs that drive the groups of a family from several threads name no call,
// and nothing is concluded from their waits.
TEST_F(NoDeadlockTest, WaitsOutsideACallOfTheHostAreNotJudged) {
  std::thread thread_of_zero(
      [&] { EXPECT_EQ(Meet(zero_.comm).code(), StatusCode::kAborted); });
  std::thread thread_of_one(
      [&] { EXPECT_EQ(Meet(one_.engine).code(), StatusCode::kAborted); });
  zero_.AwaitLook();
  one_.AwaitLook();
  zero_.comm->Fail(Status(StatusCode::kAborted, "enough", 0));
  thread_of_zero.join();
  thread_of_one.join();
}

// A rank of which the mirror says that it cannot be reached is lost, though
// this is said once the search for a deadlock has begun: no other search asks
// whether the rank that searches is dead.
TEST_F(NoDeadlockTest, ARankThatAMirrorHasLostDoesNotWait) {
  for (const int rank : {0, 1}) {
    (rank == 0 ? zero_ : one_).liveness->set_on_asked([this, rank](int asked) {
      if (asked == rank) SetPresence(/*rank=*/1, kUnreachable);
    });
  }
  std::thread host_of_one([&] {
    const HostCall::Scope call(one_.call(), "step");
    EXPECT_EQ(Meet(one_.engine).code(), StatusCode::kRankLost);
  });
  one_.AwaitLook();
  const HostCall::Scope call(zero_.call(), "sum");
  const Status status = Meet(zero_.comm);
  EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
  EXPECT_EQ(status.rank(), 1);
  host_of_one.join();
}

// A rank that died while it waited elsewhere is lost.
TEST_F(NoDeadlockTest, ADeadRankIsLost) {
  std::thread host_of_one([&] {
    const HostCall::Scope call(one_.call(), "step");
    EXPECT_EQ(Meet(one_.engine).code(), StatusCode::kRankLost);
  });
  one_.AwaitLook();
  zero_.liveness->KillPeer();
  const HostCall::Scope call(zero_.call(), "sum");
  const Status status = Meet(zero_.comm);
  EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
  EXPECT_EQ(status.rank(), 1);
  host_of_one.join();
}

}  // namespace
}  // namespace shard::direct::no_deadlock_test
