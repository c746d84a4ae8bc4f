// SPDX-License-Identifier: Apache-2.0

#include <cstring>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"

namespace shard_api_testing::plan_file_test {
namespace {

using Bytes = std::vector<char>;

Bytes Encode(const Plan& plan) {
  size_t length = 0;
  EXPECT_OK(shard_plan_encode(plan.get(), nullptr, 0, &length));
  Bytes bytes(length);
  EXPECT_OK(shard_plan_encode(plan.get(), bytes.data(), bytes.size(), &length));
  EXPECT_EQ(length, bytes.size());
  return bytes;
}

Plan Decode(const Bytes& bytes) {
  shard_plan* plan = Garbage<shard_plan>();
  EXPECT_OK(shard_plan_decode(bytes.data(), bytes.size(), &plan));
  return Plan(plan);
}

std::string JsonOf(const Plan& plan) {
  size_t length = 0;
  EXPECT_OK(shard_plan_json(plan.get(), nullptr, 0, &length));
  std::string text(length + 1, '\0');
  EXPECT_OK(shard_plan_json(plan.get(), text.data(), text.size(), &length));
  text.resize(length);
  return text;
}

// Returns a plan with modules, ties, groups and units, some of them by a
// predicate.
Plan RichPlan() {
  const Model model = SmallModel();
  int32_t id = 0;
  EXPECT_OK(shard_model_add_module(model.get(), 0, "later", "Block", &id));
  EXPECT_OK(shard_model_add_module(model.get(), id, "deep", "Leaf", &id));
  EXPECT_OK(shard_model_tie(model.get(), id, "alias", kWeight));
  const int32_t members[] = {kBias};
  int32_t group = 0;
  EXPECT_OK(
      shard_model_add_param_group(model.get(), "?lr=0.25", members, 1, &group));
  shard_plan_options options = PlanOptions(3);
  options.stage = 2;
  options.wrap = "class?names=Block";
  options.wrap_predicate = [](int32_t module, int64_t, void*) -> int32_t {
    return module == 2;
  };
  return MakePlan(model.get(), options);
}

TEST(PlanFileTest, ADecodedPlanAnswersAlike) {
  const Plan plan = RichPlan();
  const Plan decoded = Decode(Encode(plan));
  const shard_plan_info info = InfoOf(decoded);
  const shard_plan_info expected = InfoOf(plan);
  EXPECT_EQ(std::memcmp(&info, &expected, sizeof(info)), 0);
  EXPECT_EQ(info.num_units, 3);
  EXPECT_EQ(JsonOf(decoded), JsonOf(plan));
  for (int32_t module = 0; module < info.num_modules; ++module) {
    for (const auto get : {&shard_plan_module_name, &shard_plan_module_class}) {
      EXPECT_EQ(TextOf(get, decoded.get(), module),
                TextOf(get, plan.get(), module));
    }
  }
  for (int32_t i = 0; i < info.num_names; ++i) {
    shard_name_info name = SHARD_NAME_INFO_INIT;
    shard_name_info other = SHARD_NAME_INFO_INIT;
    EXPECT_OK(shard_plan_name_info(decoded.get(), i, &name));
    EXPECT_OK(shard_plan_name_info(plan.get(), i, &other));
    EXPECT_EQ(std::memcmp(&name, &other, sizeof(name)), 0);
  }
  int32_t found = -1;
  EXPECT_OK(shard_plan_find_param(decoded.get(), "later.deep.alias", &found));
  EXPECT_EQ(found, kWeight);
  EXPECT_EQ(TextOf(shard_plan_warnings, decoded.get()),
            TextOf(shard_plan_warnings, plan.get()));
  EXPECT_EQ(Encode(decoded), Encode(plan));
}

TEST(PlanFileTest, InfoHasTheOptionsOfGathers) {
  shard_plan_options options = PlanOptions(4);
  const auto expect = [&](int32_t group_size, int32_t keep) {
    const Plan plan = MakePlan(SmallModel().get(), options);
    for (const shard_plan_info& info :
         {InfoOf(plan), InfoOf(Decode(Encode(plan)))}) {
      EXPECT_EQ(info.shard_group_size, group_size);
      EXPECT_EQ(info.keep_after_forward, keep);
    }
  };
  expect(4, 0);
  options.keep_after_forward = 1;
  expect(4, 1);
  options.shard_group_size = 2;
  options.keep_after_forward = 0;
  expect(2, 0);
}

// One rank plans, the other decodes the plan; they train with it as with one
// plan.
TEST(PlanFileTest, RanksTrainWithIt) {
  const Plan plan = SmallPlan(2);
  const Bytes bytes = Encode(plan);
  RunRanks(2, [&](int rank, shard_comm* comm) {
    const Plan decoded = Decode(bytes);
    const Engine engine =
        MakeEngine(rank == 0 ? plan.get() : decoded.get(), comm);
    ASSERT_NE(engine, nullptr);
    const std::vector<float> ones(kWeightNumel, 1.0f);
    ASSERT_OK(shard_engine_set_param(engine.get(), kWeight, ones.data(),
                                     ones.size() * sizeof(float)));
    ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
    FillGrad(engine.get(), 2.0f);
    ASSERT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    EXPECT_EQ(WeightOf(engine.get())[0], 0.0f);  // 1 - 0.5 * 2.
  });
}

TEST(PlanFileTest, AShortBufferHasTheBeginning) {
  const Plan plan = SmallPlan(2);
  const Bytes whole = Encode(plan);
  for (const size_t capacity : {size_t{0}, size_t{1}, whole.size() - 1}) {
    Bytes part(whole.size(), 'x');
    size_t length = 0;
    ASSERT_OK(shard_plan_encode(plan.get(), part.data(), capacity, &length));
    EXPECT_EQ(length, whole.size());
    Bytes expected(whole.size(), 'x');
    std::copy_n(whole.begin(), capacity, expected.begin());
    EXPECT_EQ(part, expected);
  }
  Bytes larger(whole.size() + 3, 'x');
  size_t length = 0;
  ASSERT_OK(
      shard_plan_encode(plan.get(), larger.data(), larger.size(), &length));
  EXPECT_EQ(length, whole.size());
  EXPECT_EQ(larger.back(), 'x');
}

TEST(PlanFileTest, NullPointersAreErrors) {
  const Plan plan = SmallPlan(2);
  char buffer[8];
  size_t length = 7;
  EXPECT_FAILS(shard_plan_encode(nullptr, buffer, 8, &length),
               SHARD_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_EQ(length, 0u);
  length = 7;
  EXPECT_FAILS(shard_plan_encode(plan.get(), nullptr, 8, &length),
               SHARD_INVALID_ARGUMENT, "buffer is NULL");
  EXPECT_EQ(length, 0u);
  EXPECT_FAILS(shard_plan_encode(plan.get(), buffer, 8, nullptr),
               SHARD_INVALID_ARGUMENT, "length is NULL");
  shard_plan* out = Garbage<shard_plan>();
  EXPECT_FAILS(shard_plan_decode(nullptr, 8, &out), SHARD_INVALID_ARGUMENT,
               "bytes is NULL");
  EXPECT_EQ(out, nullptr);
  EXPECT_FAILS(shard_plan_decode(buffer, 8, nullptr), SHARD_INVALID_ARGUMENT,
               "plan is NULL");
}

TEST(PlanFileTest, DamageIsCorrupt) {
  Bytes bytes = Encode(RichPlan());
  const auto expect = [](const Bytes& damaged, shard_code code,
                         const char* message) {
    shard_plan* out = Garbage<shard_plan>();
    EXPECT_FAILS(shard_plan_decode(damaged.data(), damaged.size(), &out), code,
                 message);
    EXPECT_EQ(out, nullptr);
  };
  expect({}, SHARD_CORRUPT, "0 bytes");
  expect(Bytes(100, 'x'), SHARD_CORRUPT, "not a plan");
  expect(Bytes(bytes.begin(), bytes.end() - 1), SHARD_CORRUPT, "bytes follow");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  expect(bytes, SHARD_CORRUPT, "checksum");
  bytes[8] = 9;
  bytes[12] = ~9;
  expect(bytes, SHARD_UNIMPLEMENTED, "version 9");
}

}  // namespace
}  // namespace shard_api_testing::plan_file_test
