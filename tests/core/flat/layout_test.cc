// SPDX-License-Identifier: Apache-2.0

#include "core/flat/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "tests/core/base/expect_status.h"

namespace shard::layout_test {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Returns slots that the layouts of a test may keep until its process ends.
std::span<Slot> SlotsOf(const std::vector<ParamId>& params,
                        const std::vector<int64_t>& numels) {
  static std::deque<std::vector<Slot>> all;
  std::vector<Slot>& slots = all.emplace_back();
  for (size_t i = 0; i < params.size(); ++i) {
    slots.push_back({params[i], -1, numels[i]});
  }
  return slots;
}

std::vector<ParamId> Ids(size_t count) {
  std::vector<ParamId> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

StatusOr<FlatLayout> MakeEven(const std::vector<ParamId>& params,
                              const std::vector<int64_t>& numels,
                              int world_size, FlatLayout::Alignment alignment) {
  const std::span<Slot> slots = SlotsOf(params, numels);
  int64_t end = 0;
  for (Slot& slot : slots) AppendSlot(alignment.slot, &end, &slot);
  return FlatLayout::Even(slots, end, world_size, alignment);
}

StatusOr<FlatLayout> MakeOwned(const std::vector<ParamId>& params,
                               const std::vector<int64_t>& numels,
                               const std::vector<int32_t>& owners,
                               int world_size,
                               FlatLayout::Alignment alignment) {
  return FlatLayout::Owned(SlotsOf(params, numels), owners, world_size,
                           alignment);
}

FlatLayout Even(const std::vector<int64_t>& numels, int world_size,
                FlatLayout::Alignment alignment = {}) {
  auto layout = MakeEven(Ids(numels.size()), numels, world_size, alignment);
  EXPECT_OK(layout);
  return *std::move(layout);
}

// Expects everything that holds of every layout.
void ExpectSound(const FlatLayout& layout, const std::vector<int64_t>& numels,
                 int world_size, FlatLayout::Alignment alignment) {
  EXPECT_EQ(layout.world_size(), world_size);
  EXPECT_EQ(layout.shard_numel() % alignment.shard, 0);
  EXPECT_EQ(layout.shard_numel() % alignment.slot, 0);
  EXPECT_EQ(layout.padded_numel(), layout.shard_numel() * world_size);
  EXPECT_EQ(layout.numel(),
            std::accumulate(numels.begin(), numels.end(), int64_t{0}));

  // Slots have each parameter once, in order, without overlap, and inside the
  // buffer.
  ASSERT_EQ(layout.slots().size(), numels.size());
  std::vector<int> times(numels.size(), 0);
  int64_t end = 0;
  for (const Slot& slot : layout.slots()) {
    EXPECT_GE(slot.offset, end);
    EXPECT_EQ(slot.offset % alignment.slot, 0);
    end = slot.offset + slot.numel;
    EXPECT_EQ(slot.numel, numels[static_cast<size_t>(slot.param)]);
    ++times[static_cast<size_t>(slot.param)];
  }
  EXPECT_LE(end, layout.padded_numel());
  for (const int count : times) EXPECT_EQ(count, 1);

  // Slices cut every parameter into consecutive pieces, and fill a rank's range
  // from its front; the rest is padding.
  std::map<ParamId, int64_t> next;
  for (int rank = 0; rank < world_size; ++rank) {
    int64_t at = rank * layout.shard_numel();
    int64_t elements = 0;
    for (const SlotSlice& slice : layout.SlicesOf(rank)) {
      EXPECT_GT(slice.numel, 0);
      // Parameters begin at the next multiple of the slot alignment.
      if (slice.param_begin == 0) {
        at += (alignment.slot - at % alignment.slot) % alignment.slot;
      }
      EXPECT_EQ(slice.flat_begin, at);
      EXPECT_EQ(slice.param_begin, next[slice.param]);
      at += slice.numel;
      elements += slice.numel;
      next[slice.param] += slice.numel;
    }
    EXPECT_EQ(layout.shard_numel() - elements, layout.PaddingOf(rank));
  }
  for (size_t i = 0; i < numels.size(); ++i) {
    EXPECT_EQ(next[static_cast<ParamId>(i)], numels[i]);
  }
}

TEST(EvenLayout, CutsTheConcatenation) {
  const FlatLayout layout = Even({100, 3, 1}, 3);
  EXPECT_EQ(layout.shard_numel(), 35);
  EXPECT_EQ(layout.PaddingOf(0), 0);
  EXPECT_EQ(layout.PaddingOf(2), 1);
  const auto last = layout.SlicesOf(2);
  ASSERT_EQ(last.size(), 3u);
  EXPECT_EQ(last[0].param, 0);
  EXPECT_EQ(last[0].flat_begin, 70);
  EXPECT_EQ(last[0].param_begin, 70);
  EXPECT_EQ(last[0].numel, 30);
  EXPECT_EQ(last[2].numel, 1);
}

TEST(EvenLayout, AlignsEveryRange) {
  const FlatLayout layout = Even({100, 3, 1}, 3, {16});
  EXPECT_EQ(layout.shard_numel(), 48);
  EXPECT_EQ(layout.PaddingOf(1), 0);
  EXPECT_EQ(layout.PaddingOf(2), 40);
}

TEST(EvenLayout, MayHaveMoreRanksThanElements) {
  const FlatLayout layout = Even({2, 1}, 16384);
  EXPECT_EQ(layout.shard_numel(), 1);
  EXPECT_EQ(layout.PaddingOf(2), 0);
  EXPECT_EQ(layout.PaddingOf(3), 1);
  EXPECT_EQ(layout.PaddingOf(16383), 1);
  EXPECT_TRUE(layout.SlicesOf(16383).empty());
  ExpectSound(layout, {2, 1}, 16384, {});
}

TEST(EvenLayout, ZeroSizeParametersHaveSlotsAndNoSlices) {
  const FlatLayout layout = Even({0, 5, 0, 0, 3, 0}, 2);
  ExpectSound(layout, {0, 5, 0, 0, 3, 0}, 2, {});
  EXPECT_EQ(layout.slots()[2].offset, 5);
  const FlatLayout nothing = Even({0, 0}, 4, {16});
  EXPECT_EQ(nothing.shard_numel(), 0);
  EXPECT_EQ(nothing.PaddingOf(3), 0);
  EXPECT_TRUE(nothing.SlicesOf(0).empty());
  ExpectSound(Even({}, 3), {}, 3, {});
}

TEST(FlatLayout, FindsTheSlicesOfAnyRange) {
  const FlatLayout layout = Even({4, 0, 6}, 4, {4});
  EXPECT_EQ(layout.padded_numel(), 16);
  const auto slices = layout.Slices(2, 7);
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].param, 0);
  EXPECT_EQ(slices[0].param_begin, 2);
  EXPECT_EQ(slices[0].numel, 2);
  EXPECT_EQ(slices[1].param, 2);
  EXPECT_EQ(slices[1].flat_begin, 4);
  EXPECT_EQ(slices[1].numel, 3);
  EXPECT_TRUE(layout.Slices(5, 5).empty());
  EXPECT_TRUE(layout.Slices(7, 2).empty());
  EXPECT_TRUE(layout.Slices(10, 16).empty());  // It is all padding.
  EXPECT_EQ(layout.Slices(-100, 100).size(), 2u);
}

