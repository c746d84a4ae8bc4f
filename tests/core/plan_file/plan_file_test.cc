// SPDX-License-Identifier: Apache-2.0
//
// Plans as bytes and back: a decoded plan is the one that was encoded.

#include "core/plan_file/plan_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
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
#include "tests/core/plan_file/small_plan.h"

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

TEST(PlanFile, AnyAlignment) {
  const std::vector<std::byte> file = SmallFile();
  for (size_t offset = 1; offset < 8; ++offset) {
    std::vector<std::byte> room(offset + file.size());
    std::copy(file.begin(), file.end(),
              room.begin() + static_cast<ptrdiff_t>(offset));
    EXPECT_OK(DecodePlan(std::span(room).subspan(offset)));
  }
}

TEST(PlanFile, EncodeRefusesWhatItCannotReadBack) {
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

}  // namespace
}  // namespace shard::plan_file_test
