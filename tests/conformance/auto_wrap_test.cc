// SPDX-License-Identifier: Apache-2.0
//
// Compares wrapping with torch's _recursive_wrap: exactly, order included.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/model/wrap.h"
#include "tests/conformance/golden.h"
#include "tests/core/base/expect_status.h"

namespace shard::auto_wrap_test {
namespace {

using Json = nlohmann::json;

void AddTo(Model* model, ModuleId module, const Json& tree) {
  for (const Json& param : tree["params"]) {
    EXPECT_OK(model->AddParam(module, std::string(param[0]), DType::kF32,
                              {param[1]}));
  }
  for (const Json& child : tree["children"]) {
    const auto id = model->AddModule(module, std::string(child["name"]),
                                     std::string(child["cls"]));
    ASSERT_OK(id);
    AddTo(model, *id, child);
  }
}

std::string Joined(const Json& names) {
  std::string text;
  for (const Json& name : names) {
    StrAppend(&text, text.empty() ? "" : ",", std::string(name));
  }
  return text;
}

std::string PolicyText(const Json& policy) {
  const std::string kind = policy["kind"];
  if (kind == "class") return StrCat("class?names=", Joined(policy["classes"]));
  if (kind != "size") return kind;
  return StrCat("size?min_numel=", int64_t{policy["min_num_params"]},
                "&force_leaf=", Joined(policy["force_leaf"]),
                "&exclude=", Joined(policy["exclude"]));
}

TEST(GoldenWrap, ModulesAreThoseOfRecursiveWrap) {
  const Json golden = LoadGolden("auto_wrap.json");
  size_t checked = 0;
  for (const Json& expected : golden["cases"]) {
    SCOPED_TRACE(::testing::Message() << "case " << checked);
    Model model{std::string(expected["model"]["cls"])};
    AddTo(&model, kRootModule, expected["model"]);
    const auto policy = WrapPolicy::Parse(PolicyText(expected["policy"]));
    ASSERT_OK(policy);
    Json actual = Json::array();
    for (const ModuleId module : policy->Run(model)) {
      actual.push_back(model.ModuleFqn(module));
    }
    EXPECT_EQ(actual, expected["wrapped"]);
    ++checked;
  }
  EXPECT_EQ(checked, 48u);
}

}  // namespace
}  // namespace shard::auto_wrap_test
