// SPDX-License-Identifier: Apache-2.0

#include "core/plan_file/plan_file.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/plan_fields.h"
#include "core/optim/groups.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/plan_file/plan_answers.h"
#include "tests/core/plan_file/raw_plan.h"

namespace shard::plan_file_test {
namespace {

using Random = std::mt19937;

int Pick(Random* random, int count) {
  return static_cast<int>((*random)() % static_cast<unsigned>(count));
}

constexpr const char* kClasses[] = {"", "Block", "Linear", "Norm",
                                    "ModuleList"};
constexpr const char* kOptimizers[] = {
    "adamw",           "adamw?lr=3e-4&states=q8", "sgd?momentum=0.9", "lamb",
    "adafactor?d=1.5", "adamw?amsgrad=1",         "adamw?states=bf16"};

// Returns a model whose names are added in another order than that of the walk.
Model RandomModel(Random* random) {
  Model model("Net");
  // Something is sharded only where there are many units and none is much
  // larger than the others.
  const bool uniform = Pick(random, 2) == 0;
  const int modules = uniform ? 16 : Pick(random, 12);
  const int params = uniform ? 32 : 1 + Pick(random, 20);
  for (int i = 0; i < modules; ++i) {
    EXPECT_OK(model.AddModule(Pick(random, i + 1), StrCat("m", i),
                              kClasses[Pick(random, 5)]));
    if (Pick(random, 12) == 0) EXPECT_OK(model.IgnoreModule(i + 1));
  }
  for (int i = 0; i < params; ++i) {
    std::vector<int64_t> shape(static_cast<size_t>(Pick(random, 4)));
    for (int64_t& size : shape) size = Pick(random, 40);
    if (uniform) shape = {64, 64};
    const auto dtype = static_cast<DType>(Pick(random, 5) == 0
                                              ? 1 + Pick(random, 4)
                                              : static_cast<int>(DType::kF32));
    const ParamId param = *model.AddParam(Pick(random, modules + 1),
                                          StrCat("p", i), dtype, shape);
    if (Pick(random, 6) == 0) EXPECT_OK(model.SetTrainable(param, false));
    if (Pick(random, 9) == 0) EXPECT_OK(model.IgnoreParam(param));
    if (Pick(random, 5) == 0) {
      EXPECT_OK(model.Tie(Pick(random, modules + 1), StrCat("t", i),
                          Pick(random, param + 1)));
    }
  }
  constexpr ElementType kTypes[] = {ElementType::kI64, ElementType::kF32,
                                    ElementType::kBool};
  for (int i = 0; i < params % 4; ++i) {
    EXPECT_OK(model.AddHostTensor(modules * i / 3, StrCat("h", i), kTypes[i],
                                  std::vector<int64_t>(i, 7), i != 1));
  }
  std::vector<ParamId> members;
  for (ParamId param = 0; param < params; ++param) {
    if (Pick(random, 4) == 0) members.push_back(param);
  }
  if (!members.empty() && Pick(random, 2) == 0) {
    EXPECT_OK(model.AddParamGroup(kOptimizers[Pick(random, 7)], members));
  }
  return model;
}

PlanOptions RandomOptions(Random* random, const Model& model) {
  PlanOptions options;
  options.stage = Pick(random, 4);
  options.world_size = 1 + Pick(random, 9);
  options.partition = static_cast<Partition>(1 + Pick(random, 4));
  for (size_t i = 0; i < model.params().size(); ++i) {
    options.manual_owners.push_back(Pick(random, options.world_size));
  }
  options.bucket_bytes = 1 + Pick(random, 4000);
  options.shard_buckets = Pick(random, 2) == 1;
  constexpr const char* kWraps[] = {
      "", "always", "class?names=Block",
      "size?min_numel=500&force_leaf=Linear&exclude=Norm|class?names=Norm"};
  options.wrap = *WrapPolicy::Parse(kWraps[Pick(random, 4)]);
  if (Pick(random, 4) == 0) {
    options.wrap.SetPredicate([](ModuleId id, int64_t) { return id % 3 == 1; });
  }
  options.param_dtype = static_cast<DType>(1 + Pick(random, 3));
  if (Pick(random, 2) == 0) options.f32_classes = {"Norm", "Linear"};
  options.buffer_bytes = 1 + Pick(random, 8000);
  if (Pick(random, 3) == 0 && options.world_size % 2 == 0) {
    options.shard_group_size = options.world_size / 2;
  }
  options.prefetch = Pick(random, 4);
  options.whole_grads = Pick(random, 4) == 0;
  options.keep_after_forward = Pick(random, 4) == 0;
  options.deterministic = Pick(random, 3) == 0;
  options.f32_grads = Pick(random, 3) == 0;
  options.masters = static_cast<Masters>(1 + Pick(random, 2));
  options.seed = (*random)() * uint64_t{0x9E3779B97F4A7C15};
  auto groups = PlanGroups(model, kOptimizers[Pick(random, 7)]);
  EXPECT_OK(groups);
  if (groups.ok()) options.groups = std::move(*groups);
  return options;
}

std::shared_ptr<const Plan> PlanOf(const Model& model, PlanOptions options) {
  if (options.groups.empty()) options.groups = *PlanGroups(model, "sgd");
  auto plan = Plan::Create(std::make_shared<Model>(model), std::move(options));
  EXPECT_OK(plan);
  return plan.ok() ? *plan : nullptr;
}

// Returns a model with block.weight, block.norm.gain, and head.weight as
// another name of the first.
Model SmallModel() {
  Model model("Net");
  const ModuleId block = *model.AddModule(kRootModule, "block", "Block");
  const ModuleId norm = *model.AddModule(block, "norm", "Norm");
  const ModuleId head = *model.AddModule(kRootModule, "head", "Linear");
  EXPECT_OK(model.AddParam(block, "weight", DType::kF32, {4, 6}));
  EXPECT_OK(model.AddParam(norm, "gain", DType::kF32, {6}));
  EXPECT_OK(model.Tie(head, "weight", 0));
  return model;
}

PlanOptions SmallOptions() {
  PlanOptions options;
  options.stage = 3;
  options.world_size = 2;
  options.wrap = *WrapPolicy::Parse("class?names=Block");
  return options;
}

std::vector<std::byte> SmallFile() {
  auto file = EncodePlan(*PlanOf(SmallModel(), SmallOptions()));
  EXPECT_OK(file);
  return *file;
}

void ExpectCorrupt(const RawPlan& raw,
                   std::initializer_list<std::string_view> parts) {
  ExpectError(DecodePlan(raw.Build()), StatusCode::kCorrupt, parts);
}

TEST(PlanFile, ADecodedPlanAnswersAlike) {
  Random random(7);
  int made = 0;
  std::map<int, int> stages;
  int sharded = 0;
  constexpr int kRounds = kSanitized ? 300 : 600;
  for (int round = 0; round < kRounds; ++round) {
    Model model = RandomModel(&random);
    auto plan = Plan::Create(std::make_shared<Model>(model),
                             RandomOptions(&random, model));
    // The model has nothing to store, or a parameter that its optimizer cannot
    // step.
    if (!plan.ok()) continue;
    ++made;
    ++stages[(*plan)->options().stage];
    sharded += (*plan)->shards_grads() || (*plan)->shards_params();
    const auto file = EncodePlan(**plan);
    ASSERT_OK(file);
    const auto decoded = DecodePlan(*file);
    ASSERT_OK(decoded);
    ASSERT_EQ((*decoded)->fingerprint(), (*plan)->fingerprint());
    ASSERT_EQ(PlanAnswers(**decoded).text, PlanAnswers(**plan).text)
        << "round " << round;
    EXPECT_EQ(*EncodePlan(**decoded), *file);
  }
  EXPECT_GT(made, kRounds * 2 / 3);
  EXPECT_EQ(stages.size(), 4u);
  EXPECT_GT(sharded, kRounds / 60);
}

// An option that is not written would come back as its default.
TEST(PlanFile, EveryOptionIsKept) {
  PlanOptions options = SmallOptions();
  options.partition = Partition::kManual;
  options.manual_owners = {3, 1};
  options.world_size = 4;
  options.bucket_bytes = 11;
  options.shard_buckets = true;
  options.buffer_bytes = 12;
  options.param_dtype = DType::kBF16;
  options.f32_classes = {"Norm"};
  options.shard_group_size = 2;
  options.prefetch = 3;
  options.whole_grads = true;
  options.keep_after_forward = true;
  options.deterministic = true;
  options.f32_grads = true;
  options.masters = Masters::kNoneStochastic;
  options.seed = ~uint64_t{13};
  // Returns the values of VisitAgreedOptions, by name.
  const auto values = [](const PlanOptions& of) {
    std::map<std::string, std::string> list;
    VisitAgreedOptions(of, [&](const char* name, const auto& value) {
      if constexpr (std::is_enum_v<std::decay_t<decltype(value)>>) {
        list[name] = StrCat(static_cast<int32_t>(value));
      } else {
        list[name] = StrCat(value);
      }
    });
    return list;
  };
  const auto defaults = values(PlanOptions());
  for (const auto& [name, value] : values(options)) {
    if (name == "layout version" || name == "alignment_bytes") continue;
    EXPECT_NE(value, defaults.at(name)) << name << ": not tested";
  }
  const auto plan = PlanOf(SmallModel(), options);
  const auto file = EncodePlan(*plan);
  ASSERT_OK(file);
  const auto decoded = DecodePlan(*file);
  ASSERT_OK(decoded);
  EXPECT_EQ(values((*decoded)->options()), values(options));
  EXPECT_EQ(PlanAnswers(**decoded).text, PlanAnswers(*plan).text);
}

// The answers of the host's predicate are kept; the predicate is not asked
// again.
TEST(PlanFile, UnitsOfAPredicate) {
  PlanOptions options = SmallOptions();
  int asked = 0;
  options.wrap.SetPredicate([&asked](ModuleId module, int64_t) {
    ++asked;
    return module == 2;
  });
  const auto plan = PlanOf(SmallModel(), options);
  ASSERT_EQ(plan->units().size(), 3u);
  const int before = asked;
  const auto decoded = DecodePlan(*EncodePlan(*plan));
  ASSERT_OK(decoded);
  EXPECT_EQ((*decoded)->units().size(), 3u);
  EXPECT_EQ((*decoded)->options().wrap.text(), "class?names=Block");
  EXPECT_EQ(asked, before);
}

TEST(PlanFile, EveryTruncationIsCorrupt) {
  const std::vector<std::byte> file = SmallFile();
  for (size_t size = 0; size < file.size(); ++size) {
    ExpectError(DecodePlan(std::span(file).first(size)), StatusCode::kCorrupt,
                {"the plan"});
  }
  std::vector<std::byte> longer(file);
  longer.emplace_back();
  ExpectError(DecodePlan(longer), StatusCode::kCorrupt, {"bytes follow"});
}

TEST(PlanFile, EveryBitThatFlipsIsCorrupt) {
  std::vector<std::byte> file = SmallFile();
  for (size_t i = 0; i < file.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      file[i] ^= std::byte{1} << bit;
      ExpectError(DecodePlan(file), StatusCode::kCorrupt, {"plan"});
      file[i] ^= std::byte{1} << bit;
    }
  }
}

// A file that somebody made on purpose has damage and a correct checksum.
TEST(PlanFile, EveryByteOfTheBodyThatChangesIsCorruptOrOfNoMeaning) {
  const std::vector<std::byte> file = SmallFile();
  const auto answers = [](const Plan& plan) {
    return PlanAnswers(plan, PlanAnswers::kDecided).text;
  };
  const std::string expected = answers(**DecodePlan(file));
  const auto body = std::span(file).subspan(kFileHeaderBytes);
  std::vector<std::byte> changed(body.begin(), body.end());
  int same = 0;
  for (size_t i = 0; i < changed.size(); ++i) {
    for (const int flip : {1, 0x80, 0xFF, 0x7F}) {
      changed[i] ^= std::byte(flip);
      const auto decoded = DecodePlan(SealPlan(changed));
      changed[i] ^= std::byte(flip);
      if (!decoded.ok()) {
        // The version of the layout was changed.
        if (decoded.status().code() == StatusCode::kUnimplemented) continue;
        ExpectError(decoded, StatusCode::kCorrupt, {"the plan "});
        continue;
      }
      // Padding, bits of a true flag, the text of the policy or a class were
      // changed.
      ++same;
      EXPECT_EQ(answers(**decoded), expected) << "byte " << i << " ^ " << flip;
    }
  }
  EXPECT_GT(same, 0);
  EXPECT_LT(same, static_cast<int>(body.size()));
}

TEST(PlanFile, AnyAlignment) {
  const std::vector<std::byte> file = SmallFile();
  for (size_t offset = 1; offset < 8; ++offset) {
    std::vector<std::byte> room(offset + file.size());
    std::copy(file.begin(), file.end(),
              room.begin() + static_cast<ptrdiff_t>(offset));
    EXPECT_OK(DecodePlan(std::span(room).subspan(offset)));
  }
}

TEST(PlanFile, OtherVersions) {
  std::vector<std::byte> file = SmallFile();
  file[8] = std::byte{kPlanFileVersion + 1};
  file[12] = ~file[8];
  ExpectError(DecodePlan(file), StatusCode::kUnimplemented,
              {"the plan has version 2", "up to 1", "newer"});
  RawPlan raw;
  raw.AddParam("p");
  raw.layout_version = kLayoutVersion + 1;
  ExpectError(DecodePlan(raw.Build()), StatusCode::kUnimplemented,
              {StrCat("version ", kLayoutVersion + 1, " of the layout"),
               StrCat("version ", kLayoutVersion), "make the plan again"});
}

// The contents can be planned, but were planned with another result.
TEST(PlanFile, AnotherFingerprint) {
  RawPlan raw;
  raw.AddParam("p");
  raw.fingerprint = 0x1234;
  ExpectCorrupt(raw, {"its fingerprint is", "1234", "but what it was made"});
}

TEST(PlanFile, WhatEncodeRefuses) {
  PlanOptions options = SmallOptions();
  options.alignment_bytes = 128;
  ExpectInvalid(EncodePlan(*PlanOf(SmallModel(), options)),
                {"alignment_bytes 128", "64"});
  const auto bare =
      Plan::Create(std::make_shared<Model>(SmallModel()), SmallOptions());
  ASSERT_OK(bare);
  ExpectInvalid(EncodePlan(**bare), {"param group 0", "no optimizer"});
  // Each module of this chain has a path that is one name longer.
  Model model;
  ModuleId at = kRootModule;
  for (int i = 0; i < 3000; ++i) {
    at = *model.AddModule(at, "a_name_of_20_letters", "");
  }
  EXPECT_OK(model.AddParam(at, "p", DType::kF32, {1}));
  ExpectError(EncodePlan(*PlanOf(model, PlanOptions())),
              StatusCode::kResourceExhausted,
              {"with their paths", "at most", "less deeply"});
}

TEST(PlanFile, ModulesThatAreWrong) {
  const auto expect = [](const std::function<void(RawPlan*)>& change,
                         std::initializer_list<std::string_view> parts) {
    RawPlan raw;
    raw.modules.push_back({"a"});
    raw.AddParam("p", 1);
    change(&raw);
    ExpectCorrupt(raw, parts);
  };
  expect([](RawPlan* r) { r->modules.clear(); }, {"no modules"});
  expect([](RawPlan* r) { r->modules[0].name = "x"; }, {"the root"});
  expect([](RawPlan* r) { r->modules[1].parent = 1; }, {"module 1 is in modu"});
  expect([](RawPlan* r) { r->modules[1].parent = ~0u; }, {"in module 42949"});
  expect([](RawPlan* r) { r->modules[1].class_name = 1; }, {"class 1 of 1"});
  expect([](RawPlan* r) { r->classes = {}; }, {"class 0 of 0"});
  expect([](RawPlan* r) { r->classes = {std::string("a\0b", 3)}; }, {"NUL"});
  expect([](RawPlan* r) { r->classes = {"\xFF"}; }, {"class", "UTF-8"});
  expect(
      [](RawPlan* r) {
        r->classes = {"", "\xFF"};
        r->modules[1].class_name = 1;
      },
      {"module 'a'", "class", "UTF-8"});
  expect([](RawPlan* r) { r->modules[1].name = "p.q"; }, {"'.'"});
  expect([](RawPlan* r) { r->modules[1].name = "\xFF"; }, {"UTF-8"});
  expect([](RawPlan* r) { r->modules[1].name = ""; }, {"empty"});
  expect([](RawPlan* r) { r->modules.push_back({"a"}); }, {"already has"});
  expect([](RawPlan* r) { r->modules[0].ignored = true; }, {"ignored"});
}

TEST(PlanFile, ParametersThatAreWrong) {
  const auto expect = [](const std::function<void(RawPlan*)>& change,
                         std::initializer_list<std::string_view> parts) {
    RawPlan raw;
    raw.AddParam("p");
    raw.AddParam("q");
    raw.names.push_back({"tie", 0, 1});
    change(&raw);
    ExpectCorrupt(raw, parts);
  };
  expect([](RawPlan* r) { r->params.clear(), r->names.clear(); },
         {"no parameters"});
  expect([](RawPlan* r) { r->params[1].dtype = 0; }, {"0"});
  expect([](RawPlan* r) { r->params[1].shape = {-1}; }, {"-1"});
  expect(
      [](RawPlan* r) {
        r->params[1].shape = {int64_t{1} << 62, 4};
      },
      {"2^63-1"});
  expect([](RawPlan* r) { r->params[1].shape = {int64_t{1} << 60}; }, {"2^53"});
  expect([](RawPlan* r) { r->params[1].shape.assign(9, 1); }, {"9 dimensions"});
  expect([](RawPlan* r) { r->params[1].group = 1; }, {"group 1 of 1"});
  expect([](RawPlan* r) { r->params.push_back({}); }, {"2 has no name"});
  expect([](RawPlan* r) { r->params.pop_back(); }, {"beyond the last"});
  expect([](RawPlan* r) { r->names[1].name = "p"; }, {"already has"});
  expect([](RawPlan* r) { r->names[1].in_module = 1; }, {"module 1 of 1"});
  expect([](RawPlan* r) { r->names[1].in_module = ~0u; }, {"module 42949"});
  expect([](RawPlan* r) { r->names[2].alias_of = 2; }, {"id 2"});
  expect([](RawPlan* r) { r->names[2].alias_of = -2; }, {"id -2"});
}

TEST(PlanFile, HostTensorsThatAreWrong) {
  const auto with = [](const RawPlan::HostTensor& tensor) {
    RawPlan raw;
    raw.AddParam("p");
    raw.host_tensors = {{"h"}, tensor};
    return DecodePlan(raw.Build()).status();
  };
  ExpectError(with({"g", 1}), StatusCode::kCorrupt, {"buffer 1", "module 1"});
  ExpectError(with({"h"}), StatusCode::kCorrupt, {"buffer named 'h'"});
  ExpectError(with({"p"}), StatusCode::kCorrupt, {"parameter named 'p'"});
  ExpectError(with({"g", 0, {-1}}), StatusCode::kCorrupt, {"-1"});
  ExpectError(with({"g", 0, std::vector<int64_t>(9, 1)}), StatusCode::kCorrupt,
              {"9 dimensions"});
  for (const int32_t dtype : {0, -1, 5, 15}) {
    ExpectError(with({"g", 0, {}, dtype}), StatusCode::kCorrupt,
                {StrCat("unknown dtype ", dtype)});
  }
  ExpectError(with({"g", 0, {}, 25}), StatusCode::kUnimplemented,
              {"a buffer with dtype 25", "newer"});
  ExpectError(with({"g", 0, {int64_t{1} << 60}}), StatusCode::kCorrupt,
              {"2^53 bytes"});
  // A reader that skipped them would make a plan with another fingerprint.
  Model model;
  ASSERT_OK(model.AddParam(kRootModule, "p", DType::kF32, {2, 3}));
  const auto without = Plan::Create(std::make_shared<Model>(model), {});
  ASSERT_OK(model.AddHostTensor(kRootModule, "h", ElementType::kI64, {}, true));
  const auto plan = Plan::Create(std::make_shared<Model>(model), {});
  ASSERT_OK(without);
  ASSERT_OK(plan);
  EXPECT_NE((*plan)->fingerprint(), (*without)->fingerprint());
}

TEST(PlanFile, OptionsThatAreWrong) {
  const auto expect = [](const std::function<void(RawPlan*)>& change,
                         std::initializer_list<std::string_view> parts) {
    RawPlan raw;
    raw.AddParam("p");
    change(&raw);
    ExpectCorrupt(raw, parts);
  };
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  expect([](RawPlan* r) { r->stage = 4; }, {"stage 4"});
  expect([](RawPlan* r) { r->world_size = 0; }, {"world size 0"});
  expect([](RawPlan* r) { r->world_size = kMost; }, {"world size 2147483647"});
  expect([](RawPlan* r) { r->partition = -9; }, {"partition -9"});
  expect([](RawPlan* r) { r->wrap = "\xFF"; }, {"wrap policy", "UTF-8"});
  expect([](RawPlan* r) { r->masters = -1; }, {"masters -1"});
  expect([](RawPlan* r) { r->bucket_bytes = 0; }, {"bucket_bytes 0"});
  expect([](RawPlan* r) { r->buffer_bytes = -1; }, {"buffer_bytes -1"});
  expect([](RawPlan* r) { r->shard_group_size = 3; }, {"shard_group_size 3"});
  expect([](RawPlan* r) { r->prefetch = kMost; }, {"prefetch 2147483647"});
  expect([](RawPlan* r) { r->f32_classes = {"\xFF"}; }, {"f32_classes"});
  expect([](RawPlan* r) { r->partition = 4, r->params[0].owner = 2; },
         {"rank 2"});
  expect([](RawPlan* r) { r->optimizers = {}; }, {"no optimizers"});
  expect([](RawPlan* r) { r->optimizers = {""}; }, {"group 0", "''"});
  expect([](RawPlan* r) { r->optimizers = {"\xFF"}; }, {"group 0", "xff"});
  expect([](RawPlan* r) { r->optimizers = {std::string(5000, 'x')}; },
         {"5000 bytes"});
  expect([](RawPlan* r) { r->optimizers.push_back(RawPlan::kSgd); },
         {"no parameters"});
  // Of known optimizers and keys, but values that no library reads.
  expect([](RawPlan* r) { r->optimizers = {"sgd?lr=-1"}; },
         {"group 0", "lr=-1", "at least 0"});
  expect([](RawPlan* r) { r->optimizers = {"adamw?lr=x"}; },
         {"group 0", "'x'"});
  expect([](RawPlan* r) { r->optimizers = {"sgd?lr"}; }, {"group 0", "lr"});
  expect([](RawPlan* r) { r->optimizers = {"sgd?nesterov=1"}; },
         {"group 0", "nesterov"});
}

// A library with more optimizers, hyperparameters or options than this one
// wrote the file.
TEST(PlanFile, WhatAnotherLibraryWrites) {
  const auto expect = [](const std::function<void(RawPlan*)>& change,
                         std::initializer_list<std::string_view> parts) {
    RawPlan raw;
    raw.AddParam("p");
    change(&raw);
    ExpectError(DecodePlan(raw.Build()), StatusCode::kUnimplemented, parts);
  };
  expect([](RawPlan* r) { r->partition = 5; }, {"partition 5", "1 to 4"});
  expect([](RawPlan* r) { r->masters = 4; }, {"masters 4", "1 to 3"});
  expect([](RawPlan* r) { r->param_dtype = 4; }, {"param_dtype 4"});
  expect([](RawPlan* r) { r->params[0].dtype = 5; }, {"dtype 5", "newer"});
  expect([](RawPlan* r) { r->optimizers = {"hope"}; },
         {"group 0", "'hope'", "does not know"});
  expect([](RawPlan* r) { r->optimizers[0] += "&hope=1"; },
         {"group 0", "hope", "does not know"});
  expect([](RawPlan* r) { r->optimizers = {"adamw?states=q4"}; },
         {"group 0", "'q4'", "does not know"});
  expect([](RawPlan* r) { r->optimizers = {"sgd?lr=1"}; },
         {"group 0", "'sgd?lr=1'", "momentum=0", "make the plan again"});
}

// A message does not show a list that is as long as the file says.
TEST(PlanFile, AMillionDimensions) {
  RawPlan raw;
  raw.AddParam("p");
  raw.params[0].shape.assign(1000000, 1);
  const auto decoded = DecodePlan(raw.Build());
  ExpectError(decoded, StatusCode::kCorrupt, {"1000000 dimensions"});
  EXPECT_LT(decoded.status().message().size(), 200u);
}

// The file says that it has more bytes than a plan may have, and has few.
TEST(PlanFile, LengthsOfExabytes) {
  std::vector<std::byte> file = SealPlan({});
  for (size_t i = 16; i < 24; ++i) file[i] = std::byte{0x7F};
  ExpectError(DecodePlan(file), StatusCode::kCorrupt, {"bytes follow"});
  for (const int fill : {0, 0x7F, 0x80, 0xFF}) {
    const std::vector<std::byte> body(4096, std::byte(fill));
    ExpectError(DecodePlan(SealPlan(body)), StatusCode::kCorrupt, {"SHPL"});
  }
}

}  // namespace
}  // namespace shard::plan_file_test
