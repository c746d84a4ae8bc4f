// SPDX-License-Identifier: Apache-2.0

#include "core/state/match.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/optim/groups.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/state/fake_store.h"

namespace shard::match_test {
namespace {

using Kind = EntryMatch::Kind;
using Keys = std::vector<std::string>;

// A model, its entries, and their matches in a store.
struct Case {
  std::shared_ptr<Model> model = std::make_shared<Model>("Root");
  std::string optimizer = "lion";
  Masters masters = Masters::kF32;
  StateOptions options;
  LoadRules rules;
  FakeStore store;
  MatchReport report;
  std::vector<StateEntry> entries;
  std::vector<EntryMatch> matches;

  ModuleId Module(const std::string& name, ModuleId parent = kRootModule) {
    return *model->AddModule(parent, name, "Module");
  }
  ParamId Param(ModuleId module, const std::string& name,
                DType dtype = DType::kF32, std::vector<int64_t> shape = {4}) {
    return *model->AddParam(module, name, dtype, std::move(shape));
  }
  Status Match() {
    PlanOptions plan_options;
    plan_options.masters = masters;
    SHARD_ASSIGN_OR_RETURN(plan_options.groups, PlanGroups(*model, optimizer));
    SHARD_ASSIGN_OR_RETURN(const auto plan, Plan::Create(model, plan_options));
    matches.clear();
    SHARD_ASSIGN_OR_RETURN(entries, ListStateEntries(*plan, options));
    SHARD_ASSIGN_OR_RETURN(
        matches, MatchState(*plan, entries, store, options, rules, &report));
    return Status();
  }
  // Returns the match of an entry as "same weight" or "none".
  std::string Of(const std::string& key) const {
    if (matches.size() != entries.size()) return "it did not match";
    for (size_t e = 0; e < entries.size(); ++e) {
      if (entries[e].key != key) continue;
      const EntryMatch& match = matches[e];
      constexpr const char* kNames[] = {"none", "same", "convert", "decode",
                                        "encode"};
      if (match.kind == Kind::kNone) return "none";
      std::string text = StrCat(kNames[static_cast<int>(match.kind)], " ",
                                store.tensor(match.tensor).key);
      if (match.kind == Kind::kDecode) {
        StrAppend(&text, " by ", store.tensor(match.scales).key);
      }
      return text;
    }
    return "no such entry";
  }
};

TEST(MatchTest, TheSameOnBothSides) {
  Case c;
  c.Param(kRootModule, "w");
  c.Param(kRootModule, "empty", DType::kF32, {0});
  c.store.Add("w", {4});
  c.store.Add("empty", {0});
  c.store.Add("state.w.exp_avg", {4});
  c.store.Add("state.empty.exp_avg", {0});
  ASSERT_OK(c.Match());
  EXPECT_EQ(c.Of("w"), "same w");
  EXPECT_EQ(c.Of("state.w.exp_avg"), "same state.w.exp_avg");
  EXPECT_EQ(c.Of("empty"), "none");
  EXPECT_EQ(c.report.loaded, 4);
  EXPECT_EQ(c.report.converted, 0);
}

TEST(MatchTest, StrictListsAllThatIsMissingAndUnexpected) {
  Case c;
  for (int i = 0; i < 12; ++i) c.Param(kRootModule, StrCat("here", i));
  c.Param(kRootModule, "both");
  c.optimizer = "sgd";
  c.store.Add("both", {4});
  c.store.Add("there", {4});
  c.store.Add("state.there.exp_avg", {4});
  // Host tensors count as parameters do.
  c.store.SetRole(c.store.Add("mean_there", {4}), TensorRole::kBuffer);
  ASSERT_OK(c.model->AddHostTensor(kRootModule, "mean_here", ElementType::kI64,
                                   {}, true));
  ASSERT_OK(c.model->AddHostTensor(kRootModule, "mean_both", ElementType::kI64,
                                   {}, true));
  // The role does not matter: other programs' files have none.
  c.store.Add("mean_both", {}, ElementType::kI64);
  const Status status = c.Match();
  ExpectError(status, StatusCode::kFailedPrecondition,
              {"the fake store", "13 missing: here0, here1", ", ...",
               "3 unexpected: there, state.there.exp_avg, mean_there",
               "allow_mismatch"});
  const auto detail = nlohmann::json::parse(status.detail());
  EXPECT_EQ(detail["missing"].size(), 13u);
  EXPECT_EQ(detail["missing"][11], "here11");
  EXPECT_EQ(detail["missing"][12], "mean_here");
  EXPECT_EQ(detail["unexpected"],
            (Keys{"there", "state.there.exp_avg", "mean_there"}));
  EXPECT_TRUE(detail["mismatched"].empty());
  EXPECT_EQ(c.report.missing.size(), 13u);

  c.rules.strict = false;
  ASSERT_OK(c.Match());
  EXPECT_EQ(c.report.missing.size(), 13u);
  EXPECT_EQ(c.report.unexpected.size(), 3u);
  EXPECT_EQ(c.report.loaded, 2);
  EXPECT_EQ(c.Of("both"), "same both");
  EXPECT_EQ(c.Of("mean_both"), "same mean_both");
  EXPECT_EQ(c.Of("here3"), "none");
}

TEST(MatchTest, AnEmptyStoreIsAnErrorUnlessAPartIsAskedFor) {
  Case c;
  const ModuleId layer = c.Module("layer");
  const ParamId weight = c.Param(layer, "weight");
  ASSERT_OK(c.model->SetTrainable(weight, false));
  ExpectError(c.Match(), StatusCode::kFailedPrecondition,
              {"none of the tensors that the load is for"});
  c.rules.strict = false;
  EXPECT_OK(c.Match());
  c.rules.strict = true;
  c.options.ignore_frozen = true;
  EXPECT_OK(c.Match());
  c.options.ignore_frozen = false;
  c.options.submodules = {layer};
  // With submodules the error says which tensors are missing.
  ExpectError(c.Match(), StatusCode::kFailedPrecondition,
              {"1 missing: layer.weight"});
}

TEST(MatchTest, ShapesAndTypesMustFitEvenWhenNotStrict) {
  for (const bool strict : {false, true}) {
    Case c;
    c.rules.strict = strict;
    c.optimizer = "sgd";
    c.Param(kRootModule, "a", DType::kF32, {2, 3});
    c.Param(kRootModule, "b", DType::kBF16);
    c.Param(kRootModule, "c");
    c.store.Add("a", {3, 2});
    c.store.Add("b", {4}, ElementType::kF32);
    c.store.Add("c", {4}, ElementType::kI64);
    c.masters = Masters::kNoneNearest;
    const Status status = c.Match();
    ExpectError(status, StatusCode::kFailedPrecondition,
                {"3 mismatched", "'a' has shape", "3", "2",
                 "'b' is f32 in the store and bf16 here; set convert to"});
    const auto detail = nlohmann::json::parse(status.detail());
    EXPECT_EQ(detail["mismatched"].size(), 3u);
    // The message promises no conversion that does not exist.
    const std::string line = detail["mismatched"][2];
    EXPECT_EQ(line, "'c' is i64 in the store and f32 here");
    c.rules.convert = true;
    ExpectError(c.Match(), StatusCode::kFailedPrecondition, {"2 mismatched"});
    EXPECT_EQ(c.report.converted, 1);
  }
}

TEST(MatchTest, TypesThatCannotBeRead) {
  for (const bool convert : {false, true}) {
    Case c;
    c.rules.convert = convert;
    c.rules.strict = false;
    c.optimizer = "sgd";
    c.Param(kRootModule, "a");
    c.Param(kRootModule, "b");
    c.store.Add("a", {4});
    // The elements are packed, so the shape may differ, too.
    c.store.Add("b", {2}, ElementType::kOpaque);
    const Status status = c.Match();
    ExpectError(status, StatusCode::kUnimplemented,
                {"the fake store", "1 tensors", "'b' is F8_E8M0"});
    EXPECT_EQ(nlohmann::json::parse(status.detail())["mismatched"].size(), 1u);
  }
}

TEST(MatchTest, TypesThatCannotBeReadAndAreNotAskedFor) {
  Case c;
  c.optimizer = "sgd";
  c.Param(kRootModule, "a");
  c.store.Add("a", {4});
  c.store.Add("b", {2}, ElementType::kOpaque);
  ExpectError(c.Match(), StatusCode::kFailedPrecondition,
              {"1 unexpected: b", "set allow_mismatch"});
  c.rules.strict = false;
  EXPECT_OK(c.Match());
  EXPECT_EQ(c.Of("a"), "same a");
}

TEST(MatchTest, FloatsConvert) {
  for (const ElementType from : {ElementType::kF32, ElementType::kBF16,
                                 ElementType::kF16, ElementType::kF64}) {
    for (const DType to : {DType::kF32, DType::kBF16, DType::kF16}) {
      Case c;
      c.optimizer = "sgd";
      c.masters = Masters::kNoneNearest;
      c.Param(kRootModule, "w", to);
      c.store.Add("w", {4}, from);
      c.rules.convert = true;
      ASSERT_OK(c.Match());
      EXPECT_EQ(c.Of("w"), from == ElementTypeOf(to) ? "same w" : "convert w");
    }
  }
}

TEST(MatchTest, CodesDecodeAndEncode) {
  Case c;
  c.optimizer = "adamw";
  c.Param(kRootModule, "w", DType::kF32, {300});
  c.store.Add("w", {300});
  c.store.Add("state.w.exp_avg_sq", {300});
  c.store.Add("state.w.exp_avg", {300}, ElementType::kQ8);
  c.store.Add("state.w.exp_avg.q8_scale", {2});
  ExpectError(c.Match(), StatusCode::kFailedPrecondition, {"q8", "convert"});
  c.rules.convert = true;
  ASSERT_OK(c.Match());
  EXPECT_EQ(c.Of("state.w.exp_avg"),
            "decode state.w.exp_avg by state.w.exp_avg.q8_scale");
  EXPECT_EQ(c.report.converted, 1);
  c.store.Remove("state.w.exp_avg.q8_scale");
  ExpectError(c.Match(), StatusCode::kFailedPrecondition,
              {"1 missing: state.w.exp_avg.q8_scale"});

  Case back;
  back.optimizer = "adamw?states=q8";
  back.Param(kRootModule, "w", DType::kF32, {300});
  back.store.Add("w", {300});
  back.store.Add("state.w.exp_avg", {300}, ElementType::kBF16);
  back.store.Add("state.w.exp_avg_sq", {300}, ElementType::kQ8);
  back.store.Add("state.w.exp_avg_sq.q8_scale", {2});
  ExpectError(back.Match(), StatusCode::kFailedPrecondition, {"convert"});
  back.rules.convert = true;
  ASSERT_OK(back.Match());
  EXPECT_EQ(back.Of("state.w.exp_avg"), "encode state.w.exp_avg");
  EXPECT_EQ(back.Of("state.w.exp_avg.q8_scale"), "none");
  EXPECT_EQ(back.Of("state.w.exp_avg_sq"), "same state.w.exp_avg_sq");
  EXPECT_EQ(back.Of("state.w.exp_avg_sq.q8_scale"),
            "same state.w.exp_avg_sq.q8_scale");
}

TEST(MatchTest, MastersStandForTheParameterAndBack) {
  // In the store bf16 with masters, here f32: the masters have more bits.
  Case wide;
  wide.Param(kRootModule, "w");
  wide.store.Add("w", {4}, ElementType::kBF16);
  wide.store.Add("state.w.exp_avg", {4});
  wide.store.Add("state.w.master_param", {4});
  ExpectError(wide.Match(), StatusCode::kFailedPrecondition, {"bf16"});
  wide.rules.convert = true;
  ASSERT_OK(wide.Match());
  EXPECT_EQ(wide.Of("w"), "same state.w.master_param");

  // In the store f32, here bf16 with masters.
  Case narrow;
  narrow.Param(kRootModule, "w", DType::kBF16);
  narrow.store.Add("w", {4});
  narrow.store.Add("state.w.exp_avg", {4});
  ExpectError(narrow.Match(), StatusCode::kFailedPrecondition, {"mismatched"});
  narrow.rules.convert = true;
  ASSERT_OK(narrow.Match());
  EXPECT_EQ(narrow.Of("w"), "convert w");
  EXPECT_EQ(narrow.Of("state.w.master_param"), "same w");

  // In the store bf16 with masters, here bf16 without: the masters are not
  // unexpected.
  Case without;
  without.masters = Masters::kNoneNearest;
  without.Param(kRootModule, "w", DType::kBF16);
  without.store.Add("w", {4}, ElementType::kBF16);
  without.store.Add("state.w.exp_avg", {4});
  without.store.Add("state.w.master_param", {4});
  ExpectError(without.Match(), StatusCode::kFailedPrecondition,
              {"1 unexpected: state.w.master_param"});
  without.rules.convert = true;
  ASSERT_OK(without.Match());
  EXPECT_EQ(without.Of("w"), "same w");
}

TEST(MatchTest, WrappersInTheStore) {
  Case c;
  c.optimizer = "sgd";
  c.Param(c.Module("layer"), "weight");
  c.store.Add("_fsdp_wrapped_module.layer._orig_mod.weight", {4});
  ASSERT_OK(c.Match());
  EXPECT_EQ(c.Of("layer.weight"),
            "same _fsdp_wrapped_module.layer._orig_mod.weight");
  // A key without wrappers comes first; the other key is left over.
  c.store.Add("layer.weight", {4});
  ExpectError(c.Match(), StatusCode::kFailedPrecondition,
              {"0 missing",
               "1 unexpected: _fsdp_wrapped_module.layer._orig_mod.weight"});
  c.rules.strict = false;
  ASSERT_OK(c.Match());
  EXPECT_EQ(c.Of("layer.weight"), "same layer.weight");
}

TEST(MatchTest, LeadingModule) {
  Case c;
  c.optimizer = "sgd";
  c.Param(c.Module("layer"), "weight");
  c.store.Add("module.layer.weight", {4});
  ExpectError(c.Match(), StatusCode::kFailedPrecondition, {});
  c.rules.strip_leading_module = true;
  ASSERT_OK(c.Match());
  EXPECT_EQ(c.Of("layer.weight"), "same module.layer.weight");

  // Only one leading "module." is removed: the second is the host's own.
  Case two;
  two.optimizer = "sgd";
  two.rules.strip_leading_module = true;
  two.Param(two.Module("module"), "weight");
  two.store.Add("module.module.weight", {4});
  ASSERT_OK(two.Match());
  EXPECT_EQ(two.Of("module.weight"), "same module.module.weight");
}

TEST(MatchTest, SubmodulesAskForTheirOwnKeysOnly) {
  Case c;
  c.optimizer = "sgd";
  // The path of the submodule itself has a wrapper.
  const ModuleId wrapper = c.Module("_fsdp_wrapped_module");
  const ModuleId a = c.Module("a", wrapper);
  c.Param(a, "w");
  c.Param(c.Module("ab", wrapper), "w");
  c.store.Add("a.w", {4});
  c.store.Add("ab.w", {4});
  c.options.submodules = {a};
  ASSERT_OK(c.Match());
  EXPECT_EQ(c.report.loaded, 1);
  c.store.Add("a.more", {4});
  c.store.Add("ab.more", {4});
  ExpectError(c.Match(), StatusCode::kFailedPrecondition,
              {"1 unexpected: a.more;"});
}

TEST(MatchTest, WithoutPrefixesEverythingIsAskedFor) {
  Case c;
  c.optimizer = "sgd";
  const ModuleId a = c.Module("a");
  c.Param(a, "w");
  c.store.Add("w", {4});
  c.options.submodules = {a};
  c.options.strip_prefix = true;
  ASSERT_OK(c.Match());
  EXPECT_EQ(c.Of("w"), "same w");
  c.store.Add("b", {4});
  ExpectError(c.Match(), StatusCode::kFailedPrecondition, {"1 unexpected: b"});
}

TEST(MatchTest, ContentAsksForNothingElse) {
  Case c;
  c.Param(kRootModule, "w");
  c.store.Add("w", {4});
  c.store.Add("more", {4});
  c.store.Add("state.w.exp_avg", {4});
  c.store.Add("state.w.more", {4});
  c.options.content = StateContent::kModel;
  ExpectError(c.Match(), StatusCode::kFailedPrecondition,
              {"1 unexpected: more;"});
  c.options.content = StateContent::kOptimizer;
  ExpectError(c.Match(), StatusCode::kFailedPrecondition,
              {"1 unexpected: state.w.more;"});
}

// A parameter that is frozen here is not asked for, though the store has it and
// the states with which it was trained there.
TEST(MatchTest, FrozenOnesAreNotAskedFor) {
  for (const bool strip : {false, true}) {
    for (const bool wrapped : {false, true}) {
      Case c;
      const ModuleId layer = c.Module("layer");
      const ModuleId inner = wrapped ? c.Module("_orig_mod", layer) : layer;
      c.Param(inner, "w");
      ASSERT_OK(c.model->SetTrainable(c.Param(inner, "frozen"), false));
      if (strip) c.options.submodules = {layer};
      c.options.strip_prefix = strip;
      c.options.ignore_frozen = true;
      const std::string at = strip ? "" : "layer.";
      c.store.Add(at + "w", {4});
      c.store.Add(at + "frozen", {4});
      c.store.Add("state." + at + "w.exp_avg", {4});
      c.store.Add("state." + at + "frozen.exp_avg", {4}, ElementType::kQ8);
      c.store.Add("state." + at + "frozen.exp_avg.q8_scale", {1});
      EXPECT_OK(c.Match());
      EXPECT_EQ(c.report.loaded, 2);
      c.options.ignore_frozen = false;
      ExpectError(c.Match(), StatusCode::kFailedPrecondition,
                  {"0 missing", "2 unexpected"});
    }
  }
}

// Returns a model with `embedding`, and `head.weight` tied to it.
Case TiedCase() {
  Case c;
  const ParamId embedding = c.Param(kRootModule, "embedding");
  EXPECT_OK(c.model->Tie(c.Module("head"), "weight", embedding));
  return c;
}

TEST(MatchTest, TiedIsFoundUnderAnyNameWithItsStates) {
  for (const char* name : {"embedding", "head.weight"}) {
    for (const bool optimizer_only : {false, true}) {
      Case c = TiedCase();
      if (optimizer_only) {
        c.options.content = StateContent::kOptimizer;
      } else {
        c.store.Add(name, {4});
      }
      c.store.Add(StrCat("state.", name, ".exp_avg"), {4});
      EXPECT_OK(c.Match());
      EXPECT_EQ(c.Of("state.embedding.exp_avg"),
                StrCat("same state.", name, ".exp_avg"));
      if (optimizer_only) continue;
      EXPECT_EQ(c.Of("embedding"), StrCat("same ", name));
      EXPECT_EQ(c.Of("head.weight"), "none");
      EXPECT_EQ(c.report.loaded, 2);
    }
  }
}

TEST(MatchTest, TiedBothHereAndThere) {
  Case c = TiedCase();
  c.store.AddAlias("head.weight", c.store.Add("embedding", {4}));
  c.store.Add("state.embedding.exp_avg", {4});
  EXPECT_OK(c.Match());
  // The submodule knows the parameter by its other name only.
  c.options.submodules = {1};
  ASSERT_OK(c.Match());
  EXPECT_EQ(c.Of("head.weight"), "same head.weight");
  EXPECT_EQ(c.Of("state.head.weight.exp_avg"), "same state.embedding.exp_avg");
}

TEST(MatchTest, TiedThereAndNotHere) {
  Case c;
  c.Param(kRootModule, "embedding");
  c.Param(c.Module("head"), "weight");
  c.store.AddAlias("head.weight", c.store.Add("embedding", {4}));
  c.store.Add("state.embedding.exp_avg", {4});
  ASSERT_OK(c.Match());
  EXPECT_EQ(c.Of("head.weight"), "same head.weight");
  EXPECT_EQ(c.Of("state.head.weight.exp_avg"), "same state.embedding.exp_avg");
}

TEST(MatchTest, TiedHereAndNotThere) {
  Case c = TiedCase();
  c.store.Add("embedding", {4});
  c.store.Add("head.weight", {4});
  c.store.Add("state.embedding.exp_avg", {4});
  c.store.Add("state.head.weight.exp_avg", {4});
  // The store has two parameters with a state each; here there is room for one.
  ExpectError(c.Match(), StatusCode::kFailedPrecondition,
              {"0 missing", "1 unexpected: state.head.weight.exp_avg"});
  c.rules.strict = false;
  ASSERT_OK(c.Match());
  EXPECT_EQ(c.Of("embedding"), "same embedding");
  EXPECT_EQ(c.Of("state.embedding.exp_avg"), "same state.embedding.exp_avg");
}

// Keys of a store may hold any bytes; the detail is valid JSON all the same.
TEST(MatchTest, DetailIsJsonWhateverTheKeys) {
  Case c;
  c.optimizer = "sgd";
  c.Param(kRootModule, "w");
  c.store.Add("w", {4});
  c.store.Add("\"\x80\n", {4});
  const Status status = c.Match();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(nlohmann::json::parse(status.detail())["unexpected"].size(), 1u);
}

}  // namespace
}  // namespace shard::match_test