TEST(FlatLayout, ChecksThatStorageHoldsTheBuffer) {
  const FlatLayout even = Even({4, 0, 6}, 4, {4});
  EXPECT_EQ(even.extent(), 10);
  EXPECT_OK(even.CheckStorage(10));
  EXPECT_OK(even.CheckStorage(16));
  for (const int64_t numel : {-1, 0, 9, 11, 15, 17}) {
    ExpectInvalid(even.CheckStorage(numel), {"16, or 10"});
  }
  const auto owned = MakeOwned({0, 1}, {10, 4}, {0, 1}, 2, {8});
  ASSERT_OK(owned);
  EXPECT_EQ(owned->extent(), 20);
  EXPECT_OK(owned->CheckStorage(20));
  EXPECT_OK(owned->CheckStorage(32));
  ExpectInvalid(owned->CheckStorage(14), {"14", "32, or 20"});
  EXPECT_EQ(FlatLayout().extent(), 0);
}

TEST(OwnedLayout, PutsWholeParametersIntoTheirOwnersRange) {
  const auto layout = MakeOwned({7, 5, 9}, {10, 20, 4}, {2, 0, 2}, 3, {8});
  ASSERT_OK(layout);
  EXPECT_EQ(layout->shard_numel(), 24);
  ASSERT_EQ(layout->slots().size(), 3u);
  EXPECT_EQ(layout->slots()[0].param, 5);
  EXPECT_EQ(layout->slots()[0].offset, 0);
  EXPECT_EQ(layout->slots()[1].param, 7);
  EXPECT_EQ(layout->slots()[1].offset, 48);
  EXPECT_EQ(layout->slots()[2].param, 9);
  EXPECT_EQ(layout->slots()[2].offset, 58);
  EXPECT_EQ(layout->PaddingOf(0), 4);
  EXPECT_EQ(layout->PaddingOf(1), 24);
  EXPECT_EQ(layout->PaddingOf(2), 10);
}

