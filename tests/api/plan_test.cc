// SPDX-License-Identifier: Apache-2.0

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"

namespace shard_api_testing::plan_test {
namespace {

// Returns the outcome of shard_plan_create, and checks its output.
Outcome TryPlan(const shard_plan_options& options, const shard_model* model) {
  shard_plan* plan = Garbage<shard_plan>();
  Outcome outcome = Take(shard_plan_create(model, &options, &plan));
  EXPECT_EQ(plan == nullptr, outcome.code != SHARD_OK);
  shard_plan_free(plan);
  return outcome;
}

Outcome TryPlan(const shard_plan_options& options) {
  return TryPlan(options, SmallModel().get());
}

Outcome TryOptimizer(const std::string& text) {
  shard_plan_options options = PlanOptions(2);
  options.optimizer = text.c_str();
  return TryPlan(options);
}

void ExpectBad(const Outcome& outcome, const std::vector<std::string>& texts) {
  ExpectError(outcome, SHARD_INVALID_ARGUMENT, texts);
}

TEST(PlanTest, NullPointersAreErrors) {
  const Model model = SmallModel();
  const Plan plan = SmallPlan(2);
  const shard_plan_options options = PlanOptions(2);
  shard_plan* out = Garbage<shard_plan>();
  EXPECT_FAILS(shard_plan_create(nullptr, &options, &out),
               SHARD_INVALID_ARGUMENT, "model is NULL");
  EXPECT_EQ(out, nullptr);
  EXPECT_FAILS(shard_plan_create(model.get(), &options, nullptr),
               SHARD_INVALID_ARGUMENT, "plan is NULL");
  // Options may be NULL, but then the world size is 0, which is an error.
  out = Garbage<shard_plan>();
  EXPECT_FAILS(shard_plan_create(model.get(), nullptr, &out),
               SHARD_INVALID_ARGUMENT, "world_size 0");
  EXPECT_EQ(out, nullptr);

  shard_plan_info info = SHARD_PLAN_INFO_INIT;
  info.num_units = 7;
  EXPECT_FAILS(shard_plan_get_info(nullptr, &info), SHARD_INVALID_ARGUMENT,
               "plan is NULL");
  EXPECT_EQ(info.num_units, 0);
  EXPECT_FAILS(shard_plan_get_info(plan.get(), nullptr), SHARD_INVALID_ARGUMENT,
               "info is NULL");
  shard_memory memory = SHARD_MEMORY_INIT;
  EXPECT_FAILS(shard_plan_memory(nullptr, nullptr, &memory),
               SHARD_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_FAILS(shard_plan_memory(plan.get(), nullptr, nullptr),
               SHARD_INVALID_ARGUMENT, "memory is NULL");
  shard_plan_free(nullptr);
}

TEST(PlanTest, Stages) {
  for (int32_t stage = 0; stage <= 3; ++stage) {
    shard_plan_options options = PlanOptions(2);
    options.stage = stage;
    EXPECT_EQ(TryPlan(options).message, "");
  }
  for (const int32_t stage : {-1, 4, INT32_MAX}) {
    shard_plan_options options = PlanOptions(2);
    options.stage = stage;
    ExpectBad(TryPlan(options), {"stage " + std::to_string(stage), "0 to 3"});
  }
}

TEST(PlanTest, WorldSizes) {
  for (const int32_t world_size : {1, 7, 16384}) {
    EXPECT_EQ(TryPlan(PlanOptions(world_size)).message, "");
  }
  for (const int32_t world_size : {0, -1, INT32_MIN, INT32_MAX}) {
    ExpectBad(TryPlan(PlanOptions(world_size)),
              {"world_size " + std::to_string(world_size), "outside 1 to"});
  }
}

TEST(PlanTest, Partitions) {
  for (const int32_t partition : {-1, 5, INT32_MAX}) {
    shard_plan_options options = PlanOptions(2);
    options.partition = partition;
    ExpectBad(TryPlan(options), {"partition " + std::to_string(partition),
                                 "1 (even)", "4 (manual)"});
  }
  shard_plan_options options = PlanOptions(2);
  options.shard_buckets = 2;
  ExpectBad(TryPlan(options), {"shard_buckets", "2", "0 or 1"});
  options = PlanOptions(2);
  options.bucket_bytes = -5;
  ExpectBad(TryPlan(options), {"bucket_bytes", "-5"});
}

TEST(PlanTest, ManualOwners) {
  // Entries of frozen and ignored parameters are not read.
  std::vector<int32_t> owners = {1, 0, -9, 99, 1};
  shard_plan_options options = PlanOptions(2);
  options.partition = SHARD_PARTITION_MANUAL;
  options.owners = owners.data();
  options.num_owners = owners.size();
  EXPECT_EQ(TryPlan(options).message, "");
  owners[kBias] = 2;
  ExpectBad(TryPlan(options), {"owners", "'bias'", "rank 2", "0 to 1"});
  owners[kBias] = -1;
  ExpectBad(TryPlan(options), {"'bias'", "-1"});
  owners[kBias] = 0;
  options.num_owners = 4;
  ExpectBad(TryPlan(options), {"4 entries", "5 parameters"});
  for (const size_t count : {owners.size() + 1, SIZE_MAX}) {
    options.num_owners = count;
    ExpectBad(TryPlan(options), {"owners", std::to_string(count), "5"});
  }
  options.num_owners = 4;
  options.owners = nullptr;
  ExpectBad(TryPlan(options), {"owners is NULL", "4"});
  options.num_owners = 0;
  ExpectBad(TryPlan(options), {"0 entries"});
}

TEST(PlanTest, ModelsThatHoldNothing) {
  ExpectBad(TryPlan(PlanOptions(2), EmptyModel().get()), {"no parameters"});
  const Model model = SmallModel();
  EXPECT_OK(shard_model_ignore_module(model.get(), 0));
  ExpectBad(TryPlan(PlanOptions(2), model.get()), {"ignored"});
}

// Each of the parameters has about 2^63 bytes: an int64 cannot hold their sum.
TEST(PlanTest, SumsThatOverflow) {
  const Model model = EmptyModel();
  AddParam(model.get(), "a", {INT64_MAX / 4});
  ExpectBad(TryPlan(PlanOptions(2), model.get()), {"2^53 elements"});
  AddParam(model.get(), "b", {INT64_MAX / 4});
  AddParam(model.get(), "c", {INT64_MAX / 4});
  EXPECT_EQ(TryPlan(PlanOptions(2), model.get()).code, SHARD_INVALID_ARGUMENT);
}

TEST(PlanTest, Optimizers) {
  for (const char* good :
       {"", "adamw", "sgd", "adamw?lr=0", "adamw?lr=3e-4&beta1=0&eps=0",
        "sgd?momentum=0.9&nesterov=1", "sgd?maximize=1", "adamw?"}) {
    EXPECT_EQ(TryOptimizer(good).message, "") << good;
  }
  EXPECT_EQ(TryOptimizer("adamw").code, SHARD_OK);
  ExpectBad(TryOptimizer("adamx"), {"'adamx'", "adamw", "sgd"});
  ExpectBad(TryOptimizer("ADAMW"), {"'ADAMW'"});
  ExpectBad(TryOptimizer("?lr=1"), {"'?lr=1'"});
  ExpectBad(TryOptimizer("adamw:x"), {"'adamw:x'"});
  // The error of an unknown key has the key, and those that exist.
  ExpectBad(TryOptimizer("adamw?learning_rate=1"),
            {"'learning_rate'", "lr", "beta1", "weight_decay"});
  ExpectBad(TryOptimizer("sgd?beta1=0.9"), {"'beta1'", "momentum"});
  ExpectBad(TryOptimizer("adamw?lr"), {"'lr'", "key=value"});
  ExpectBad(TryOptimizer("adamw?lr=1&lr=2"), {"'lr'", "twice"});
  // The error of a wrong value has the key, the value, and the values that are
  // allowed.
  ExpectBad(TryOptimizer("adamw?lr=-1"), {"lr=-1", "allowed: at least 0"});
  ExpectBad(TryOptimizer("adamw?beta1=1"), {"beta1=1", "allowed: [0, 1)"});
  ExpectBad(TryOptimizer("adamw?beta2=-0.1"), {"beta2=-0.1", "[0, 1)"});
  ExpectBad(TryOptimizer("adamw?maximize=2"), {"maximize=2", "0 or 1"});
  ExpectBad(TryOptimizer("adamw?maximize=0.5"), {"maximize=0.5", "0 or 1"});
  for (const std::string bad :
       {"nan", "inf", "-inf", "1e999", "x", "", "1x", " 1", "0x10", "1,5"}) {
    ExpectBad(TryOptimizer("adamw?lr=" + bad), {"lr"});
  }
  // Some combinations are errors.
  ExpectBad(TryOptimizer("sgd?nesterov=1"), {"nesterov=1", "momentum"});
  ExpectBad(TryOptimizer("sgd?nesterov=1&momentum=0.9&dampening=0.1"),
            {"nesterov=1", "dampening"});
}

TEST(PlanTest, FingerprintsTellPlansApart) {
  const Plan plan = SmallPlan(2);
  EXPECT_NE(InfoOf(plan).fingerprint, 0u);
  EXPECT_EQ(InfoOf(SmallPlan(2)).fingerprint, InfoOf(plan).fingerprint);
  EXPECT_NE(InfoOf(SmallPlan(3)).fingerprint, InfoOf(plan).fingerprint);
  // Another text of the same options is the same plan.
  const Model model = SmallModel();
  shard_plan_options options = PlanOptions(2);
  options.optimizer = "sgd?lr=0.5&momentum=0";
  options.partition = SHARD_PARTITION_EVEN;
  EXPECT_EQ(InfoOf(MakePlan(model.get(), options)).fingerprint,
            InfoOf(plan).fingerprint);
  options.optimizer = "sgd?lr=0.25";
  EXPECT_NE(InfoOf(MakePlan(model.get(), options)).fingerprint,
            InfoOf(plan).fingerprint);
}

// The plan has copied the model: a parameter that is added later is not in it.
TEST(PlanTest, CopiesTheModel) {
  Model model = SmallModel();
  const Plan plan = MakePlan(model.get(), PlanOptions(2));
  const uint64_t fingerprint = InfoOf(plan).fingerprint;
  AddParam(model.get(), "later", {3});
  model.reset();
  EXPECT_EQ(InfoOf(plan).fingerprint, fingerprint);
  size_t length = 0;
  EXPECT_OK(shard_plan_text(plan.get(), nullptr, 0, &length));
  EXPECT_GT(length, 0u);
}

using TextFunction = shard_error* (*)(const shard_plan*, char*, size_t,
                                      size_t*);

class PlanTextTest : public ::testing::TestWithParam<TextFunction> {};

TEST_P(PlanTextTest, AsksTwice) {
  const TextFunction write = GetParam();
  const Plan plan = SmallPlan(2);
  size_t length = 0;
  ASSERT_OK(write(plan.get(), nullptr, 0, &length));
  ASSERT_GT(length, 10u);

  std::string whole(length + 1, 'x');
  size_t again = 0;
  ASSERT_OK(write(plan.get(), whole.data(), whole.size(), &again));
  EXPECT_EQ(again, length);
  EXPECT_EQ(std::strlen(whole.data()), length);
  whole.resize(length);
  EXPECT_THAT(whole, ::testing::HasSubstr("sgd?lr=0.5"));

  // A short buffer gets the beginning and a NUL; the bytes behind it stay.
  for (const size_t capacity : {size_t{1}, size_t{5}, length}) {
    std::string part(length + 1, 'x');
    again = 0;
    ASSERT_OK(write(plan.get(), part.data(), capacity, &again));
    EXPECT_EQ(again, length);
    EXPECT_EQ(part.substr(0, capacity - 1), whole.substr(0, capacity - 1));
    EXPECT_EQ(part[capacity - 1], '\0');
    EXPECT_EQ(part.substr(capacity), std::string(length + 1 - capacity, 'x'));
  }
  // With capacity 0 nothing is written.
  char untouched = 'x';
  ASSERT_OK(write(plan.get(), &untouched, 0, &again));
  EXPECT_EQ(untouched, 'x');
}

TEST_P(PlanTextTest, NullPointersAreErrors) {
  const TextFunction write = GetParam();
  const Plan plan = SmallPlan(2);
  char buffer[8];
  size_t length = 77;
  EXPECT_FAILS(write(nullptr, buffer, sizeof(buffer), &length),
               SHARD_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_EQ(length, 0u);
  length = 77;
  EXPECT_FAILS(write(plan.get(), nullptr, 8, &length), SHARD_INVALID_ARGUMENT,
               "buffer is NULL");
  EXPECT_EQ(length, 0u);
  EXPECT_FAILS(write(plan.get(), buffer, sizeof(buffer), nullptr),
               SHARD_INVALID_ARGUMENT, "length is NULL");
}

INSTANTIATE_TEST_SUITE_P(Forms, PlanTextTest,
                         ::testing::Values(&shard_plan_text, &shard_plan_json));

TEST(PlanTest, JsonIsJson) {
  const Model model = SmallModel();
  AddParam(model.get(), "quote\"back\\slash", {2});
  const Plan plan = MakePlan(model.get(), PlanOptions(2));
  size_t length = 0;
  ASSERT_OK(shard_plan_json(plan.get(), nullptr, 0, &length));
  std::string text(length + 1, '\0');
  ASSERT_OK(shard_plan_json(plan.get(), text.data(), text.size(), &length));
  text.resize(length);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(json.is_object()) << text;
  EXPECT_EQ(json.at("options").at("world_size"), 2);
  EXPECT_EQ(json.at("options").at("stage"), 1);
}

}  // namespace
}  // namespace shard_api_testing::plan_test
