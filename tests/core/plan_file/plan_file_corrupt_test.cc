// SPDX-License-Identifier: Apache-2.0
//
// Bytes that make no plan: damaged ones, wrong contents under a correct
// checksum, and those of another library.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/flat/plan_fields.h"
#include "core/plan_file/plan_file.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/plan_file/plan_answers.h"
#include "tests/core/plan_file/raw_plan.h"
#include "tests/core/plan_file/small_plan.h"

namespace shard::plan_file_corrupt_test {
namespace {

void ExpectCorrupt(const RawPlan& raw,
                   std::initializer_list<std::string_view> parts) {
  ExpectError(DecodePlan(raw.Build()), StatusCode::kCorrupt, parts);
}

TEST(PlanFileCorrupt, EveryTruncationIsCorrupt) {
  const std::vector<std::byte> file = SmallFile();
  for (size_t size = 0; size < file.size(); ++size) {
    ExpectError(DecodePlan(std::span(file).first(size)), StatusCode::kCorrupt,
                {"the plan"});
  }
  std::vector<std::byte> longer(file);
  longer.emplace_back();
  ExpectError(DecodePlan(longer), StatusCode::kCorrupt, {"bytes follow"});
}

TEST(PlanFileCorrupt, EveryBitThatFlipsIsCorrupt) {
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
TEST(PlanFileCorrupt, EveryByteOfTheBodyThatChangesIsCorruptOrOfNoMeaning) {
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

TEST(PlanFileCorrupt, OtherVersions) {
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
TEST(PlanFileCorrupt, AnotherFingerprint) {
  RawPlan raw;
  raw.AddParam("p");
  raw.fingerprint = 0x1234;
  ExpectCorrupt(raw, {"its fingerprint is", "1234", "but what it was made"});
}

TEST(PlanFileCorrupt, ModulesThatAreWrong) {
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

TEST(PlanFileCorrupt, ParametersThatAreWrong) {
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

TEST(PlanFileCorrupt, HostTensorsThatAreWrong) {
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

TEST(PlanFileCorrupt, OptionsThatAreWrong) {
  const auto expect = [](const std::function<void(RawPlan*)>& change,
                         std::initializer_list<std::string_view> parts) {
    RawPlan raw;
    raw.AddParam("p");
    change(&raw);
    ExpectCorrupt(raw, parts);
  };
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  expect([](RawPlan* r) { r->stage = 4; }, {"stage 4"});
  expect([](RawPlan* r) { r->world_size = 0; }, {"world_size 0"});
  expect([](RawPlan* r) { r->world_size = kMost; }, {"world_size 2147483647"});
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
  // Optimizers and keys are known, but no library reads these values.
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
TEST(PlanFileCorrupt, ValuesOfANewerLibraryAreUnimplemented) {
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
TEST(PlanFileCorrupt, AMillionDimensions) {
  RawPlan raw;
  raw.AddParam("p");
  raw.params[0].shape.assign(1000000, 1);
  const auto decoded = DecodePlan(raw.Build());
  ExpectError(decoded, StatusCode::kCorrupt, {"1000000 dimensions"});
  EXPECT_LT(decoded.status().message().size(), 200u);
}

// The file says that it has more bytes than a plan may have, and has few.
TEST(PlanFileCorrupt, LengthsOfExabytes) {
  std::vector<std::byte> file = SealPlan({});
  for (size_t i = 16; i < 24; ++i) file[i] = std::byte{0x7F};
  ExpectError(DecodePlan(file), StatusCode::kCorrupt, {"bytes follow"});
  for (const int fill : {0, 0x7F, 0x80, 0xFF}) {
    const std::vector<std::byte> body(4096, std::byte(fill));
    ExpectError(DecodePlan(SealPlan(body)), StatusCode::kCorrupt, {"SHPL"});
  }
}

}  // namespace
}  // namespace shard::plan_file_corrupt_test
