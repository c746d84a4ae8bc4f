// SPDX-License-Identifier: Apache-2.0
//
// Tests each instant between a peer's last step and its death: the test itself
// plays rank 1, at the moment when rank 0 asks whether rank 1 lives.

#include "core/comm/direct/group.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "core/base/mapping.h"
#include "core/base/strings.h"

namespace shard::direct::group_test {
namespace {

class FakeLiveness final : public Liveness {
 public:
  explicit FakeLiveness(std::function<bool()> is_dead)
      : is_dead_(std::move(is_dead)) {}
  bool IsDead(int) const override { return is_dead_(); }
  std::string Name(int rank) const override {
    return StrCat("rank ", rank, " (a fake)");
  }

 private:
  const std::function<bool()> is_dead_;
};

class GroupTest : public ::testing::Test {
 protected:
  GroupTest() : memory_(*Mapping::Anonymous(ControlBlock::Bytes(2))) {}

  ControlBlock* block() {
    return reinterpret_cast<ControlBlock*>(memory_.data());
  }

  // Enters rank 0's barrier. `is_dead` does rank 1's steps when rank 0 asks
  // whether rank 1 is dead.
  Status Barrier(std::function<bool()> is_dead, double seconds = 10,
                 std::string_view what = "step") {
    if (group_ == nullptr) {
      group_ = std::make_unique<Group>(
          std::shared_ptr<ControlBlock>(std::shared_ptr<void>(), block()),
          Membership(block(), 0), 2,
          std::make_unique<FakeLiveness>([this] { return is_dead_(); }));
    }
    is_dead_ = std::move(is_dead);
    return group_->Begin({Operation::kBarrier, what}, nullptr, 0,
                         Deadline::After(seconds));
  }

  Cell& CellOf(int rank, uint64_t round) {
    return BlockView{block(), 2}.cell(rank, round);
  }

  // Lets rank 1 make the same call as rank 0.
  void Arrive(uint64_t round) {
    CellOf(1, round).call = CellOf(0, round).call;
    block()->slots()[1].arrived = round;
  }

