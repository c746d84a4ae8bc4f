// SPDX-License-Identifier: Apache-2.0

#include "core/engine/slots.h"

#include <gtest/gtest.h>

#include <memory>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/optim/groups.h"

namespace shard {
namespace {

// Unit 0 is the root; those from 1 on are nested in it.
class SlotsTest : public testing::Test {
 protected:
  static constexpr int kBlocks = 6;

  // Blocks have 1 + `prefetch` slots.
  Slots Make(int prefetch) {
    auto model = std::make_shared<Model>("Root");
    EXPECT_TRUE(model->AddParam(kRootModule, "p", DType::kF32, {64}).ok());
    for (int b = 0; b < kBlocks; ++b) {
      const auto block =
          model->AddModule(kRootModule, StrCat("block", b), "Block");
      EXPECT_TRUE(block.ok());
      EXPECT_TRUE(model->AddParam(*block, "p", DType::kF32, {4096}).ok());
    }
    PlanOptions options;
    options.stage = 3;
    options.world_size = 4;
    options.prefetch = prefetch;
    options.groups = *PlanGroups(*model, "adamw");
    options.wrap = *WrapPolicy::Parse("class?names=Block");
    plan_ = *Plan::Create(model, options);
    EXPECT_TRUE(plan_->shards_grads());
    EXPECT_EQ(plan_->grad_slots()[1].count, 1 + prefetch);
    return Slots(*plan_, plan_->grad_slots());
  }

  std::shared_ptr<const Plan> plan_;
};

TEST_F(SlotsTest, OneThatIsInUseIsNotChosen) {
  Slots slots = Make(1);
  slots.Take(1, slots.Choose(1));
  const int second = slots.Choose(2);
  EXPECT_NE(second, slots.Find(1));
  slots.Take(2, second);
  EXPECT_EQ(slots.Choose(3), -1);
  slots.Release(1);
  EXPECT_EQ(slots.Choose(3), slots.Find(1));
}

TEST_F(SlotsTest, WhatWasUsedLeastRecentlyGoesFirst) {
  Slots slots = Make(2);
  for (const int32_t unit : {1, 2, 3}) slots.Take(unit, slots.Choose(unit));
  for (const int32_t unit : {3, 2, 1}) slots.Release(unit);
  EXPECT_EQ(slots.Choose(4), slots.Find(1));
  slots.Take(1, slots.Find(1));
  slots.Release(1);
  EXPECT_EQ(slots.Choose(4), slots.Find(2));
}

TEST_F(SlotsTest, AnEmptyOneGoesBeforeOneThatHoldsSomething) {
  Slots slots = Make(1);
  for (const int32_t unit : {1, 2}) slots.Take(unit, slots.Choose(unit));
  slots.Release(1);
  const int dropped = slots.Find(2);
  slots.Drop(2);
  EXPECT_EQ(slots.Choose(3), dropped);
}

// What was in a dropped slot is still being reduced: with the others at hand,
// the next unit need not wait for it.
TEST_F(SlotsTest, DroppedSlotsTakeTurns) {
  Slots slots = Make(1);
  int last = -1;
  for (int32_t unit = 1; unit <= kBlocks; ++unit) {
    const int slot = slots.Choose(unit);
    EXPECT_NE(slot, last) << "unit " << unit;
    slots.Take(unit, slot);
    slots.Drop(unit);
    last = slot;
  }
}

}  // namespace
}  // namespace shard
