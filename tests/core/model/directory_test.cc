// SPDX-License-Identifier: Apache-2.0

#include "core/model/directory.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/core/base/expect_status.h"

namespace shard::directory_test {
namespace {

using Row = std::tuple<std::string, int, bool, int, int>;

std::vector<Row> Rows(const Model& model, const ModelDirectory& directory) {
  std::vector<Row> rows;
  for (const ModelDirectory::Module& module : directory.modules()) {
    rows.emplace_back(model.ModuleFqn(module.id), module.depth, module.ignored,
                      module.first_name, module.num_names);
  }
  return rows;
}

std::vector<std::string> Fqns(const Model& model,
                              const ModelDirectory& directory, ParamId param) {
  std::vector<std::string> fqns;
  for (const int32_t name : directory.NamesOf(param)) {
    fqns.push_back(
        model.ReferenceFqn(directory.names()[static_cast<size_t>(name)]));
  }
  return fqns;
}

TEST(ModelDirectory, HasTheRootOfAnEmptyModel) {
  const Model model;
  const ModelDirectory directory(model);
  EXPECT_EQ(Rows(model, directory), (std::vector<Row>{{"", 0, false, 0, 0}}));
  EXPECT_TRUE(directory.names().empty());
}

// Names are added from the back, so that ids are in another order than the
// walk.
TEST(ModelDirectory, IsInWalkOrder) {
  Model model("Net");
  const ModuleId b = *model.AddModule(kRootModule, "b", "");
  const ModuleId below = *model.AddModule(b, "c", "");
  const ModuleId skipped = *model.AddModule(kRootModule, "skipped", "");
  const ModuleId inside = *model.AddModule(skipped, "inside", "");
  const ModuleId last = *model.AddModule(kRootModule, "last", "");
  const ParamId tied = *model.AddParam(last, "w", DType::kF32, {2});
  const ParamId deep = *model.AddParam(below, "w", DType::kF32, {2});
  const ParamId own = *model.AddParam(kRootModule, "w", DType::kF32, {2});
  const ParamId gone = *model.AddParam(kRootModule, "gone", DType::kF32, {2});
  ASSERT_OK(model.Tie(inside, "w", tied));
  ASSERT_OK(model.Tie(b, "w", tied));
  ASSERT_OK(model.Tie(last, "again", tied));
  ASSERT_OK(model.IgnoreParam(gone));
  ASSERT_OK(model.IgnoreModule(skipped));

  const ModelDirectory directory(model);
  EXPECT_EQ(Rows(model, directory), (std::vector<Row>{
                                        {"", 0, false, 0, 1},
                                        {"b", 1, false, 1, 1},
                                        {"b.c", 2, false, 2, 1},
                                        {"skipped", 1, true, 3, 0},
                                        {"skipped.inside", 2, true, 3, 0},
                                        {"last", 1, false, 3, 2},
                                    }));
  EXPECT_EQ(directory.names(), model.Walk());
  using Names = std::vector<std::string>;
  EXPECT_EQ(Fqns(model, directory, own), Names{"w"});
  EXPECT_EQ(Fqns(model, directory, deep), Names{"b.c.w"});
  EXPECT_EQ(Fqns(model, directory, tied),
            (Names{"b.w", "last.w", "last.again"}));
  EXPECT_TRUE(directory.NamesOf(gone).empty());
}

// The primary name is the FQN.
TEST(ModelDirectory, AgreesWithTheModelsFqns) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    Model model;
    for (int i = 0; i < 30; ++i) {
      const auto modules = static_cast<uint32_t>(model.modules().size());
      const auto params = static_cast<uint32_t>(model.params().size());
      const auto in = static_cast<ModuleId>(random() % modules);
      const std::string name = "n" + std::to_string(i);
      switch (random() % 3) {
        case 0:
          ASSERT_OK(model.AddModule(in, name, ""));
          break;
        case 1:
          ASSERT_OK(model.AddParam(in, name, DType::kF32, {1}));
          break;
        default:
          if (params == 0) break;
          ASSERT_OK(
              model.Tie(in, name, static_cast<ParamId>(random() % params)));
      }
    }
    if (random() % 2 == 0) {
      ASSERT_OK(model.IgnoreModule(
          static_cast<ModuleId>(model.modules().size() - 1)));
    }
    const ModelDirectory directory(model);
    EXPECT_EQ(directory.names(), model.Walk());
    const std::vector<std::string> fqns = model.ParamFqns();
    for (size_t i = 0; i < fqns.size(); ++i) {
      const auto param = static_cast<ParamId>(i);
      const auto names = Fqns(model, directory, param);
      if (!names.empty()) {
        EXPECT_EQ(names.front(), fqns[i]);
      }
      for (const std::string& name : names) {
        const auto found = model.FindParam(name);
        ASSERT_OK(found);
        EXPECT_EQ(*found, param);
      }
    }
  }
}

}  // namespace
}  // namespace shard::directory_test
