// SPDX-License-Identifier: Apache-2.0

#include "core/model/wrap.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"

namespace shard::wrap_test {
namespace {

using Fqns = std::vector<std::string>;

WrapPolicy ParseOk(std::string_view text) {
  auto policy = WrapPolicy::Parse(text);
  EXPECT_OK(policy);
  return policy.ok() ? *std::move(policy) : WrapPolicy();
}

Fqns Wrapped(const WrapPolicy& policy, const Model& model,
             const std::vector<std::string>& also_classes = {}) {
  Fqns fqns;
  for (const ModuleId module : policy.Run(model, ClassSet(also_classes))) {
    fqns.push_back(model.ModuleFqn(module));
  }
  return fqns;
}

Fqns Wrapped(std::string_view text, const Model& model) {
  return Wrapped(ParseOk(text), model);
}

// a: Block with 10, holding a.x: Leaf with 20 and a.y: Norm with 3;
// b: Leaf with 40, holding b.z: Norm with 50; the root has 5 of its own.
struct Tree {
  Tree() {
    AddParam(kRootModule, 5);
    a = Add(kRootModule, "a", "Block", 10);
    x = Add(a, "x", "Leaf", 20);
    y = Add(a, "y", "Norm", 3);
    b = Add(kRootModule, "b", "Leaf", 40);
    z = Add(b, "z", "Norm", 50);
  }
  ParamId AddParam(ModuleId module, int64_t numel) {
    return *model.AddParam(module, "w", DType::kF32, {numel});
  }
  ModuleId Add(ModuleId parent, const char* name, const char* class_name,
               int64_t numel) {
    const ModuleId module = *model.AddModule(parent, name, class_name);
    AddParam(module, numel);
    return module;
  }
  Model model{"Root"};
  ModuleId a, x, y, b, z;
};

TEST(WrapPolicy, WithoutOneNothingIsWrapped) {
  const Tree tree;
  EXPECT_EQ(Wrapped(WrapPolicy(), tree.model), Fqns{});
  EXPECT_EQ(Wrapped("", tree.model), Fqns{});
}

TEST(WrapPolicy, AlwaysWrapsEveryModule) {
  EXPECT_EQ(Wrapped("always", Tree().model),
            (Fqns{"a", "a.x", "a.y", "b", "b.z"}));
}

TEST(WrapPolicy, WrapsByClass) {
  const Tree tree;
  EXPECT_EQ(Wrapped("class?names=Norm", tree.model), (Fqns{"a.y", "b.z"}));
  EXPECT_EQ(Wrapped("class?names=Block,Leaf", tree.model),
            (Fqns{"a", "a.x", "b"}));
  // The root is a unit whatever its class, and is not listed here.
  EXPECT_EQ(Wrapped("class?names=Root", tree.model), Fqns{});
}

TEST(WrapPolicy, SizeCountsWhatUnitsWithinLeave) {
  const Tree tree;
  // a has 33, b has 90, of which b.z takes 50.
  EXPECT_EQ(Wrapped("size?min_numel=33&exclude=&force_leaf=", tree.model),
            (Fqns{"a", "b", "b.z"}));
  EXPECT_EQ(Wrapped("size?min_numel=41&exclude=&force_leaf=", tree.model),
            (Fqns{"b.z"}));
  // With its own unit, a.x leaves 13 to a.
  EXPECT_EQ(Wrapped("size?min_numel=14&exclude=&force_leaf=", tree.model),
            (Fqns{"a.x", "b", "b.z"}));
  EXPECT_EQ(Wrapped("size?min_numel=13&exclude=&force_leaf=", tree.model),
            (Fqns{"a", "a.x", "b", "b.z"}));
  EXPECT_EQ(Wrapped("size", tree.model), Fqns{});
}

TEST(WrapPolicy, SizeKeepsToForceLeafAndExclude) {
  const Tree tree;
  // Leaf is not wrapped itself either: torch asks about a module only when it
  // looks into it.
  EXPECT_EQ(Wrapped("size?min_numel=3&force_leaf=Leaf", tree.model),
            (Fqns{"a", "a.y"}));
  // The module is left to the one around it.
  EXPECT_EQ(Wrapped("size?min_numel=40&exclude=Norm&force_leaf=", tree.model),
            (Fqns{"b"}));
  Model defaults;
  for (const char* name : {"MultiheadAttention", "ModuleList", "ModuleDict"}) {
    const ModuleId module = *defaults.AddModule(kRootModule, name, name);
    const ModuleId within = *defaults.AddModule(module, "within", "Linear");
    EXPECT_OK(defaults.AddParam(module, "w", DType::kF32, {100}));
    EXPECT_OK(defaults.AddParam(within, "w", DType::kF32, {100}));
  }
  EXPECT_EQ(Wrapped("size?min_numel=100", defaults),
            (Fqns{"ModuleList.within", "ModuleDict.within"}));
}

TEST(WrapPolicy, WrapsModulesThatAnyPolicySelects) {
  const Tree tree;
  EXPECT_EQ(Wrapped("class?names=Block|class?names=Norm", tree.model),
            (Fqns{"a", "a.y", "b.z"}));
  // The other policy looks below force_leaf, and size is asked there too.
  EXPECT_EQ(Wrapped("size?min_numel=50&force_leaf=Leaf|class?names=Nothing",
                    tree.model),
            (Fqns{"b.z"}));
}

TEST(WrapPolicy, APredicateIsOneMorePolicy) {
  const Tree tree;
  std::vector<std::pair<std::string, int64_t>> asked;
  WrapPolicy policy = ParseOk("class?names=Norm");
  policy.SetPredicate([&](ModuleId module, int64_t numel) {
    asked.emplace_back(tree.model.ModuleFqn(module), numel);
    return module == tree.x;
  });
  EXPECT_EQ(Wrapped(policy, tree.model), (Fqns{"a.x", "a.y", "b.z"}));
  // Modules are asked about from the inside out, with the elements that are
  // left.
  EXPECT_EQ(asked, (std::vector<std::pair<std::string, int64_t>>{
                       {"a.x", 20}, {"a", 10}, {"b", 40}}));
}

TEST(WrapPolicy, WrapsTheGivenModules) {
  const Tree tree;
  std::vector<bool> wrapped(tree.model.modules().size());
  wrapped[static_cast<size_t>(tree.x)] = true;
  const WrapPolicy policy = WrapPolicy::OfModules(wrapped, "always");
  EXPECT_EQ(Wrapped(policy, tree.model), (Fqns{"a.x"}));
  EXPECT_EQ(policy.text(), "always");
}

TEST(WrapPolicy, WrapsOtherClassesToo) {
  const Tree tree;
  EXPECT_EQ(Wrapped(WrapPolicy(), tree.model, {"Norm"}), (Fqns{"a.y", "b.z"}));
  EXPECT_EQ(
      Wrapped(ParseOk("size?min_numel=33&force_leaf="), tree.model, {"Norm"}),
      (Fqns{"a.y", "b", "b.z"}));
}

TEST(WrapPolicy, IgnoredModulesAndParametersDoNotCount) {
  Tree tree;
  const ParamId extra = *tree.model.AddParam(tree.a, "u", DType::kF32, {1000});
  EXPECT_OK(tree.model.IgnoreParam(extra));
  EXPECT_OK(tree.model.IgnoreModule(tree.b));
  EXPECT_EQ(Wrapped("always", tree.model), (Fqns{"a", "a.x", "a.y"}));
  EXPECT_EQ(Wrapped("size?min_numel=34", tree.model), Fqns{});
  EXPECT_EQ(Wrapped("size?min_numel=33", tree.model), Fqns{"a"});
  EXPECT_OK(tree.model.IgnoreModule(kRootModule));
  EXPECT_EQ(Wrapped("always", tree.model), Fqns{});
}

TEST(WrapPolicy, TiesCountOnceWhereTheyAreFirst) {
  Tree tree;
  const ParamId tied = *tree.model.AddParam(tree.x, "t", DType::kF32, {100});
  EXPECT_OK(tree.model.Tie(tree.z, "t", tied));
  EXPECT_OK(tree.model.Tie(tree.y, "t", tied));
  EXPECT_EQ(Wrapped("size?min_numel=60", tree.model), (Fqns{"a.x", "b"}));
  EXPECT_EQ(Wrapped("size?min_numel=121", tree.model), Fqns{"a"});
}

// The tree is as deep as names can be: recursion would need megabytes of the
// host's stack.
TEST(WrapPolicy, WalksDeepTrees) {
  Model model;
  ModuleId module = kRootModule;
  for (int i = 0; i < 30'000; ++i) {
    module = *model.AddModule(module, "m", i % 2 == 0 ? "Even" : "Odd");
    EXPECT_OK(model.AddParam(module, "w", DType::kF32, {2}));
  }
  EXPECT_EQ(ParseOk("class?names=Even").Run(model).size(), 15'000u);
  const std::vector<ModuleId> sized =
      ParseOk("size?min_numel=15000").Run(model);
  EXPECT_EQ(sized, (std::vector<ModuleId>{1, 7501, 15'001, 22'501}));
}

TEST(WrapPolicy, SumsBeyondInt64AreLarge) {
  Model model;
  const ModuleId a = *model.AddModule(kRootModule, "a", "A");
  for (const char* name : {"x", "y", "z"}) {
    const ModuleId module = *model.AddModule(a, name, "B");
    EXPECT_OK(model.AddParam(module, "w", DType::kF32, {int64_t{1} << 60}));
    for (int i = 0; i < 4; ++i) {
      EXPECT_OK(model.AddParam(module, StrCat("w", i), DType::kF32,
                               {int64_t{1} << 60}));
    }
  }
  EXPECT_EQ(
      Wrapped(StrCat("size?min_numel=", std::numeric_limits<int64_t>::max()),
              model),
      Fqns{"a"});
}

TEST(WrapPolicy, PoliciesThatMatchNothing) {
  const Tree tree;  // 128 elements; b has 90.
  const auto check = [](std::string_view text, const Model& model) {
    return ParseOk(text).CheckMatches(model);
  };
  ExpectInvalid(check("class?names=Blok,Nrom", tree.model),
                {"wrap policy 'class' names 'Blok'", "no module"});
  ExpectInvalid(check("always|class?names=leaf", tree.model), {"'leaf'"});
  // Each of several names is the class of a module.
  EXPECT_OK(check("class?names=Leaf,Norm", tree.model));
  ExpectInvalid(check("class?names=Leaf,Nrom,Norm", tree.model), {"'Nrom'"});
  ExpectInvalid(check("size?min_numel=91", tree.model),
                {"min_numel=91 matches nothing: the model has 128 elements, "
                 "and the largest module that it may take is 'b' with 90 "
                 "elements; use a smaller min_numel"});
  ExpectInvalid(check("class?names=Norm|size?min_numel=128", tree.model),
                {"min_numel=128"});
  ExpectInvalid(
      check("size?min_numel=34&force_leaf=Leaf", tree.model),
      {"'a' with 33 elements; use a smaller min_numel ('b' with 90 elements is "
       "of class 'Leaf', which is in force_leaf)"});
  ExpectInvalid(
      check("size?min_numel=51&exclude=Leaf", tree.model),
      {"'b.z' with 50 elements; use a smaller min_numel ('b' with 90 elements "
       "is of class 'Leaf', which is in exclude)"});
  ExpectInvalid(check("size?min_numel=50&force_leaf=Root", tree.model),
                {"force_leaf and exclude leave it no module with elements"});
  EXPECT_OK(check("size?min_numel=90", tree.model));
  // The whole model is smaller, or has no module inside it: one unit is what
  // the policy means.
  EXPECT_OK(check("size?min_numel=129", tree.model));
  EXPECT_OK(check("size", tree.model));
  Model flat;
  EXPECT_OK(flat.AddParam(kRootModule, "w", DType::kF32, {100}));
  EXPECT_OK(check("size?min_numel=10", flat));
  // Policies of modules were checked where the plan was made.
  EXPECT_OK(WrapPolicy::OfModules(std::vector<bool>(6), "class?names=Gone")
                .CheckMatches(tree.model));
}

// A size is asked about the modules that other policies reach.
TEST(WrapPolicy, SizesMatchWhereOtherPoliciesReach) {
  const Tree tree;  // b.z, of 50 elements, is inside a Leaf.
  const char* const size = "size?min_numel=50&force_leaf=Leaf";
  const std::vector<std::string> norms = {"Norm"};
  WrapPolicy policy = ParseOk(size);
  ExpectInvalid(policy.CheckMatches(tree.model), {"min_numel=50", "'a'", "33"});
  EXPECT_OK(policy.CheckMatches(tree.model, ClassSet(norms)));
  EXPECT_OK(
      ParseOk(StrCat(size, "|class?names=Norm")).CheckMatches(tree.model));
  policy.SetPredicate([](ModuleId, int64_t) -> bool {
    ADD_FAILURE() << "the predicate was called";
    return true;
  });
  EXPECT_OK(policy.CheckMatches(tree.model));
  // Another size reaches what it looks into, and no more.
  const auto with_other = [&](const char* other) {
    return ParseOk(StrCat(size, "|", other)).CheckMatches(tree.model);
  };
  EXPECT_OK(with_other("size?min_numel=90"));
  ExpectInvalid(with_other("size?min_numel=1&force_leaf=Leaf"),
                {"min_numel=50", "'a' with 33 elements"});
  ExpectInvalid(with_other("size?min_numel=91&force_leaf="),
                {"min_numel=50", "'a' with 33 elements"});
}

// Lists of modules are as large as all that they hold, and never taken.
TEST(WrapPolicy, SizesThatOnlyAListHas) {
  Model model;
  const ModuleId list = *model.AddModule(kRootModule, "layers", "ModuleList");
  for (const char* name : {"0", "1", "2"}) {
    const ModuleId block = *model.AddModule(list, name, "Block");
    EXPECT_OK(model.AddParam(block, "w", DType::kF32, {30}));
  }
  EXPECT_OK(ParseOk("size?min_numel=30").CheckMatches(model));
  for (const int numel : {31, 90}) {
    ExpectInvalid(
        ParseOk(StrCat("size?min_numel=", numel)).CheckMatches(model),
        {StrCat("min_numel=", numel),
         "the largest module that it may take is 'layers.0' with 30 elements; "
         "use a smaller min_numel ('layers' with 90 elements is of class "
         "'ModuleList', which is in exclude)"});
  }
  EXPECT_OK(ParseOk("size?min_numel=91").CheckMatches(model));
}

TEST(WrapPolicy, WrongTextsAreNamed) {
  ExpectInvalid(WrapPolicy::Parse("sometimes"),
                {"'sometimes'", "always, class, size"});
  ExpectInvalid(WrapPolicy::Parse("class"), {"names no class"});
  ExpectInvalid(WrapPolicy::Parse("class?names="), {"names no class"});
  ExpectInvalid(WrapPolicy::Parse("class?names=A,,B"), {"'A,,B'", "empty"});
  ExpectInvalid(WrapPolicy::Parse("class?name=A"), {"'name'", "names"});
  ExpectInvalid(WrapPolicy::Parse("always?names=A"), {"'names'", "none"});
  ExpectInvalid(WrapPolicy::Parse("always:x"), {"'always'", "'x'"});
  ExpectInvalid(WrapPolicy::Parse("size?min_numel=-1"), {"min_numel=-1"});
  ExpectInvalid(WrapPolicy::Parse("size?min_numel=1e8"), {"'1e8'", "integer"});
  ExpectInvalid(WrapPolicy::Parse("class?names=\xFF"), {"UTF-8"});
  // An error in one of several policies has the whole text.
  ExpectInvalid(WrapPolicy::Parse("always|"), {"'always|'", "no name"});
  ExpectInvalid(WrapPolicy::Parse("|always"), {"'|always'", "no name"});
  ExpectInvalid(WrapPolicy::Parse("always|class"), {"'always|class'"});
}

}  // namespace
}  // namespace shard::wrap_test
