// SPDX-License-Identifier: Apache-2.0
//
// Tests what is concluded from the words that ranks publish: the test itself
// plays all ranks of a family of two groups.

#include <gtest/gtest.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/mapping.h"
#include "core/base/strings.h"
#include "core/comm/direct/call.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/direct/deadlock.h"
#include "core/comm/host_waits.h"

namespace shard::direct::find_deadlock_test {
namespace {

// The groups of the family: a host's communicator and that of its engine.
enum : size_t { kComm, kEngine, kNumGroups };

// A host that waits in a group, while this lives.
class WaitingHost {
 public:
  // `until`: of HostWaits::Scope::Begin.
  WaitingHost(HostWait* shared, const std::string& name, uint64_t until)
      : call_(std::make_shared<HostCall>()),
        in_call_(call_.get(), name.c_str()),
        waits_(shared, call_),
        published_(&waits_) {
    published_.Begin(until);
  }

 private:
  const std::shared_ptr<HostCall> call_;
  const HostCall::Scope in_call_;
  HostWaits waits_;
  HostWaits::Scope published_;
};

class FindDeadlockTest : public ::testing::Test {
 protected:
  static constexpr int kMostRanks = 40;

  FindDeadlockTest() {
    for (size_t g = 0; g < kNumGroups; ++g) {
      memory_.push_back(*Mapping::Anonymous(ControlBlock::Bytes(kMostRanks)));
      blocks_.push_back(
          {reinterpret_cast<ControlBlock*>(memory_.back().data()), kMostRanks});
    }
  }

  ControlBlock* block(size_t group) { return blocks_[group].block; }
  RankSlot& SlotOf(int rank, size_t group) { return blocks_[group].slot(rank); }

  // Lets the host of `rank` make the call `name`, and wait in the first round
  // of a group.
  void Wait(int rank, size_t group, const std::string& name,
            uint64_t until = 0) {
    RankSlot& slot = SlotOf(rank, group);
    StoreCall(FingerprintOf({Operation::kBarrier, "meet"}, 0),
              &CellOf(rank, group));
    slot.arrived = 1;
    slot.awaited = 1;
    hosts_.push_back(
        std::make_unique<WaitingHost>(&slot.host_wait, name, until));
  }

  // Returns the cell of the first round.
  Cell& CellOf(int rank, size_t group) { return blocks_[group].cell(rank, 1); }

  // Asks a rank that waits for `round` of the engine's group. Ranks that do not
  // wait compute.
  Status Find(
      const std::function<bool(int rank)>& is_dead = [](int) { return false; },
      uint64_t round = 1) {
    return FindDeadlock(blocks_, block(kEngine), round, is_dead);
  }

  Status FindInRoundFive() {
    return Find([](int) { return false; }, 5);
  }

