// SPDX-License-Identifier: Apache-2.0

#include "core/model/model.h"

#include <gtest/gtest.h>
#include <time.h>
#include <xxhash.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/model/names.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"

namespace shard::model_test {
namespace {

constexpr DType kF32 = DType::kF32;

ModuleId Module(Model* model, ModuleId parent, std::string_view name) {
  const auto id = model->AddModule(parent, name, "M");
  EXPECT_OK(id);
  return id.ok() ? *id : -1;
}

ParamId Param(Model* model, ModuleId module, std::string_view name,
              const std::vector<int64_t>& shape = {1}) {
  const auto id = model->AddParam(module, name, kF32, shape);
  EXPECT_OK(id);
  return id.ok() ? *id : -1;
}

std::vector<std::string> WalkFqns(const Model& model) {
  std::vector<std::string> fqns;
  for (const int32_t reference : model.Walk()) {
    fqns.push_back(model.ReferenceFqn(reference));
  }
  return fqns;
}

using Names = std::vector<std::string>;

TEST(Model, RootExists) {
  const Model model("GPT");
  ASSERT_EQ(model.modules().size(), 1u);
  EXPECT_EQ(model.modules()[0].parent, -1);
  EXPECT_EQ(model.modules()[0].class_name, "GPT");
  EXPECT_EQ(model.ModuleFqn(kRootModule), "");
  EXPECT_TRUE(model.Walk().empty());
  EXPECT_TRUE(model.ParamFqns().empty());
}

TEST(Model, IdsCountUpAndShapesAreKept) {
  Model model;
  const ModuleId a = Module(&model, kRootModule, "a");
  const ModuleId b = Module(&model, a, "b");
  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, 2);
  EXPECT_EQ(Param(&model, b, "weight", {2, 3}), 0);
  EXPECT_EQ(Param(&model, b, "scale", {}), 1);
  EXPECT_EQ(Param(&model, b, "nothing", {4, 0}), 2);
  EXPECT_EQ(model.ModuleFqn(b), "a.b");
  EXPECT_EQ(model.modules()[2].class_name, "M");
  EXPECT_EQ(model.params()[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(model.params()[0].numel, 6);
  EXPECT_EQ(model.params()[1].numel, 1);
  EXPECT_EQ(model.params()[2].numel, 0);
  EXPECT_TRUE(model.params()[0].trainable);
}

TEST(Model, WalkIsPreOrderOwnParametersFirst) {
  Model model;
  const ModuleId a = Module(&model, kRootModule, "a");
  const ModuleId b = Module(&model, kRootModule, "b");
  const ModuleId inner = Module(&model, a, "inner");
  Param(&model, b, "w");
  Param(&model, inner, "w");
  Param(&model, a, "w");
  Param(&model, kRootModule, "w");
  Param(&model, a, "bias");
  EXPECT_EQ(WalkFqns(model), (Names{"w", "a.w", "a.bias", "a.inner.w", "b.w"}));
  EXPECT_EQ(model.ParamFqns(),
            (Names{"b.w", "a.inner.w", "a.w", "w", "a.bias"}));
}

TEST(Model, TheFirstNameInTheWalkIsPrimary) {
  Model model;
  const ModuleId head = Module(&model, kRootModule, "head");
  const ModuleId shared = Param(&model, head, "weight");
  ASSERT_OK(model.Tie(kRootModule, "embedding", shared));
  ASSERT_OK(model.Tie(head, "again", shared));
  EXPECT_EQ(WalkFqns(model), (Names{"embedding", "head.weight", "head.again"}));
  EXPECT_EQ(model.ParamFqns(), (Names{"embedding"}));
}

TEST(Model, IgnoredModulesAndParametersAreNotWalked) {
  Model model;
  const ModuleId a = Module(&model, kRootModule, "a");
  const ModuleId inner = Module(&model, a, "inner");
  const ModuleId b = Module(&model, kRootModule, "b");
  const ParamId tied = Param(&model, inner, "tied");
  Param(&model, inner, "hidden");
  const ParamId dropped = Param(&model, b, "dropped");
  Param(&model, b, "kept");
  ASSERT_OK(model.Tie(b, "alias", tied));
  ASSERT_OK(model.IgnoreModule(a));
  ASSERT_OK(model.IgnoreParam(dropped));
  EXPECT_EQ(WalkFqns(model), (Names{"b.kept", "b.alias"}));
  // An ignored parameter keeps its name; a stored one gets the name that is
  // walked.
  EXPECT_EQ(model.ParamFqns(),
            (Names{"b.alias", "a.inner.hidden", "b.dropped", "b.kept"}));
}

TEST(Model, NamesEndWhereAnIgnoredSubtreeEnds) {
  Model model;
  const ModuleId a = Module(&model, kRootModule, "a");
  const ModuleId deep = Module(&model, a, "deep");
  const ModuleId b = Module(&model, kRootModule, "b");
  const ParamId p = Param(&model, deep, "p");
  ASSERT_OK(model.Tie(b, "p", p));
  ASSERT_OK(model.IgnoreModule(deep));
  EXPECT_EQ(model.ParamFqns(), (Names{"b.p"}));
}

TEST(Model, BadNamesAreErrorsThatShowThem) {
  Model model;
  const ModuleId a = Module(&model, kRootModule, "a");
  ExpectInvalid(model.AddParam(a, "", kF32, {}), {"module 'a'", "empty"});
  ExpectInvalid(model.AddModule(a, "x.y", ""), {"'x.y'", "'.'"});
  ExpectInvalid(model.AddParam(a, "w\xFFz", kF32, {}), {"w\\xffz", "UTF-8"});
  ExpectInvalid(model.AddParam(a, std::string_view("a\0b", 3), kF32, {}),
                {"a\\x00b"});
  ExpectInvalid(model.Tie(a, "x.y", 0), {"0"});
  // A checkpoint could not hold these names.
  ExpectInvalid(model.AddParam(a, "w\n", kF32, {}),
                {"module 'a'", "'w\\x0a'", "control character"});
  ExpectInvalid(model.AddModule(a, "\xC2\x9B", ""),
                {"'\\xc2\\x9b'", "control character"});
  ExpectInvalid(model.AddParam(a, std::string(kMaxFqnBytes - 1, 'w'), kF32, {}),
                {"'www", "65001 bytes", "65000"});
  ExpectInvalid(model.AddModule(a, std::string(kMaxFqnBytes - 1, 'm'), ""),
                {"65001 bytes"});
  EXPECT_EQ(model.modules().size(), 2u);
  EXPECT_TRUE(model.params().empty());
  EXPECT_TRUE(model.references().empty());
  Param(&model, a, "gewicht_\xC3\xBC");  // UTF-8 is allowed.
  Param(&model, a, std::string(kMaxFqnBytes - 2, 'w'));
  Param(&model, kRootModule, std::string(kMaxFqnBytes, 'w'));
}

TEST(Model, TakenNamesAreErrors) {
  Model model;
  const ModuleId a = Module(&model, kRootModule, "a");
  const ParamId w = Param(&model, a, "w");
  const auto exists = StatusCode::kAlreadyExists;
  ExpectError(model.AddModule(kRootModule, "a", ""), exists,
              {"root module", "module named 'a'"});
  ExpectError(model.AddParam(kRootModule, "a", kF32, {}), exists, {"'a'"});
  ExpectError(model.AddParam(a, "w", kF32, {}), exists,
              {"module 'a'", "parameter named 'w'"});
  ExpectError(model.AddModule(a, "w", ""), exists, {"'w'"});
  ExpectError(model.Tie(a, "w", w), exists, {"'w'"});
  ExpectError(model.Tie(kRootModule, "a", w), exists, {"'a'"});
  // The same name in another module is another name.
  Param(&model, kRootModule, "w");
}

TEST(Model, UnknownIdsAreNamed) {
  Model model;
  ExpectInvalid(model.AddModule(1, "a", ""), {"id 1"});
  ExpectInvalid(model.AddModule(-1, "a", ""), {"id -1"});
  ExpectInvalid(model.AddParam(7, "a", kF32, {}), {"id 7"});
  ExpectInvalid(model.Tie(0, "a", 0), {"id 0", "none"});
  Param(&model, kRootModule, "w");
  ExpectInvalid(model.Tie(0, "a", 1), {"id 1"});
  ExpectInvalid(model.Tie(3, "a", 0), {"id 3"});
  ExpectInvalid(model.SetTrainable(5, false), {"id 5"});
  ExpectInvalid(model.IgnoreParam(-2), {"id -2"});
  ExpectInvalid(model.IgnoreModule(9), {"id 9"});
}

TEST(Model, BadShapesAreErrorsThatShowThem) {
  Model model;
  const auto add = [&](const std::vector<int64_t>& shape,
                       DType dtype = DType::kF32) {
    return model.AddParam(kRootModule, "w", dtype, shape);
  };
  ExpectInvalid(add({2, -3}), {"'w'", "[2, -3]", "-3"});
  ExpectInvalid(add({1, 1, 1, 1, 1, 1, 1, 1, 1}), {"'w'", "9 dimensions"});
  // The message does not list each dimension.
  EXPECT_LT(add(std::vector<int64_t>(10000)).status().message().size(), 200u);
  constexpr int64_t kBig = int64_t{1} << 32;
  ExpectInvalid(add({kBig, kBig}), {"'w'", "4294967296", "2^63-1"});
  // The elements can be counted, their bytes cannot.
  ExpectInvalid(add({int64_t{1} << 61}), {"2^63-1 bytes"});
  ExpectInvalid(add({int64_t{1} << 60}, DType::kF64), {"f64"});
  ExpectInvalid(add({1}, static_cast<DType>(9)), {"'w'", "dtype 9"});
  EXPECT_TRUE(model.params().empty());
  // None of the failures took the name. A product with a 0 is no overflow.
  const auto empty = add({kBig, kBig, 0});
  ASSERT_OK(empty);
  EXPECT_EQ(model.params()[0].numel, 0);
  const auto large = model.AddParam(kRootModule, "large", DType::kBF16,
                                    {std::numeric_limits<int64_t>::max() / 2});
  ASSERT_OK(large);
}

TEST(Model, ClassesAreUtf8) {
  Model model;
  ExpectInvalid(model.AddModule(kRootModule, "a", "\xFF"),
                {"module 'a'", "class '\\xff'", "UTF-8"});
  ExpectInvalid(model.AddModule(kRootModule, "a", std::string_view("b\0", 2)),
                {"NUL"});
  // The failures did not take the name.
  EXPECT_OK(model.AddModule(kRootModule, "a", "Bl\xC3\xB6"));
}

// These names in the root fill a 32nd of the index from its start, under the
// seed that a library without a random one would have.
TEST(Model, NamesChosenToCollideCostLittleMore) {
  constexpr size_t kNames = 60000;
  constexpr uint64_t kSlots = 1 << 17;
  Names ordinary;
  Names chosen;
  for (size_t i = 0; chosen.size() < kNames; ++i) {
    std::string name = StrCat("p", i);
    const uint64_t hash = XXH3_64bits_withSeed(name.data(), name.size(), 0);
    if (ordinary.size() < kNames) ordinary.push_back(name);
    if (hash % kSlots < kSlots / 32) chosen.push_back(std::move(name));
  }
  const auto seconds_of = [](const Names& names) {
    timespec begin;
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    Model model;
    for (const std::string& name : names) Param(&model, kRootModule, name);
    timespec end;
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return static_cast<double>(end.tv_sec - begin.tv_sec) +
           1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
  };
  EXPECT_LT(seconds_of(chosen), 4 * seconds_of(ordinary) + 0.1);
}

// Quadratic checks would take hours for so many names.
TEST(Model, TakesAMillionNamesInOneModule) {
  Model model;
  constexpr int kCount = kSanitized ? 100'000 : 1'000'000;
  for (int i = 0; i < kCount; ++i) {
    ASSERT_TRUE(
        model.AddParam(kRootModule, "p" + std::to_string(i), kF32, {1}).ok());
  }
  ExpectError(model.AddParam(kRootModule, "p0", kF32, {}),
              StatusCode::kAlreadyExists, {"'p0'"});
  const std::string last = "p" + std::to_string(kCount - 1);
  ExpectError(model.AddModule(kRootModule, last, ""),
              StatusCode::kAlreadyExists, {"'" + last + "'"});
  EXPECT_EQ(model.Walk().size(), static_cast<size_t>(kCount));
}

// A recursive walk would overflow the stack on this tree.
TEST(Model, ADeepTreeIsWalked) {
  Model model;
  ModuleId at = kRootModule;
  constexpr int kDepth = kMaxFqnBytes / 2 - 1;
  for (int i = 0; i < kDepth; ++i) at = *model.AddModule(at, "m", "");
  Param(&model, at, "w");
  EXPECT_EQ(model.Walk().size(), 1u);
  EXPECT_EQ(model.ParamFqns()[0].size(), size_t{2 * kDepth + 1});
}

TEST(Model, ACopyIsIndependent) {
  Model model;
  Param(&model, kRootModule, "w");
  Model copy = model;
  Param(&copy, kRootModule, "x");
  EXPECT_EQ(model.params().size(), 1u);
  Param(&model, kRootModule, "x");
  ExpectError(copy.AddParam(kRootModule, "w", kF32, {}),
              StatusCode::kAlreadyExists, {});
}

TEST(Model, ParamGroupsTakeParametersOutOfTheDefaultGroup) {
  Model model;
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_OK(model.AddParam(kRootModule, name, DType::kF32, {2}));
  }
  ASSERT_EQ(model.groups().size(), 1u);
  const auto first = model.AddParamGroup("?weight_decay=0", std::vector{2, 0});
  ASSERT_OK(first);
  EXPECT_EQ(*first, 1);
  EXPECT_EQ(model.groups()[1].optimizer, "?weight_decay=0");
  EXPECT_EQ(model.params()[0].group, 1);
  EXPECT_EQ(model.params()[1].group, kDefaultGroup);
  EXPECT_EQ(model.params()[2].group, 1);

  // An error names the mistake, and changes nothing.
  ExpectInvalid(model.AddParamGroup("sgd", {}), {"'sgd'", "no parameters"});
  ExpectInvalid(model.AddParamGroup("sgd", std::vector{1, 2}),
                {"'c'", "param group 1 already"});
  ExpectInvalid(model.AddParamGroup("sgd", std::vector{1, 1}),
                {"'b'", "twice", "'sgd'"});
  ExpectInvalid(model.AddParamGroup("sgd", std::vector{1, 3}),
                {"id 3", "0 to 2"});
  ExpectInvalid(model.AddParamGroup("\xFF", std::vector{1}), {"UTF-8"});
  EXPECT_EQ(model.groups().size(), 2u);
  EXPECT_EQ(model.params()[1].group, kDefaultGroup);
}

TEST(Model, FindsParametersByAnyName) {
  Model model;
  const ModuleId a = *model.AddModule(kRootModule, "a", "");
  const ModuleId b = *model.AddModule(a, "b", "");
  const ParamId deep = *model.AddParam(b, "w", DType::kF32, {2});
  const ParamId top = *model.AddParam(kRootModule, "w", DType::kF32, {2});
  ASSERT_OK(model.Tie(a, "alias", deep));
  ASSERT_OK(model.IgnoreParam(top));
  EXPECT_EQ(*model.FindParam("a.b.w"), deep);
  EXPECT_EQ(*model.FindParam("a.alias"), deep);
  EXPECT_EQ(*model.FindParam("w"), top);

  const auto missing = [&](const char* fqn, const char* text) {
    ExpectError(model.FindParam(fqn), StatusCode::kNotFound, {text});
  };
  missing("a.b.v", "'a.b.v': module 'a.b' has no parameter 'v'");
  missing("a.c.w", "module 'a' has no module 'c'");
  missing("a.b", "module 'a' has no parameter 'b'");
  missing("w.x", "the root module has no module 'w'");
  missing("", "no parameter is named ''");
  missing("a..w", "module 'a' has no module ''");
  missing("\xFF", "'\\xff'");
}

TEST(Model, AParameterCanBeStoredInAnotherDType) {
  Model model;
  const ParamId param = *model.AddParam(kRootModule, "w", DType::kF32, {3, 4});
  ASSERT_OK(model.SetDType(param, DType::kBF16));
  EXPECT_EQ(model.params()[0].dtype, DType::kBF16);
  EXPECT_EQ(model.params()[0].numel, 12);

  ExpectInvalid(model.SetDType(7, DType::kF32), {"id 7"});
  ExpectInvalid(model.SetDType(param, DType::kQ8), {"'w'", "5"});
  const ParamId large =
      *model.AddParam(kRootModule, "large", DType::kBF16, {int64_t{1} << 61});
  ExpectInvalid(model.SetDType(large, DType::kF32), {"'large'", "2^63-1"});
  EXPECT_EQ(model.params()[1].dtype, DType::kBF16);
}

}  // namespace
}  // namespace shard::model_test