  Mapping memory_;
  std::function<bool()> is_dead_;
  std::unique_ptr<Group> group_;
};

TEST_F(GroupTest, ADeadRankIsLost) {
  const Status status = Barrier([] { return true; });
  EXPECT_EQ(status.code(), StatusCode::kRankLost);
  EXPECT_EQ(status.rank(), 1);
  EXPECT_EQ(status.message(),
            "rank 1 (a fake) died or was killed before it entered 'step'; it "
            "has entered no collective yet");
}

// Rank 1 arrived and died between two looks of rank 0: the round is complete.
TEST_F(GroupTest, ARankMayDieAfterItArrived) {
  Status status = Barrier([this] {
    Arrive(1);
    return true;
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  status = Barrier([] { return true; });
  EXPECT_EQ(status.code(), StatusCode::kRankLost);
}

// A third rank has seen all arrive and has said so, so rank 0's view of rank 1
// no longer counts.
TEST_F(GroupTest, ACompleteRoundStands) {
  const Status status = Barrier([this] {
    Arrive(1);
    block()->slots()[1].arrived = 0;  // Rank 0 has an old view of rank 1.
    block()->state = State{1, -1}.Pack();
    return true;
  });
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_FALSE(group_->failed());
}

// Rank 1 gave up first, so its reason is that of all ranks.
TEST_F(GroupTest, TheFirstFailureCounts) {
  const auto fail = [this] {
    FailureRecord& record = block()->slots()[1].failure;
    record.code = static_cast<int32_t>(StatusCode::kDeadlineExceeded);
    record.rank = 0;
    record.message_bytes = 8;
    std::memcpy(record.message, "too late", 8);
    block()->state = State{0, 1}.Pack();
    return true;
  };
  const Status status = Barrier(fail);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "too late");
  EXPECT_EQ(status.rank(), 0);
  const Status later = Barrier(fail);
  EXPECT_EQ(later.code(), StatusCode::kPoisoned);
  EXPECT_EQ(later.message(),
            "an earlier error ended the group: DEADLINE_EXCEEDED: too late");
}

// Rank 1 left after it had arrived.
TEST_F(GroupTest, ARankMayLeaveAfterItArrived) {
  EXPECT_TRUE(Barrier([this] {
                Arrive(1);
                block()->slots()[1].presence = kLeft;
                return false;
              }).ok());
  const Status status = Barrier([] { return false; });
  EXPECT_EQ(status.code(), StatusCode::kRankLost);
  EXPECT_NE(status.message().find("left the group without Shutdown"),
            std::string::npos);
}

// A duplicate waits when its origin fails, or is shut down.
class DuplicateGroupTest : public GroupTest {
 protected:
  // Enters rank 0's barrier in the duplicate.
  Status Wait(std::function<bool()> is_dead) {
    is_dead_ = std::move(is_dead);
    return duplicate_->Begin({Operation::kBarrier, "engine"}, nullptr, 0,
                             Deadline::After(10));
  }

  std::shared_ptr<ControlBlock> BlockIn(Mapping& memory) {
    return {std::shared_ptr<void>(),
            reinterpret_cast<ControlBlock*>(memory.data())};
  }

  Mapping own_ = *Mapping::Anonymous(ControlBlock::Bytes(2));
  std::shared_ptr<Group> origin_ = std::make_shared<Group>(
      BlockIn(memory_), Membership(block(), 0), 2,
      std::make_unique<FakeLiveness>([this] { return is_dead_(); }));
  std::shared_ptr<Group> duplicate_ =
      std::make_shared<Group>(BlockIn(own_), origin_);
};

// A rank fails the origin and dies at once: the error is that of the origin.
TEST_F(DuplicateGroupTest, FailsWithItsOrigin) {
  const Status status = Wait([this] {
    origin_->Fail(Status(StatusCode::kDeadlineExceeded, "too late", 1));
    return true;
  });
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "too late");
  EXPECT_EQ(status.rank(), 1);
  EXPECT_EQ(Wait([] { return false; }).code(), StatusCode::kPoisoned);
}

TEST_F(DuplicateGroupTest, IsPoisonedAfterItsOriginFailed) {
  origin_->Fail(Status(StatusCode::kDeadlineExceeded, "too late", 1));
  EXPECT_TRUE(duplicate_->failed());
  const Status status = Wait([] { return false; });
  EXPECT_EQ(status.code(), StatusCode::kPoisoned);
  EXPECT_EQ(status.rank(), 1);
}

TEST_F(DuplicateGroupTest, TellsTheOrigin) {
  EXPECT_EQ(Wait([] { return true; }).code(), StatusCode::kRankLost);
  EXPECT_TRUE(origin_->failed());
  // A sibling of the duplicate fails, too.
  Mapping memory = *Mapping::Anonymous(ControlBlock::Bytes(2));
  Group sibling(BlockIn(memory), duplicate_);
  const Status status = sibling.Begin({Operation::kBarrier, "other"}, nullptr,
                                      0, Deadline::After(10));
  EXPECT_EQ(status.code(), StatusCode::kRankLost);
  EXPECT_EQ(status.rank(), 1);
}

// The rank that failed the duplicate has died before it could tell the origin.
TEST_F(DuplicateGroupTest, TellsForTheDead) {
  EXPECT_EQ(Wait([this] {
              auto* block = reinterpret_cast<ControlBlock*>(own_.data());
              FailureRecord& record = block->slots()[1].failure;
              record.code = static_cast<int32_t>(StatusCode::kPoisoned);
              record.rank = 1;
              block->state = State{0, 1}.Pack();
              return true;
            }).code(),
            StatusCode::kPoisoned);
  EXPECT_TRUE(origin_->failed());
}

// Rank 1 shut down and died: the error must be more than its death.
TEST_F(DuplicateGroupTest, AShutdownIsSeenBeforeADeath) {
  const Status status = Wait([this] {
    block()->slots()[1].presence = kShutDown;
    return true;
  });
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  // The Shutdown of this rank has not returned yet.
  EXPECT_FALSE(duplicate_->is_shut_down());
  EXPECT_EQ(Wait([] { return false; }).code(), StatusCode::kFailedPrecondition);
}

// Rank 1 shut down in order, which does not hide that rank 2 is lost.
TEST(GroupOfThreeTest, AShutdownDoesNotHideALostRank) {
  constexpr int kRanks = 3;
  Mapping memories[] = {*Mapping::Anonymous(ControlBlock::Bytes(kRanks)),
                        *Mapping::Anonymous(ControlBlock::Bytes(kRanks))};
  const auto block_of = [](Mapping& memory) {
    return std::shared_ptr<ControlBlock>(
        std::shared_ptr<void>(),
        reinterpret_cast<ControlBlock*>(memory.data()));
  };
  const auto block = block_of(memories[0]);
  const auto origin = std::make_shared<Group>(block, Membership(block.get(), 0),
                                              kRanks, nullptr);
  Group duplicate(block_of(memories[1]), origin);
  block->slots()[1].presence = kShutDown;
  block->slots()[2].presence = kLeft;
  const Status status = duplicate.Begin({Operation::kBarrier, "engine"},
                                        nullptr, 0, Deadline::After(10));
  EXPECT_EQ(status.code(), StatusCode::kRankLost) << status.ToString();
  EXPECT_EQ(status.rank(), 2);
}

TEST_F(DuplicateGroupTest, AShutdownOfTheOriginEndsTheWait) {
  const Status status = Wait([this] {
    origin_->ShutDown();
    return false;
  });
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(duplicate_->is_shut_down());
}

// A rank leaves when it frees its last communicator of a family.
TEST_F(DuplicateGroupTest, ARankLeavesWithItsLastHandle) {
  const auto& presence = block()->slots()[0].presence;
  origin_.reset();
  EXPECT_EQ(presence, kPresent);
  duplicate_.reset();
  EXPECT_EQ(presence, kLeft);
}

// A message is text of bounded size, whatever a peer has in its memory.
TEST_F(GroupTest, AWildPeerGetsABoundedMessage) {
  const Status status = Barrier([this] {
    Arrive(1);
    Fingerprint& call = CellOf(1, 1).call;
    call.operation = 77;
    call.what_bytes = 0xFFFFFFFF;
    call.number = 5;
    return false;
  });
  EXPECT_EQ(status.code(), StatusCode::kDesync);
  EXPECT_LT(status.message().size(), 600u);
  EXPECT_NE(status.message().find("unknown operation"), std::string::npos);
}

// A text that is too long is cut between characters.
TEST_F(GroupTest, LongTextsAreCutBetweenCharacters) {
  for (size_t size : {78, 79, 80}) {
    group_.reset();
    std::memset(memory_.data(), 0, memory_.size());
    const std::string what = std::string(size, 'x') + "\u20ac and more";
    const Status status = Barrier(
        [this] {
          Arrive(1);
          CellOf(1, 1).call.what_hash = 0;
          return false;
        },
        10, what);
    EXPECT_EQ(status.code(), StatusCode::kDesync);
    EXPECT_TRUE(IsValidUtf8(status.message())) << size;
  }
}

}  // namespace
}  // namespace shard::direct::group_test