// The layout does not look at every rank.
TEST(OwnedLayout, MayBelongToAFewOfAMillionRanks) {
  for (int i = 0; i < 10000; ++i) {
    const auto layout = MakeOwned({7, 5, 9}, {10, 20, 4}, {1000000, 0, 1000000},
                                  kMaxWorldSize, {8});
    ASSERT_OK(layout);
    ASSERT_EQ(layout->slots().size(), 3u);
    EXPECT_EQ(layout->shard_numel(), 24);
    EXPECT_EQ(layout->slots()[0].param, 5);
    EXPECT_EQ(layout->slots()[1].param, 7);
    EXPECT_EQ(layout->slots()[1].offset, 24000000);
    EXPECT_EQ(layout->slots()[2].offset, 24000010);
  }
}

TEST(FlatLayout, RandomOnesAreSound) {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const int world_size = 1 + static_cast<int>(random() % 40);
    FlatLayout::Alignment alignment;
    alignment.shard = static_cast<int64_t>(1 + random() % 20);
    alignment.slot = static_cast<int64_t>(random() % 2 ? 1 : 1 + random() % 9);
    std::vector<int64_t> numels(random() % 60);
    for (int64_t& numel : numels) {
      numel = static_cast<int64_t>(random() % (random() % 3 ? 200 : 2));
    }
    ExpectSound(Even(numels, world_size, alignment), numels, world_size,
                alignment);

    std::vector<int32_t> owners(numels.size());
    for (int32_t& owner : owners) {
      owner =
          static_cast<int32_t>(random() % static_cast<unsigned>(world_size));
    }
    const auto owned =
        MakeOwned(Ids(numels.size()), numels, owners, world_size, alignment);
    ASSERT_OK(owned);
    ExpectSound(*owned, numels, world_size, alignment);
    for (int rank = 0; rank < world_size; ++rank) {
      ParamId before = -1;
      for (const SlotSlice& slice : owned->SlicesOf(rank)) {
        const auto param = static_cast<size_t>(slice.param);
        EXPECT_EQ(owners[param], rank);
        EXPECT_EQ(slice.numel, numels[param]);  // It is whole.
        EXPECT_GT(slice.param, before);  // It is in the order that was given.
        before = slice.param;
      }
    }
  }
}

TEST(FlatLayout, HoldsSixteenThousandRanks) {
  std::mt19937 random(4);
  std::vector<int64_t> numels(3000);
  std::vector<int32_t> owners(numels.size());
  for (size_t i = 0; i < numels.size(); ++i) {
    numels[i] = static_cast<int64_t>(random() % 5000);
    owners[i] = static_cast<int32_t>(random() % 16384);
  }
  ExpectSound(Even(numels, 16384, {16}), numels, 16384, {16});
  const auto owned = MakeOwned(Ids(numels.size()), numels, owners, 16384, {16});
  ASSERT_OK(owned);
  ExpectSound(*owned, numels, 16384, {16});
}

TEST(FlatLayout, BadInputsAreNamed) {
  ExpectInvalid(MakeEven({0}, {1}, 0, {1}), {"world size 0"});
  ExpectInvalid(MakeEven({0}, {1}, kMaxWorldSize + 1, {1}), {"1048577"});
  ExpectInvalid(MakeEven({0}, {1}, 1, {0}), {"alignment 0"});
  ExpectInvalid(FlatLayout::Even({}, 0, 1, {1, -8}), {"alignment -8"});
  ExpectInvalid(MakeOwned({0}, {1}, {}, 1, {1}), {"0 owners"});
  ExpectInvalid(MakeOwned({6}, {1}, {2}, 2, {1}),
                {"parameter 6", "rank 2", "world size is 2"});
  ExpectInvalid(MakeOwned({6}, {1}, {-1}, 2, {1}), {"rank -1"});
  ExpectInvalid(MakeOwned({6}, {-1}, {0}, 2, {1}), {"-1 elements"});
}

TEST(FlatLayout, TotalsBeyondInt64AreErrors) {
  ExpectInvalid(MakeEven({0, 1}, {kMax, 1}, 1, {1}), {"2^63-1"});
  ExpectInvalid(MakeEven({0}, {kMax}, 1, {64}), {"aligned to 64"});
  ExpectInvalid(MakeEven({0}, {kMax}, 2, {1}), {"2 ranges"});
  ExpectInvalid(MakeOwned({0, 1}, {kMax, 1}, {0, 1}, 2, {1}), {"2^63-1"});
  ExpectInvalid(MakeOwned({0}, {kMax / 2}, {0}, 3, {1}), {"3 ranges"});
  ExpectInvalid(MakeEven({0}, {1}, 1, {kMax, 2}), {"aligned to"});
  ExpectInvalid(MakeEven({0, 1}, {kMax - 2, 1}, 1, {1, 256}), {"2^63-1"});
  EXPECT_EQ(Even({kMax}, 1).padded_numel(), kMax);
}

}  // namespace
}  // namespace shard::layout_test
