// SPDX-License-Identifier: Apache-2.0
//
// The plan's fingerprint: every difference that matters changes it, and nothing
// else does. The plan's facts differ where the fingerprint does.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/facts.h"
#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "core/flat/plan_fields.h"
#include "tests/core/base/expect_status.h"

namespace shard::plan_fingerprint_test {
namespace {

struct Inputs {
  Model model;
  PlanOptions options;
};

struct Names {
  const char* module = "block";
  const char* child = "mlp";
  const char* weight = "weight";
  DType dtype = DType::kF32;
  std::vector<int64_t> shape = {4, 6};
  const char* root_class = "Net";
  const char* child_class = "MLP";
  const char* alias = "alias";
};

// Returns block.weight, block.mlp.up, block.mlp.down, and head.alias for
// block.weight.
Inputs MakeInputs(const Names& names = {}) {
  Inputs inputs{Model(names.root_class), {}};
  Model& model = inputs.model;
  const ModuleId block = *model.AddModule(kRootModule, names.module, "Block");
  const ModuleId mlp = *model.AddModule(block, names.child, names.child_class);
  const ModuleId head = *model.AddModule(kRootModule, "head", "Linear");
  EXPECT_OK(model.AddParam(block, names.weight, names.dtype, names.shape));
  EXPECT_OK(model.AddParam(mlp, "up", DType::kF32, {24}));
  EXPECT_OK(model.AddParam(mlp, "down", DType::kF32, {24}));
  EXPECT_OK(model.Tie(head, names.alias, 0));
  inputs.options.world_size = 4;
  inputs.options.groups = {
      {"adamw?lr=0.001",
       {{"exp_avg", DType::kF32}, {"exp_avg_sq", DType::kF32}}}};
  inputs.options.manual_owners = {0, 1, 2};
  return inputs;
}

std::shared_ptr<const Plan> PlanOf(const Inputs& inputs) {
  const auto plan =
      Plan::Create(std::make_shared<Model>(inputs.model), inputs.options);
  EXPECT_OK(plan);
  return *plan;
}

uint64_t FingerprintOf(const Inputs& inputs) {
  return PlanOf(inputs)->fingerprint();
}

// Returns the facts, one per line.
std::string FactsOf(const Inputs& inputs) {
  class Lines final : public FactSink {
   public:
    void Take(const Fact& fact) override {
      StrAppend(&text, TitleOf(fact), ": ", fact.value, "\n");
    }
    std::string text;
  };
  Lines lines;
  PlanOf(inputs)->Describe(&lines);
  return lines.text;
}

TEST(PlanFingerprint, EveryDifferenceChangesIt) {
  std::map<uint64_t, std::string> seen;
  std::map<std::string, std::string> seen_facts;
  const auto expect_new = [&](const std::string& what, const Inputs& inputs) {
    const uint64_t fingerprint = FingerprintOf(inputs);
    const auto [at, fresh] = seen.emplace(fingerprint, what);
    EXPECT_TRUE(fresh) << what << " hashes like " << at->second;
    // Ranks whose fingerprints differ must be able to name the difference.
    const auto [same, new_facts] = seen_facts.emplace(FactsOf(inputs), what);
    EXPECT_TRUE(new_facts) << what << " has the facts of " << same->second;
  };
  expect_new("the original", MakeInputs());

  // Changes the model, part by part.
  const auto named = [&](const char* what,
                         const std::function<void(Names*)>& change) {
    Names names;
    change(&names);
    expect_new(what, MakeInputs(names));
  };
  named("module name", [](Names* n) { n->module = "blocks"; });
  named("child name", [](Names* n) { n->child = "ffn"; });
  named("parameter name", [](Names* n) { n->weight = "kernel"; });
  named("alias name", [](Names* n) { n->alias = "weight"; });
  named("dtype", [](Names* n) { n->dtype = DType::kBF16; });
  named("shape", [](Names* n) { n->shape = {6, 4}; });
  named("rank of the shape", [](Names* n) { n->shape = {24}; });
  named("unit dimension", [](Names* n) { n->shape = {4, 6, 1}; });
  // The names have the same letters, cut elsewhere.
  named("name boundary", [](Names* n) {
    n->module = "bloc";
    n->child = "kmlp";
  });

  const auto changed = [&](const char* what,
                           const std::function<void(Inputs*)>& change) {
    Inputs inputs = MakeInputs();
    change(&inputs);
    expect_new(what, inputs);
  };
  changed("frozen", [](Inputs* i) { EXPECT_OK(i->model.SetTrainable(1, 0)); });
  changed("another one frozen",
          [](Inputs* i) { EXPECT_OK(i->model.SetTrainable(2, false)); });
  changed("ignored", [](Inputs* i) { EXPECT_OK(i->model.IgnoreParam(2)); });
  changed("ignored module",
          [](Inputs* i) { EXPECT_OK(i->model.IgnoreModule(2)); });
  changed("one more parameter", [](Inputs* i) {
    EXPECT_OK(i->model.AddParam(3, "x", DType::kF32, {0}));
  });
  changed("a tie", [](Inputs* i) { EXPECT_OK(i->model.Tie(3, "x", 1)); });
  changed("a tie to another",
          [](Inputs* i) { EXPECT_OK(i->model.Tie(3, "x", 2)); });
  changed("a tie elsewhere",
          [](Inputs* i) { EXPECT_OK(i->model.Tie(2, "x", 1)); });

  // Changes the options, field by field.
  const auto option = [&](const char* what,
                          const std::function<void(PlanOptions*)>& change) {
    changed(what, [&](Inputs* inputs) { change(&inputs->options); });
  };
  for (const int stage : {0, 2, 3}) {
    option("stage", [=](PlanOptions* o) { o->stage = stage; });
  }
  option("world size", [](PlanOptions* o) { o->world_size = 5; });
  option("greedy", [](PlanOptions* o) { o->partition = Partition::kGreedy; });
  option("bucket", [](PlanOptions* o) { o->partition = Partition::kBucket; });
  option("manual", [](PlanOptions* o) { o->partition = Partition::kManual; });
  option("manual owners", [](PlanOptions* o) {
    o->partition = Partition::kManual;
    o->manual_owners = {0, 2, 1};
  });
  option("bucket bytes", [](PlanOptions* o) { o->bucket_bytes = 100; });
  option("shard buckets", [](PlanOptions* o) { o->shard_buckets = true; });
  option("alignment", [](PlanOptions* o) { o->alignment_bytes = 128; });
  option("alignment of no effect",
         [](PlanOptions* o) { o->alignment_bytes = 32; });
  option("optimizer",
         [](PlanOptions* o) { o->groups[0].optimizer = "adamw?lr=0.002"; });
  option("state name",
         [](PlanOptions* o) { o->groups[0].states[0].name = "m"; });
  option("state dtype",
         [](PlanOptions* o) { o->groups[0].states[1].dtype = DType::kBF16; });
  option("state order", [](PlanOptions* o) {
    std::swap(o->groups[0].states[0], o->groups[0].states[1]);
  });
  option("one state fewer",
         [](PlanOptions* o) { o->groups[0].states.pop_back(); });
  option("f32 gradients", [](PlanOptions* o) { o->f32_grads = true; });
  option("masters", [](PlanOptions* o) { o->masters = Masters::kNoneNearest; });
  option("seed", [](PlanOptions* o) { o->seed = 7; });
  // Linear becomes a unit that holds nothing.
  for (const char* wrap : {"class?names=Block", "class?names=MLP",
                           "class?names=Linear", "always"}) {
    option(wrap, [=](PlanOptions* o) { o->wrap = *WrapPolicy::Parse(wrap); });
  }
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    option("param dtype", [=](PlanOptions* o) { o->param_dtype = dtype; });
  }
  option("f32 classes", [](PlanOptions* o) {
    o->param_dtype = DType::kBF16;
    o->f32_classes = {"MLP"};
  });
  option("buffer bytes", [](PlanOptions* o) { o->buffer_bytes = 100; });
  option("buffer bytes of no effect",
         [](PlanOptions* o) { o->buffer_bytes = 1 << 20; });
  for (const int size : {1, 2, 4}) {
    option("shard group size", [=](PlanOptions* o) {
      o->stage = 3;
      o->shard_group_size = size;
    });
  }
  option("prefetch", [](PlanOptions* o) { o->prefetch = 2; });
  option("whole gradients", [](PlanOptions* o) { o->whole_grads = true; });
  option("keep after forward",
         [](PlanOptions* o) { o->keep_after_forward = true; });
  option("deterministic", [](PlanOptions* o) { o->deterministic = true; });
  const auto grouped = [&](const char* what, const std::vector<ParamId>& params,
                           const char* optimizer) {
    changed(what, [&](Inputs* inputs) {
      EXPECT_OK(inputs->model.AddParamGroup("", params));
      inputs->options.groups.push_back({optimizer, {}});
    });
  };
  grouped("a group", {1}, "sgd");
  grouped("a group of another parameter", {2}, "sgd");
  grouped("a larger group", {1, 2}, "sgd");
  grouped("another optimizer of a group", {1}, "sgd?lr=0.1");
  EXPECT_GE(seen.size(), 52u);
}

// An option that is added to PlanOptions does not compile here: give it a line
// in VisitAgreedOptions, which hashes and names it, and one in the test above
// and in DesyncTest.
TEST(PlanFingerprint, EveryOptionIsConsidered) {
  const PlanOptions options;
  const auto& [stage, world_size, partition, manual_owners, bucket_bytes,
               shard_buckets, wrap, param_dtype, f32_classes, buffer_bytes,
               shard_group_size, prefetch, whole_grads, keep_after_forward,
               deterministic, alignment_bytes, require_sharding, f32_grads,
               masters, seed, groups] = options;
  EXPECT_EQ(stage, 1);
  EXPECT_TRUE(groups.empty());
  // The 21 options above but manual_owners, wrap, f32_classes, require_sharding
  // and groups; and the layout version.
  int visited = 0;
  VisitAgreedOptions(options, [&](const char*, const auto&) { ++visited; });
  EXPECT_EQ(visited, 21 - 5 + 1);
}

TEST(PlanFingerprint, OtherDifferencesDoNotChangeIt) {
  const uint64_t original = FingerprintOf(MakeInputs());
  EXPECT_EQ(FingerprintOf(MakeInputs()), original);

  Names classes;
  classes.root_class = "Other";
  classes.child_class = "FeedForward";
  EXPECT_EQ(FingerprintOf(MakeInputs(classes)), original);

  // Another policy that makes the same units.
  Inputs by_class = MakeInputs();
  by_class.options.wrap = *WrapPolicy::Parse("class?names=Block");
  Inputs by_predicate = MakeInputs();
  by_predicate.options.wrap.SetPredicate(
      [](ModuleId module, int64_t) { return module == 1; });
  EXPECT_EQ(FingerprintOf(by_class), FingerprintOf(by_predicate));
  EXPECT_NE(FingerprintOf(by_class), original);

  // Owners that are not read.
  Inputs owners = MakeInputs();
  owners.options.manual_owners = {3, 3, 3};
  EXPECT_EQ(FingerprintOf(owners), original);

  // Owners of parameters without elements.
  const auto empty_owned_by = [](int32_t owner) {
    Inputs inputs{Model("Net"), {}};
    EXPECT_OK(inputs.model.AddParam(kRootModule, "w", DType::kF32, {0}));
    inputs.options.world_size = 4;
    inputs.options.partition = Partition::kManual;
    inputs.options.manual_owners = {owner};
    return inputs;
  };
  EXPECT_EQ(FingerprintOf(empty_owned_by(0)), FingerprintOf(empty_owned_by(1)));
  EXPECT_EQ(FactsOf(empty_owned_by(0)), FactsOf(empty_owned_by(1)));

  // Other ids, in the same walk.
  Inputs reordered = MakeInputs();
  Model model("Net");
  const ModuleId block = *model.AddModule(kRootModule, "block", "Block");
  const ModuleId head = *model.AddModule(kRootModule, "head", "Linear");
  const ModuleId mlp = *model.AddModule(block, "mlp", "MLP");
  EXPECT_OK(model.AddParam(mlp, "up", DType::kF32, {24}));
  EXPECT_OK(model.AddParam(mlp, "down", DType::kF32, {24}));
  EXPECT_OK(model.AddParam(head, "alias", DType::kF32, {4, 6}));
  EXPECT_OK(model.Tie(block, "weight", 2));
  reordered.model = model;
  EXPECT_EQ(FingerprintOf(reordered), original);
  EXPECT_EQ(FactsOf(reordered), FactsOf(MakeInputs()));
}

// The fingerprint is the same across versions, or ranks of two versions would
// differ without a reason. When this test fails on purpose, raise the version
// of plan_fields.h.
TEST(PlanFingerprint, IsPinned) {
  EXPECT_EQ(FingerprintOf(MakeInputs()), uint64_t{0x3f5ea530fa0fbad5});
}

}  // namespace
}  // namespace shard::plan_fingerprint_test
