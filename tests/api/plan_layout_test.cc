// SPDX-License-Identifier: Apache-2.0
//
// The places in a plan: parameters, flat buffers, ranges, slices, views.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/api/sharded_plans.h"

namespace shard_api_testing::plan_layout_test {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

shard_param_info ParamInfo(const Plan& plan, int32_t param) {
  shard_param_info info = SHARD_PARAM_INFO_INIT;
  EXPECT_OK(shard_plan_param_info(plan.get(), param, &info));
  return info;
}

shard_buffer_info BufferInfo(const Plan& plan, int32_t buffer) {
  shard_buffer_info info = SHARD_BUFFER_INFO_INIT;
  EXPECT_OK(shard_plan_buffer_info(plan.get(), buffer, &info));
  return info;
}

shard_range RangeOf(const Plan& plan, int32_t buffer, int32_t rank) {
  shard_range range = SHARD_RANGE_INIT;
  EXPECT_OK(shard_plan_rank_range(plan.get(), buffer, rank, &range));
  return range;
}

std::vector<shard_slice> Slices(const Plan& plan, int32_t buffer, int64_t begin,
                                int64_t numel) {
  size_t count = 0;
  EXPECT_OK(
      shard_plan_slices(plan.get(), buffer, begin, numel, nullptr, 0, &count));
  std::vector<shard_slice> slices(count);
  if (count > 0) slices[0].struct_size = sizeof(shard_slice);
  size_t again = 99;
  EXPECT_OK(shard_plan_slices(plan.get(), buffer, begin, numel, slices.data(),
                              count, &again));
  EXPECT_EQ(again, count);
  return slices;
}

TEST(PlanLayoutTest, Params) {
  const Model model = SmallModel();
  const int32_t half = AddParam(model.get(), "half", {2, 1, 2}, SHARD_BF16);
  int32_t group = 0;
  EXPECT_OK(shard_model_add_param_group(model.get(), "sgd", &half, 1, &group));
  EXPECT_OK(shard_model_tie(model.get(), 0, "alias", kWeight));
  const Plan plan = MakePlan(model.get(), PlanOptions(1));
  EXPECT_EQ(InfoOf(plan).num_params, 6);

  const shard_param_info weight = ParamInfo(plan, kWeight);
  EXPECT_EQ(weight.numel, 12);
  EXPECT_EQ(weight.begin, 0);
  EXPECT_EQ(weight.ndim, 2);
  EXPECT_EQ(weight.shape[0], 4);
  EXPECT_EQ(weight.shape[1], 3);
  EXPECT_EQ(weight.shape[2], 0);
  EXPECT_EQ(weight.dtype, SHARD_F32);
  EXPECT_EQ(weight.trainable, 1);
  EXPECT_EQ(weight.group, 0);
  EXPECT_EQ(weight.unit, 0);
  EXPECT_EQ(weight.num_names, 2);
  EXPECT_EQ(weight.first_rank, 0);
  EXPECT_EQ(weight.last_rank, 0);

  const shard_param_info bias = ParamInfo(plan, kBias);
  EXPECT_EQ(bias.buffer, weight.buffer);
  EXPECT_EQ(bias.begin, 12);
  EXPECT_EQ(bias.numel, 3);
  EXPECT_EQ(bias.num_names, 1);

  const shard_param_info frozen = ParamInfo(plan, kFrozen);
  EXPECT_EQ(frozen.trainable, 0);
  EXPECT_NE(frozen.buffer, weight.buffer);
  EXPECT_EQ(frozen.begin, 0);

  const shard_param_info other = ParamInfo(plan, half);
  EXPECT_EQ(other.dtype, SHARD_BF16);
  EXPECT_EQ(other.group, group);
  EXPECT_EQ(other.ndim, 3);

  const shard_param_info empty = ParamInfo(plan, kEmpty);
  EXPECT_EQ(empty.numel, 0);
  EXPECT_EQ(empty.first_rank, -1);
  EXPECT_EQ(empty.last_rank, -1);

  shard_param_info info = SHARD_PARAM_INFO_INIT;
  info.numel = 5;
  EXPECT_FAILS(shard_plan_param_info(plan.get(), kIgnored, &info),
               SHARD_FAILED_PRECONDITION, "'ignored' is ignored");
  EXPECT_EQ(info.numel, 0);
  for (const int32_t bad : {-1, 6, INT32_MAX}) {
    EXPECT_FAILS(shard_plan_param_info(plan.get(), bad, &info),
                 SHARD_INVALID_ARGUMENT, "parameter", std::to_string(bad), "6");
  }
  EXPECT_FAILS(shard_plan_param_info(nullptr, 0, &info), SHARD_INVALID_ARGUMENT,
               "plan is NULL");
  EXPECT_FAILS(shard_plan_param_info(plan.get(), 0, nullptr),
               SHARD_INVALID_ARGUMENT, "info is NULL");
}

// A shape may have SHARD_MAX_DIMS dimensions. The dtype is that of param_dtype.
TEST(PlanLayoutTest, ShapesAndDTypesAsStored) {
  const Model model = EmptyModel();
  AddParam(model.get(), "deep", {1, 2, 1, 2, 1, 2, 1, 3});
  AddParam(model.get(), "scalar", {});
  shard_plan_options options = PlanOptions(2);
  options.param_dtype = SHARD_F16;
  const Plan plan = MakePlan(model.get(), options);
  const shard_param_info deep = ParamInfo(plan, 0);
  EXPECT_EQ(deep.ndim, SHARD_MAX_DIMS);
  EXPECT_EQ(deep.shape[7], 3);
  EXPECT_EQ(deep.dtype, SHARD_F16);
  EXPECT_EQ(deep.numel, 24);
  const shard_param_info scalar = ParamInfo(plan, 1);
  EXPECT_EQ(scalar.ndim, 0);
  EXPECT_EQ(scalar.numel, 1);
  EXPECT_EQ(scalar.shape[0], 0);
}

TEST(PlanLayoutTest, Buffers) {
  const Plan plan = SmallPlan(3);
  ASSERT_EQ(InfoOf(plan).num_buffers, 2);
  const int32_t trained = ParamInfo(plan, kWeight).buffer;
  const int32_t held = ParamInfo(plan, kFrozen).buffer;

  const shard_buffer_info info = BufferInfo(plan, trained);
  EXPECT_EQ(info.full_numel, 15);
  EXPECT_EQ(info.num_params, 3);  // weight, bias, empty
  EXPECT_EQ(info.full_numel + info.num_padded, 3 * info.shard_numel);
  EXPECT_EQ(info.unit, 0);
  EXPECT_EQ(info.dtype, SHARD_F32);
  EXPECT_EQ(info.trainable, 1);
  EXPECT_EQ(info.group, 0);
  EXPECT_EQ(info.grad_dtype, SHARD_F32);
  const shard_buffer_info frozen = BufferInfo(plan, held);
  EXPECT_EQ(frozen.trainable, 0);
  EXPECT_EQ(frozen.group, -1);
  EXPECT_EQ(frozen.grad_dtype, 0);
  EXPECT_EQ(frozen.full_numel, 5);

  const std::vector<int32_t> params = {kWeight, kBias, kEmpty};
  for (int32_t i = 0; i < 3; ++i) {
    int32_t param = -7;
    EXPECT_OK(shard_plan_buffer_param(plan.get(), trained, i, &param));
    EXPECT_EQ(param, params[static_cast<size_t>(i)]);
  }
  int32_t param = -7;
  for (const int32_t bad : {-1, 3, INT32_MAX}) {
    EXPECT_FAILS(shard_plan_buffer_param(plan.get(), trained, bad, &param),
                 SHARD_INVALID_ARGUMENT, "index " + std::to_string(bad), "3");
    EXPECT_EQ(param, 0);
  }
  shard_buffer_info out = SHARD_BUFFER_INFO_INIT;
  for (const int32_t bad : {-1, 2, INT32_MAX}) {
    out.full_numel = 9;
    EXPECT_FAILS(shard_plan_buffer_info(plan.get(), bad, &out),
                 SHARD_INVALID_ARGUMENT, "buffer " + std::to_string(bad), "2");
    EXPECT_EQ(out.full_numel, 0);
    EXPECT_FAILS(shard_plan_buffer_param(plan.get(), bad, 0, &param),
                 SHARD_INVALID_ARGUMENT, "buffer " + std::to_string(bad), "2");
  }
  EXPECT_FAILS(shard_plan_buffer_info(nullptr, 0, &out), SHARD_INVALID_ARGUMENT,
               "plan is NULL");
  EXPECT_FAILS(shard_plan_buffer_info(plan.get(), 0, nullptr),
               SHARD_INVALID_ARGUMENT, "info is NULL");
  EXPECT_FAILS(shard_plan_buffer_param(nullptr, 0, 0, &param),
               SHARD_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_FAILS(shard_plan_buffer_param(plan.get(), 0, 0, nullptr),
               SHARD_INVALID_ARGUMENT, "param is NULL");
}

// For every partition, the ranks' ranges make up the buffer, their slices make
// up the parameters, and each slice is on a rank that the parameter's info
// names.
TEST(PlanLayoutTest, RangesAndSlicesAreEverythingOnce) {
  const Model model = SmallModel();
  AddParam(model.get(), "large", {100});
  AddBlocks(model.get());
  for (const int32_t partition :
       {SHARD_PARTITION_EVEN, SHARD_PARTITION_GREEDY, SHARD_PARTITION_BUCKET}) {
    SCOPED_TRACE(partition);
    shard_plan_options options = PlanOptions(4);
    options.partition = partition;
    options.stage = 3;
    options.shard_group_size = 2;
    options.wrap = "class?names=Block";
    const Plan plan = MakePlan(model.get(), options);
    ExpectShardsAsItsStage(plan);
    std::vector<int64_t> seen(14, 0);
    for (int32_t b = 0; b < InfoOf(plan).num_buffers; ++b) {
      const shard_buffer_info buffer = BufferInfo(plan, b);
      std::vector<int64_t> begins;
      int64_t padding = 0;
      for (int32_t rank = 0; rank < 4; ++rank) {
        const shard_range range = RangeOf(plan, b, rank);
        EXPECT_EQ(range.numel, buffer.shard_numel);
        begins.push_back(range.begin);
        padding += range.num_padded;
        int64_t elements = 0;
        for (const shard_slice& s : Slices(plan, b, range.begin, range.numel)) {
          const shard_param_info param = ParamInfo(plan, s.param);
          EXPECT_EQ(param.buffer, b);
          EXPECT_EQ(s.begin, param.begin + s.param_begin);
          EXPECT_GE(s.begin, range.begin);
          EXPECT_LE(s.begin + s.numel, range.begin + range.numel);
          elements += s.numel;
          seen[static_cast<size_t>(s.param)] += s.numel;
          EXPECT_EQ(s.param_begin == 0, param.first_rank == rank);
          EXPECT_EQ(s.param_begin + s.numel == param.numel,
                    param.last_rank == rank);
        }
        EXPECT_EQ(elements + range.num_padded, buffer.shard_numel);
      }
      EXPECT_EQ(padding, buffer.num_padded);
      std::sort(begins.begin(), begins.end());
      for (size_t i = 0; i < begins.size(); ++i) {
        EXPECT_EQ(begins[i], static_cast<int64_t>(i) * buffer.shard_numel);
      }
    }
    std::vector<int64_t> all = {12, 3, 5, 0, 0, 100};
    all.resize(14, 1100);
    EXPECT_EQ(seen, all);
  }
}

TEST(PlanLayoutTest, BadRangesAreNamed) {
  const Plan plan = SmallPlan(2);
  shard_range range = SHARD_RANGE_INIT;
  for (const int32_t bad : {-1, 2, INT32_MAX}) {
    range.numel = 7;
    EXPECT_FAILS(shard_plan_rank_range(plan.get(), 0, bad, &range),
                 SHARD_INVALID_ARGUMENT, "rank " + std::to_string(bad),
                 "world size 2");
    EXPECT_EQ(range.numel, 0);
  }
  EXPECT_FAILS(shard_plan_rank_range(plan.get(), 2, 0, &range),
               SHARD_INVALID_ARGUMENT, "buffer 2");
  EXPECT_FAILS(shard_plan_rank_range(nullptr, 0, 0, &range),
               SHARD_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_FAILS(shard_plan_rank_range(plan.get(), 0, 0, nullptr),
               SHARD_INVALID_ARGUMENT, "range is NULL");
}

TEST(PlanLayoutTest, SlicesOfAnyRange) {
  const Plan plan = SmallPlan(2);  // weight: 12 elements, bias: 3
  const int32_t buffer = ParamInfo(plan, kWeight).buffer;
  const std::vector<shard_slice> slices = Slices(plan, buffer, 4, 9);
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].struct_size, sizeof(shard_slice));
  EXPECT_EQ(slices[0].param, kWeight);
  EXPECT_EQ(slices[0].begin, 4);
  EXPECT_EQ(slices[0].numel, 8);
  EXPECT_EQ(slices[0].param_begin, 4);
  EXPECT_EQ(slices[1].struct_size, sizeof(shard_slice));
  EXPECT_EQ(slices[1].param, kBias);
  EXPECT_EQ(slices[1].begin, 12);
  EXPECT_EQ(slices[1].numel, 1);
  EXPECT_EQ(slices[1].param_begin, 0);
  EXPECT_TRUE(Slices(plan, buffer, 15, 17).empty());  // It is all padding.
  EXPECT_TRUE(Slices(plan, buffer, 4, 0).empty());
  EXPECT_TRUE(Slices(plan, buffer, kMax, kMax).empty());
  EXPECT_EQ(Slices(plan, buffer, 0, kMax).size(), 2u);

  // A short array is filled, and `count` is the number of all slices.
  shard_slice one[2] = {SHARD_SLICE_INIT, SHARD_SLICE_INIT};
  one[1].param = 77;
  size_t count = 0;
  EXPECT_OK(shard_plan_slices(plan.get(), buffer, 0, 15, one, 1, &count));
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(one[0].param, kWeight);
  EXPECT_EQ(one[1].param, 77);
}

TEST(PlanLayoutTest, BadSlicesAreNamed) {
  const Plan plan = SmallPlan(2);
  constexpr shard_code kBad = SHARD_INVALID_ARGUMENT;
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  size_t count = 99;
  EXPECT_FAILS(shard_plan_slices(plan.get(), 0, -1, 4, nullptr, 0, &count),
               kBad, "begin -1 and numel 4", "at least 0");
  EXPECT_EQ(count, 0u);
  EXPECT_FAILS(shard_plan_slices(plan.get(), 0, 5, -1, nullptr, 0, &count),
               kBad, "begin 5 and numel -1", "at least 0");
  EXPECT_FAILS(shard_plan_slices(plan.get(), 0, kMin, kMin, nullptr, 0, &count),
               kBad, "at least 0");
  count = 99;
  shard_slice slice = SHARD_SLICE_INIT;
  EXPECT_FAILS(shard_plan_slices(plan.get(), 7, 0, 2, &slice, 1, &count), kBad,
               "buffer 7");
  EXPECT_EQ(count, 0u);
  EXPECT_FAILS(shard_plan_slices(nullptr, 0, 0, 2, &slice, 1, &count), kBad,
               "plan is NULL");
  EXPECT_FAILS(shard_plan_slices(plan.get(), 0, 0, 2, nullptr, 1, &count), kBad,
               "slices is NULL");
  EXPECT_FAILS(shard_plan_slices(plan.get(), 0, 0, 2, &slice, 1, nullptr), kBad,
               "count is NULL");
  slice.struct_size = 0;
  EXPECT_FAILS(shard_plan_slices(plan.get(), 0, 0, 2, &slice, 1, &count), kBad,
               "shard_slice.struct_size is 0");
}

TEST(PlanLayoutTest, Views) {
  const Model model = EmptyModel();
  const int32_t a = AddParam(model.get(), "a", {2, 3}, SHARD_BF16);
  const int32_t b = AddParam(model.get(), "b", {4}, SHARD_BF16);
  const Plan plan = MakePlan(model.get(), PlanOptions(2));
  const shard_buffer_info buffer = BufferInfo(plan, 0);
  const int64_t padded = buffer.full_numel + buffer.num_padded;
  ASSERT_GT(padded, 10);
  uint16_t data[10] = {};
  void* view = nullptr;
  EXPECT_OK(shard_plan_param_view(plan.get(), a, data, 10, &view));
  EXPECT_EQ(view, data);
  for (const int64_t numel : {int64_t{10}, padded}) {
    EXPECT_OK(shard_plan_param_view(plan.get(), b, data, numel, &view));
    EXPECT_EQ(view, data + 6);
  }
  for (const int64_t numel :
       {int64_t{0}, int64_t{9}, int64_t{11}, padded + 1, int64_t{-10}}) {
    view = data;
    EXPECT_FAILS(shard_plan_param_view(plan.get(), b, data, numel, &view),
                 SHARD_INVALID_ARGUMENT, "has " + std::to_string(numel),
                 std::to_string(padded) + ", or 10");
    EXPECT_EQ(view, nullptr);
  }
  EXPECT_FAILS(shard_plan_param_view(plan.get(), 2, data, 10, &view),
               SHARD_INVALID_ARGUMENT, "parameter 2");
  EXPECT_FAILS(shard_plan_param_view(nullptr, a, data, 10, &view),
               SHARD_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_FAILS(shard_plan_param_view(plan.get(), a, nullptr, 10, &view),
               SHARD_INVALID_ARGUMENT, "data is NULL");
  EXPECT_FAILS(shard_plan_param_view(plan.get(), a, data, 10, nullptr),
               SHARD_INVALID_ARGUMENT, "view is NULL");
  EXPECT_FAILS(
      shard_plan_param_view(SmallPlan(2).get(), kIgnored, data, 7, &view),
      SHARD_FAILED_PRECONDITION, "'ignored'");
}

// A parameter that its owner has whole may have padding beside it.
TEST(PlanLayoutTest, ViewsBesidePadding) {
  const Model model = EmptyModel();
  AddParam(model.get(), "a", {100});
  const int32_t b = AddParam(model.get(), "b", {3});
  shard_plan_options options = PlanOptions(2);
  options.partition = SHARD_PARTITION_GREEDY;
  const Plan plan = MakePlan(model.get(), options);
  const shard_param_info info = ParamInfo(plan, b);
  EXPECT_EQ(info.first_rank, 1);
  EXPECT_GT(info.begin, 100);
  const int64_t numel = info.begin + info.numel;
  std::vector<float> data(static_cast<size_t>(numel));
  void* view = nullptr;
  EXPECT_OK(shard_plan_param_view(plan.get(), b, data.data(), numel, &view));
  EXPECT_EQ(view, data.data() + info.begin);
  // The elements of the parameters without padding are no such buffer.
  EXPECT_FAILS(shard_plan_param_view(plan.get(), b, data.data(), 103, &view),
               SHARD_INVALID_ARGUMENT, "103");
}

}  // namespace
}  // namespace shard_api_testing::plan_layout_test