 private:
  std::vector<Mapping> memory_;
  std::vector<BlockView> blocks_;
  std::vector<std::unique_ptr<WaitingHost>> hosts_;
};

TEST_F(FindDeadlockTest, EachRankIsNamedWithItsCall) {
  for (const int rank : {0, 2, 4}) Wait(rank, kComm, "sum");
  Wait(1, kEngine, "step");
  Wait(3, kEngine, "save");
  const Status found = Find();
  EXPECT_EQ(found.code(), StatusCode::kDesync) << found.ToString();
  EXPECT_EQ(found.rank(), 1);
  EXPECT_EQ(found.message(),
            "the ranks wait for each other in different calls: ranks [0, 2, 4] "
            "wait in sum (barrier 'meet'), rank 1 in step (barrier 'meet'), "
            "rank 3 in save (barrier 'meet'); none of these calls can end: "
            "every rank must make the same calls in the same order");
}

TEST_F(FindDeadlockTest, OneCallOfTwoGroupsIsToldApart) {
  Wait(0, kEngine, "step");
  Wait(1, kComm, "step");
  EXPECT_NE(Find().message().find(
                "rank 0 waits in step (barrier 'meet'), rank 1 in step "
                "(barrier 'meet') of another engine or communicator; none"),
            std::string::npos)
      << Find().message();
}

TEST_F(FindDeadlockTest, OfManyRanksTheFirstAreListed) {
  for (int rank = 0; rank < kMostRanks; ++rank) {
    Wait(rank, rank == 39 ? kComm : kEngine, rank == 39 ? "sum" : "step");
  }
  const std::string message = Find().message();
  EXPECT_NE(message.find("ranks [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, "
                         "14, 15] and more wait in step ("),
            std::string::npos)
      << message;
  EXPECT_NE(message.find(", rank 39 in sum ("), std::string::npos) << message;
}

TEST_F(FindDeadlockTest, ALongNameIsCut) {
  Wait(0, kComm, std::string(1000, 'a'));
  Wait(1, kEngine, "step");
  const std::string message = Find().message();
  const std::string cut(64, 'a');
  EXPECT_NE(message.find(StrCat("rank 0 waits in ", cut, " (")),
            std::string::npos)
      << message;
}

// The ranks of one group made a call each, which are too many for a message.
TEST_F(FindDeadlockTest, OfManyCallsTheFirstAreNamedAndTheOthersCounted) {
  constexpr int kCalls = 30;
  for (int rank = 0; rank < kCalls; ++rank) {
    const bool is_last = rank == kCalls - 1;
    Wait(rank, is_last ? kComm : kEngine,
         is_last ? "sum" : StrCat("call ", rank, std::string(40, '-')));
  }
  const std::string message = Find().message();
  int named = 0;
  for (size_t at = 0; (at = message.find("(barrier", at)) != std::string::npos;
       ++at) {
    ++named;
  }
  EXPECT_LE(message.size(), kMessageBytes);
  EXPECT_GT(named, 5);
  EXPECT_NE(message.find("rank 29 in sum (barrier 'meet'), rank 1 in call 1-"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find(StrCat("(barrier 'meet'), and ", kCalls - named,
                                " more; none of these calls can end: every "
                                "rank must make the same calls in the same "
                                "order")),
            std::string::npos)
      << message;
}

// The end of the message has room after any two calls.
TEST_F(FindDeadlockTest, TwoLongCallsAreNamedWhole) {
  const std::string what(kWhatBytes, 'w');
  const Call call = {
      Operation::kReduceScatter,
      what,
      UINT64_MAX,
      /*direct=*/false,
      {{INT_MIN, INT_MIN, INT_MIN}, 0, INT_MIN, INT_MIN, 1, INT_MIN}};
  for (int rank = 0; rank < kMostRanks; ++rank) {
    const size_t group = rank % 2 == 0 ? kComm : kEngine;
    Wait(rank, group, std::string(64, 'n'));
    StoreCall(FingerprintOf(call, 0), &CellOf(rank, group));
  }
  const std::string message = Find().message();
  EXPECT_LE(message.size(), kMessageBytes);
  EXPECT_TRUE(message.ends_with("the same calls in the same order")) << message;
}

// Hosts that share notices may wait for different ones. The host of rank 1
// waits for what rank 0 has not posted yet, and that of rank 0 for an earlier
// notice of rank 2, which is on its way.
TEST_F(FindDeadlockTest, AnEarlierRoundOfAGroupMayEnd) {
  Wait(2, kComm, "sum");
  Wait(0, kEngine, "join");
  Wait(1, kEngine, "join");
  SlotOf(1, kEngine).arrived = 5;
  SlotOf(1, kEngine).awaited = 5;
  // Rank 2 has posted all five, and rank 1 is the only one that sum lacks.
  for (int rank = 0; rank < kMostRanks; ++rank) {
    if (rank != 1) SlotOf(rank, kComm).arrived = 1;
    if (rank > 1) SlotOf(rank, kEngine).arrived = 5;
  }
  EXPECT_TRUE(FindInRoundFive().ok());
  // Rank 1 waits for rank 2 now, which has posted three and waits for rank 1.
  SlotOf(2, kEngine).arrived = 3;
  EXPECT_EQ(FindInRoundFive().code(), StatusCode::kDesync);
}

TEST_F(FindDeadlockTest, RanksThatComputeMayCome) {
  Wait(1, kEngine, "step");
  EXPECT_TRUE(Find().ok());
}

TEST_F(FindDeadlockTest, ARankWhoseLibraryHasWorkMayCome) {
  Wait(0, kComm, "sum");
  Wait(1, kEngine, "step");
  SlotOf(0, kEngine).host_wait.given = 1;
  EXPECT_TRUE(Find().ok());
  SlotOf(0, kEngine).host_wait.done = 1;
  EXPECT_EQ(Find().code(), StatusCode::kDesync);
}

// The library of rank 0 waits in the engine's group, and the host for the
// second work that the library was given.
TEST_F(FindDeadlockTest, AHostWaitsUntilItsWorkIsDone) {
  Wait(0, kEngine, "acquire", 2);
  Wait(1, kComm, "sum");
  SlotOf(0, kEngine).host_wait.given = 3;
  SlotOf(0, kEngine).host_wait.done = 1;
  EXPECT_EQ(Find().code(), StatusCode::kDesync);
  SlotOf(0, kEngine).host_wait.done = 2;
  EXPECT_TRUE(Find().ok());
}

TEST_F(FindDeadlockTest, ARankWhoseRoundIsCompleteGoesOn) {
  Wait(0, kComm, "sum");
  Wait(1, kEngine, "step");
  SlotOf(1, kComm).arrived = 1;
  block(kComm)->state = State{1, -1}.Pack();
  EXPECT_TRUE(Find().ok());
}

TEST_F(FindDeadlockTest, AFailedGroupHoldsNobody) {
  Wait(0, kComm, "sum");
  Wait(1, kEngine, "step");
  block(kComm)->state = State{0, 1}.Pack();
  EXPECT_TRUE(Find().ok());
}

TEST_F(FindDeadlockTest, TheDeadWaitForNothing) {
  Wait(0, kComm, "sum");
  Wait(1, kEngine, "step");
  EXPECT_TRUE(Find([](int rank) { return rank == 0; }).ok());
  EXPECT_TRUE(Find([](int rank) { return rank == 1; }).ok());
}

// Between the two readings of rank 0's words, its wait ends and another begins.
TEST_F(FindDeadlockTest, WordsThatChangeAreNotJudged) {
  Wait(0, kComm, "sum");
  Wait(1, kEngine, "step");
  EXPECT_TRUE(Find([&](int) {
                SlotOf(0, kComm).host_wait.number += 2;
                return false;
              }).ok());
  EXPECT_EQ(Find().code(), StatusCode::kDesync);
}

}  // namespace
}  // namespace shard::direct::find_deadlock_test
