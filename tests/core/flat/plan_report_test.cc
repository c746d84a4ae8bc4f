// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "tests/core/base/expect_status.h"

namespace shard {
namespace {

using Json = nlohmann::json;

std::shared_ptr<const Plan> MakePlan(int world_size = 2) {
  auto model = std::make_shared<Model>("Net");
  const ModuleId a = *model->AddModule(kRootModule, "a", "Linear");
  const ModuleId b = *model->AddModule(kRootModule, "b", "\xFF\xFE");
  EXPECT_OK(model->AddParam(a, "weight", DType::kF32, {1000, 3}));
  EXPECT_OK(model->AddParam(a, "scale", DType::kF32, {}));
  EXPECT_OK(model->AddParam(b, "empty", DType::kF32, {0, 5}));
  EXPECT_OK(model->AddParam(b, "frozen", DType::kBF16, {100}));
  EXPECT_OK(model->AddParam(b, "ignored", DType::kF32, {7}));
  EXPECT_OK(model->SetTrainable(3, false));
  EXPECT_OK(model->IgnoreParam(4));
  EXPECT_OK(model->Tie(b, "tied", 0));
  PlanOptions options;
  options.world_size = world_size;
  options.groups = {{"adamw?lr=0.001",
                     {{"exp_avg", DType::kF32}, {"exp_avg_sq", DType::kF32}}}};
  auto plan = Plan::Create(model, options);
  EXPECT_OK(plan);
  return *plan;
}

TEST(PlanSummary, OneLine) {
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
  parameters, per host        16.0 KiB  16,384 B
  gradients, per rank         12.0 KiB  12,288 B
  optimizer states, per rank  16.0 KiB  16,384 B
  workspace, per rank              0 B       0 B
)"));
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
}  // namespace shard
