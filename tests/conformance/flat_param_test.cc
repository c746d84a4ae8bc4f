// SPDX-License-Identifier: Apache-2.0
//
// Compares the metadata of flat parameters and of their shards with FSDP's,
// exactly, through the C interface.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/conformance/golden.h"

namespace shard_api_testing {
namespace {

using nlohmann::json;

// Returns a range as FSDP writes it: its first and last element.
json Inclusive(int64_t begin, int64_t numel) {
  return {begin, begin + numel - 1};
}

// Returns a plan with all parameters in one flat buffer.
Plan PlanOf(const std::vector<int64_t>& numels, int32_t world_size) {
  const Model model = EmptyModel();
  for (size_t i = 0; i < numels.size(); ++i) {
    AddParam(model.get(), "p" + std::to_string(i), {numels[i]});
  }
  Plan plan = MakePlan(model.get(), PlanOptions(world_size));
  EXPECT_EQ(InfoOf(plan).num_buffers, 1);
  return plan;
}

json OffsetsJson(const Plan& plan) {
  json offsets = json::array();
  for (int32_t param = 0; param < InfoOf(plan).num_params; ++param) {
    shard_param_info info = SHARD_PARAM_INFO_INIT;
    EXPECT_OK(shard_plan_param_info(plan.get(), param, &info));
    offsets.push_back(Inclusive(info.begin, info.numel));
  }
  return offsets;
}

json ShardJson(const shard_plan* plan, const json& shard) {
  shard_slice slices[16] = {SHARD_SLICE_INIT};
  size_t count = 0;
  const int64_t begin = shard["start"];
  int64_t padding = shard["end"].get<int64_t>() - begin + 1;
  EXPECT_OK(shard_plan_slices(plan, 0, begin, padding, slices, 16, &count));
  json result = {{"first_param", nullptr},
                 {"last_param", nullptr},
                 {"param_offsets", json::array()}};
  for (size_t i = 0; i < count; ++i) {
    result["param_offsets"].push_back(
        Inclusive(slices[i].param_begin, slices[i].numel));
    padding -= slices[i].numel;
  }
  EXPECT_EQ(padding, shard["num_padded"].get<int64_t>());
  if (count > 0) {
    result["first_param"] = slices[0].param;
    result["last_param"] = slices[count - 1].param;
  }
  return result;
}

TEST(GoldenFlatParam, Shards) {
  const json golden = shard::LoadGolden("flat_param_shards.json");
  size_t cases = 0;
  for (const json& expected : golden["cases"]) {
    SCOPED_TRACE(testing::Message() << "case " << cases);
    const Plan plan = PlanOf(expected["numels"], expected["world_size"]);
    EXPECT_EQ(OffsetsJson(plan), expected["offsets"]);
    for (const json& shard : expected["shards"]) {
      SCOPED_TRACE(shard["rank"]);
      EXPECT_EQ(ShardJson(plan.get(), shard), shard["result"]);
    }
    ++cases;
  }
  EXPECT_EQ(cases, 20u);
}

}  // namespace
}  // namespace shard_api_testing
