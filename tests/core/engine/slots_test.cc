// SPDX-License-Identifier: Apache-2.0

#include "core/engine/memory/slots.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/core/engine/unit_training.h"

namespace shard::slots_test {
namespace {

// Returns a plan with the root (0) at depth 0 and the blocks 1 to 5 at depth 1.
std::shared_ptr<const Plan> MakePlan() {
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  for (int b = 0; b < 5; ++b) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("b", b), "Block");
    EXPECT_TRUE(training.model->AddParam(block, "w", DType::kF32, {3}).ok());
  }
  training.wrap = "class?names=Block";
  return *PlanOf(training);
}

class SlotsTest : public ::testing::Test {
 protected:
  // Takes the slot that Choose returns.
  int Take(int32_t unit) {
    const int slot = slots_.Choose(unit);
    if (slot >= 0) slots_.Take(unit, slot);
    return slot;
  }

  const std::shared_ptr<const Plan> plan_ = MakePlan();
  Slots slots_{*plan_, {{1, 4096}, {3, 4096}}};
};

TEST_F(SlotsTest, DepthsHaveSlotsOfTheirOwn) {
  EXPECT_EQ(Take(0), 0);
  EXPECT_EQ(slots_.Choose(0), -1);
  EXPECT_EQ(Take(1), 0);
  EXPECT_EQ(Take(2), 1);
  EXPECT_EQ(Take(3), 2);
  EXPECT_EQ(slots_.Choose(4), -1);
  EXPECT_EQ(slots_.OtherUsers(4), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(slots_.OtherUsers(0), (std::vector<int32_t>{0}));
  EXPECT_EQ(slots_.Find(3), 2);
  EXPECT_EQ(slots_.Find(4), -1);
}

TEST_F(SlotsTest, WorksWithoutSlots) {
  Slots none(*plan_, {{0, 0}, {0, 0}});
  EXPECT_EQ(none.Find(2), -1);
  EXPECT_EQ(none.Choose(2), -1);
  EXPECT_TRUE(none.OtherUsers(2).empty());
  none.Release(2);
  none.Drop(2);
  none.DropAll();
}

TEST_F(SlotsTest, ReleasedSlotsKeepTheirUnits) {
  for (const int32_t unit : {1, 2, 3}) Take(unit);
  slots_.Release(2);
  EXPECT_EQ(slots_.Find(2), 1);
  EXPECT_EQ(slots_.OtherUsers(2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(Take(5), 1);
  EXPECT_EQ(slots_.Find(2), -1);
}

TEST_F(SlotsTest, LeastRecentlyUsedGoesFirst) {
  for (const int32_t unit : {1, 2, 3}) Take(unit);
  for (const int32_t unit : {3, 1, 2}) slots_.Release(unit);
  // The slot that was used least recently goes first, whatever the order of
  // releases. Using a unit again counts as a use.
  slots_.Take(1, slots_.Find(1));
  slots_.Release(1);
  EXPECT_EQ(slots_.Choose(4), 1);
  EXPECT_EQ(Take(4), 1);
  EXPECT_EQ(Take(5), 2);
  EXPECT_EQ(slots_.Find(1), 0);
}

TEST_F(SlotsTest, EmptySlotsGoBeforeOthers) {
  for (const int32_t unit : {1, 2, 3}) Take(unit);
  slots_.Release(1);
  slots_.Drop(3);
  EXPECT_EQ(slots_.Find(3), -1);
  EXPECT_EQ(slots_.Choose(4), 2);
}

TEST_F(SlotsTest, UnitsAreKept) {
  for (const int32_t unit : {1, 2, 3}) Take(unit);
  for (const int32_t unit : {1, 2, 3}) slots_.Release(unit);
  const std::vector<int32_t> first = {1, 4};
  EXPECT_EQ(slots_.Choose(5, first), 1);
  const std::vector<int32_t> all = {3, 1, 2};
  EXPECT_EQ(slots_.Choose(5, all), -1);
  // An empty slot is nobody's.
  slots_.Drop(3);
  EXPECT_EQ(slots_.Choose(5, all), 2);
}

// The transfer into a dropped slot may still be in progress, so the slot is the
// last to be taken again.
TEST_F(SlotsTest, EmptySlotsAreTakenInTurn) {
  EXPECT_EQ(Take(1), 0);
  slots_.Drop(1);
  EXPECT_EQ(Take(2), 1);
  slots_.Drop(2);
  EXPECT_EQ(Take(3), 2);
  slots_.Drop(3);
  EXPECT_EQ(Take(4), 0);
}

TEST_F(SlotsTest, DropAllLeavesUnitsInUse) {
  for (const int32_t unit : {1, 2, 3}) Take(unit);
  slots_.Release(1);
  slots_.Release(3);
  slots_.DropAll();
  EXPECT_EQ(slots_.Find(1), -1);
  EXPECT_EQ(slots_.Find(2), 1);
  EXPECT_EQ(slots_.Find(3), -1);
}

TEST_F(SlotsTest, EventsStayWithTheSlot) {
  Take(1);
  slots_.SetEvent(1, Event(Internal("of unit 1")));
  slots_.Drop(1);
  EXPECT_EQ(slots_.event(1, 0).Synchronize(Deadline::After(1)).message(),
            "of unit 1");
  EXPECT_TRUE(slots_.event(1, 1).Synchronize(Deadline::After(1)).ok());
}

}  // namespace
}  // namespace shard::slots_test
