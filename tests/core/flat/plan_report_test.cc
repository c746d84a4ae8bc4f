// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "tests/core/base/expect_status.h"

namespace shard::plan_report_test {
namespace {

using Json = nlohmann::json;

std::shared_ptr<const Plan> MakePlan(int world_size = 2) {
  auto model = std::make_shared<Model>("Net");
  const ModuleId a = *model->AddModule(kRootModule, "a", "Linear");
  const ModuleId b = *model->AddModule(kRootModule, "b", "Größe");
  EXPECT_OK(model->AddParam(a, "weight", DType::kF32, {1000, 3}));
  EXPECT_OK(model->AddParam(a, "scale", DType::kF32, {}));
  EXPECT_OK(model->AddParam(b, "empty", DType::kF32, {0, 5}));
  EXPECT_OK(model->AddParam(b, "frozen", DType::kBF16, {100}));
  EXPECT_OK(model->AddParam(b, "ignored", DType::kF32, {7}));
  EXPECT_OK(model->SetTrainable(3, false));
  EXPECT_OK(model->IgnoreParam(4));
  EXPECT_OK(model->Tie(b, "tied", 0));
  const PlanOptions options = {
      .world_size = world_size,
      .groups = {{"adamw?lr=0.001",
                  {{"exp_avg", DType::kF32}, {"exp_avg_sq", DType::kF32}}}}};
  auto plan = Plan::Create(model, options);
  EXPECT_OK(plan);
  return *plan;
}

TEST(PlanSummary, IsOneLine) {
  const std::string summary = MakePlan()->Summary();
  EXPECT_EQ(summary.find("stage 1, world size 2, even, 4 parameters of 3,101 "
                         "elements, fingerprint 0x"),
            0u)
      << summary;
  EXPECT_EQ(summary.find('\n'), std::string::npos);
}

TEST(PlanText, SaysWhatWasDecided) {
  const auto plan = MakePlan();
  EXPECT_EQ(plan->ToText(), StrCat("plan: ", plan->Summary(), R"(
frozen: 100 elements
param group 0: adamw?lr=0.001

flat buffers
  unit    group  dtype  gradient  states                       parameters  elements  per rank  padding
  (root)  0      f32    f32       exp_avg f32, exp_avg_sq f32           3     3,001     1,504        7
  (root)  -      bf16   frozen    none                                  1       100        64       28

ranks
  rank  elements  padding
     0     1,568        0
     1     1,533       35

memory
  per rank                       shared memory            separate
  parameters (shared: per host)       16.0 KiB  16,384 B  16.0 KiB  16,384 B
  gradients                           12.0 KiB  12,288 B  12.0 KiB  12,288 B
  optimizer states                    16.0 KiB  16,384 B  16.0 KiB  16,384 B
  workspace                                0 B       0 B       0 B       0 B
  slots                                    0 B       0 B       0 B       0 B

warnings
  )",
                                   plan->Warnings().at(0), "\n"));
}

// Returns a plan of 20 blocks of 3,000 elements, each with a layer in it. There
// are two slots for layers.
std::shared_ptr<const Plan> MakeUnits() {
  auto model = std::make_shared<Model>("Net");
  EXPECT_OK(model->AddParam(kRootModule, "embedding", DType::kF32, {1024}));
  for (int i = 0; i < 20; ++i) {
    const ModuleId block =
        *model->AddModule(kRootModule, StrCat("block", i), "Block");
    const ModuleId layer = *model->AddModule(block, "layer", "Layer");
    EXPECT_OK(model->AddParam(block, "weight", DType::kF32, {2048}));
    EXPECT_OK(model->AddParam(layer, "weight", DType::kF32, {1024}));
  }
  const PlanOptions options = {.stage = 3,
                               .world_size = 4,
                               .wrap = *WrapPolicy::Parse("always"),
                               .shard_group_size = 2};
  auto plan = Plan::Create(model, options);
  EXPECT_OK(plan);
  return *plan;
}

TEST(PlanText, ListsTheFirstOfManyUnits) {
  const auto plan = MakeUnits();
  const std::string text = plan->ToText();
  const auto expect_part = [&text](const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  };
  EXPECT_NE(plan->Summary().find("62,464 elements in 41 units, fingerprint"),
            std::string::npos);
  expect_part("\nshard groups: 2 of 2 ranks\n");
  expect_part(R"(
units
  unit          depth  buffers  parameters  elements
  (root)            0        1           1     1,024
  block0            1        1           1     2,048
  block0.layer      2        1           1     1,024
)");
  expect_part("\n  and 25 more\n\nflat buffers\n");
  expect_part("\n  and 25 more\n\nranks\n");
  expect_part(R"(
slots
  for                  unit depth  count     each
  gathered parameters           0      1  4.0 KiB
  gathered parameters           1      2  8.0 KiB
  gathered parameters           2      2  4.0 KiB
  unreduced gradients           0      1  4.0 KiB
  unreduced gradients           1      2  8.0 KiB
  unreduced gradients           2      2  4.0 KiB
)");
  EXPECT_EQ(text.find("warnings"), std::string::npos);
}

TEST(PlanText, ListsTheFirstOfManyRanks) {
  const std::string text = MakePlan(16384)->ToText();
  EXPECT_NE(text.find("  and 16,376 more\n"), std::string::npos) << text;
}

TEST(PlanJson, HoldsTheSameForPrograms) {
  const auto plan = MakePlan();
  const Json json = Json::parse(plan->ToJson());
  EXPECT_EQ(json["fingerprint"], FormatHex(plan->fingerprint()));
  EXPECT_EQ(json["options"]["world_size"], 2);
  EXPECT_EQ(json["options"]["partition"], "even");
  EXPECT_EQ(json["options"]["groups"][0]["optimizer"], "adamw?lr=0.001");
  EXPECT_EQ(json["buffers"][0]["states"][1]["name"], "exp_avg_sq");
  EXPECT_EQ(json["buffers"][0]["grad_dtype"], "f32");
  EXPECT_TRUE(json["buffers"][1]["group"].is_null());
  EXPECT_EQ(json["params_total"], 4);
  EXPECT_EQ(json["numel_total"], 3101);
  EXPECT_EQ(json["units"][0]["module"], "");
  EXPECT_EQ(json["units"][0]["class"], "Net");
  EXPECT_EQ(json["units"][0]["buffers"], Json({0, 1}));
  EXPECT_EQ(json["buffers"][0]["shard_numel"], 1504);
  EXPECT_EQ(json["buffers"][1]["trainable"], false);
  EXPECT_EQ(json["first_ranks"][1]["padding"], 35);
  EXPECT_EQ(json["memory"]["param_bytes_per_host"], 16384);

  const Json& params = json["params"];
  ASSERT_EQ(params.size(), 4u);
  EXPECT_EQ(params[0]["name"], "a.weight");
  EXPECT_EQ(params[0]["shape"], Json({1000, 3}));
  EXPECT_EQ(params[0]["aliases"], Json({"b.tied"}));
  EXPECT_EQ(params[0]["first_rank"], 0);
  EXPECT_EQ(params[0]["last_rank"], 1);
  EXPECT_EQ(params[1]["shape"], Json::array());
  EXPECT_EQ(params[1]["offset"], 3000);
  EXPECT_EQ(params[1]["first_rank"], 1);
  EXPECT_EQ(params[2]["name"], "b.empty");
  EXPECT_TRUE(params[2]["first_rank"].is_null());
  EXPECT_EQ(params[3]["dtype"], "bf16");
  EXPECT_EQ(params[3]["buffer"], 1);
  EXPECT_FALSE(params[3].contains("aliases"));
}

TEST(PlanJson, HoldsUnitsAndSlots) {
  const auto plan = MakeUnits();
  const Json json = Json::parse(plan->ToJson());
  EXPECT_EQ(json["options"]["wrap"], "always");
  EXPECT_EQ(json["options"]["shard_group_size"], 2);
  EXPECT_EQ(json["units"][2], Json({{"module", "block0.layer"},
                                    {"class", "Layer"},
                                    {"parent", 1},
                                    {"depth", 2},
                                    {"buffers", {2}}}));
  EXPECT_EQ(json["param_slots"][1], Json({{"count", 2}, {"bytes", 8192}}));
  EXPECT_EQ(json["grad_slots"].size(), 3u);
  EXPECT_EQ(json["memory"]["transient_bytes_per_rank"],
            plan->Memory(true).transient_bytes);
  EXPECT_EQ(json["memory_unshared"]["param_bytes_per_rank"],
            plan->Memory(false).param_bytes);
  EXPECT_EQ(json["warnings"], Json::array());
  EXPECT_TRUE(Json::parse(MakePlan()->ToJson())["param_slots"].is_null());
  EXPECT_EQ(Json::parse(MakePlan()->ToJson())["warnings"].size(), 1u);

  // first_rank names the ranks that own the parameter, not ranges: among two
  // groups of two, the first group's first rank and the second group's second.
  EXPECT_EQ(json["params"][0]["first_rank"], 0);
  EXPECT_EQ(json["params"][0]["last_rank"], 3);
  EXPECT_EQ(plan->RankOf(1), 2);
}

TEST(PlanJson, WithoutParameters) {
  EXPECT_FALSE(Json::parse(MakePlan()->ToJson(false)).contains("params"));
}

// Class names are the host's, and may hold anything.
TEST(PlanJson, NeverThrows) {
  auto model = std::make_shared<Model>(std::string("\xC3(\0\xFF", 4));
  EXPECT_OK(model->AddParam(kRootModule, "w", DType::kF32, {1}));
  PlanOptions options;
  const auto plan = Plan::Create(model, options);
  ASSERT_OK(plan);
  EXPECT_TRUE(Json::accept((*plan)->ToJson()));
}

}  // namespace
}  // namespace shard::plan_report_test
