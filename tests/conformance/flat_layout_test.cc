// SPDX-License-Identifier: Apache-2.0
//
// Compares the even layout with FSDP's shards of flat parameters, exactly:
// which rank owns which elements, and how many of them are padding.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/flat/layout.h"
#include "tests/conformance/golden.h"
#include "tests/core/base/expect_status.h"

namespace shard::flat_layout_test {
namespace {

using nlohmann::json;

// Returns the slices of a rank in the form of the golden results.
json SlicesJson(const std::vector<SlotSlice>& slices) {
  json result = {{"first_param", nullptr},
                 {"last_param", nullptr},
                 {"param_offsets", json::array()}};
  for (const SlotSlice& slice : slices) {
    result["param_offsets"].push_back(
        {slice.param_begin, slice.param_begin + slice.numel - 1});
  }
  if (!slices.empty()) {
    result["first_param"] = slices.front().param;
    result["last_param"] = slices.back().param;
  }
  return result;
}

TEST(GoldenFlatLayout, RangesOfRanks) {
  const json golden = LoadGolden("flat_param_shards.json");
  size_t cases = 0;
  size_t shards = 0;
  for (const json& expected : golden["cases"]) {
    SCOPED_TRACE(::testing::Message() << "case " << cases);
    const std::vector<int64_t> numels = expected["numels"];
    std::vector<Slot> slots;
    int64_t end = 0;
    for (const int64_t numel : numels) {
      slots.push_back({static_cast<ParamId>(slots.size()), 0, numel});
      AppendSlot(1, &end, &slots.back());
    }
    const auto layout =
        FlatLayout::Even(slots, end, expected["world_size"], {});
    ASSERT_OK(layout);
    for (const json& shard : expected["shards"]) {
      const int rank = shard["rank"];
      SCOPED_TRACE(::testing::Message() << "rank " << rank);
      EXPECT_EQ(rank * layout->shard_numel(), shard["start"]);
      EXPECT_EQ((rank + 1) * layout->shard_numel() - 1, shard["end"]);
      EXPECT_EQ(layout->PaddingOf(rank), shard["num_padded"]);
      EXPECT_EQ(SlicesJson(layout->SlicesOf(rank)), shard["result"]);
      ++shards;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 20u);
  EXPECT_GE(shards, cases);
}

}  // namespace
}  // namespace shard::flat_layout_test
