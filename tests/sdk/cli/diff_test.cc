// SPDX-License-Identifier: Apache-2.0
//
// `shardctl diff`, of checkpoints and of files that another program has
// written.

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/sdk/cli/checkpoint_testing.h"

namespace shardctl_testing::diff_test {
namespace {

using Json = nlohmann::json;
using DiffTest = CheckpointTest;

TEST_F(DiffTest, TheSame) {
  const Json json = RunJson({"diff", root_, root_});
  EXPECT_EQ(json["same"], true);
  EXPECT_EQ(json["compared"]["tensors"], 16);
  EXPECT_TRUE(Has(RunShardctl({"diff", root_, root_}).out, "\nsame: compared"));
}

TEST_F(DiffTest, TwoSteps) {
  const std::string other = folder_ / "other";
  SaveCheckpoint(other, 4, 3);
  const Json json = RunJson({"diff", root_, other}, 1);
  EXPECT_EQ(json["same"], false);
  EXPECT_EQ(json["only_in_a"], Json::array());
  EXPECT_EQ(json["training"][0],
            Json({{"name", "step"}, {"a", "2"}, {"b", "3"}}));
  // All tensors differ except the frozen one.
  EXPECT_EQ(json["values"].size(), 15u);
  const Json& first = json["values"][0];
  EXPECT_GT(first["max_abs"], 0);
  EXPECT_EQ(first["differing"], first["numel"]);
  // A step of AdamW is about lr = 0.01.
  EXPECT_EQ(RunShardctl({"diff", root_, other, "--content", "model",
                         "--tolerance", "0.02"})
                .code,
            0);
  EXPECT_EQ(RunShardctl({"diff", root_, other, "--content", "model",
                         "--tolerance", "0.001"})
                .code,
            1);
  EXPECT_EQ(
      RunShardctl({"diff", root_, other, "--tensors-only", "--relative", "1"})
          .code,
      0);
}

TEST_F(DiffTest, TheSameOnAnotherNumberOfRanks) {
  const std::string other = folder_ / "other";
  SaveCheckpoint(other, 3, 2);
  const Json json = RunJson({"diff", root_, other});
  EXPECT_EQ(json["same"], true);
}

TEST_F(DiffTest, ComparesSafetensorsOfOtherPrograms) {
  const std::string a = folder_ / "a.safetensors";
  const std::string b = folder_ / "b.safetensors";
  WriteSafetensors(a, {{"equal", {1, NAN, -0.0f, INFINITY}},
                       {"values", {1, 2, 3, 4, NAN}},
                       {"shape", {1, 2}},
                       {"mine", {1}}});
  WriteSafetensors(b, {{"equal", {1, -NAN, 0, INFINITY}},
                       {"values", {1, 2.5f, 3, -INFINITY, 5}},
                       {"shape", {1, 2, 3}},
                       {"yours", {1}}});
  const Json json = RunJson({"diff", a, b}, 1);
  EXPECT_EQ(json["only_in_a"], Json({"mine"}));
  EXPECT_EQ(json["only_in_b"], Json({"yours"}));
  ASSERT_EQ(json["shapes"].size(), 1u);
  EXPECT_EQ(json["shapes"][0]["a"], "[2]");
  ASSERT_EQ(json["values"].size(), 1u);
  const Json& values = json["values"][0];
  EXPECT_EQ(values["key"], "values");
  EXPECT_EQ(values["differing"], 3);
  EXPECT_EQ(values["nans"], 1);
  EXPECT_EQ(values["max_abs"], "inf");
  EXPECT_EQ(values["first"], Json({{"index", 1}, {"a", 2.0}, {"b", 2.5}}));
  // No tolerance makes a NaN equal to a number, or an infinity.
  const Json near = RunJson({"diff", a, b, "--tolerance", "1e300"}, 1);
  EXPECT_EQ(near["values"][0]["differing"], 2);
  const Result text = RunShardctl({"diff", a, b});
  EXPECT_TRUE(Has(text.out, "only in a:\n  mine\n")) << text.out;
  EXPECT_TRUE(Has(text.out, "different: compared 2 tensors"));
}

// Writes a safetensors file with one tensor of 4 bytes, whose type and shape
// then become others.
void WriteOfType(const std::string& file, const char* type, const char* shape,
                 float value) {
  WriteSafetensors(file, {{"x", {value}}});
  std::string bytes = ReadFile(file);
  const std::string of_floats = R"("F32","shape":[1])";
  const size_t at = bytes.find(of_floats);
  ASSERT_NE(at, std::string::npos);
  WriteFile(file,
            bytes.replace(at, of_floats.size(),
                          "\"" + std::string(type) + "\",\"shape\":" + shape));
}

TEST_F(DiffTest, TensorsOfATypeThatIsNotReadAreComparedAsBytes) {
  const std::string a = folder_ / "a.safetensors";
  const std::string b = folder_ / "b.safetensors";
  for (const char* const shape : {"[1]", "[0]"}) {  // With bytes or none.
    WriteOfType(a, "T99", shape, 1.0f);
    WriteOfType(b, "T99", shape, 1.0f);
    const Json same = RunJson({"diff", a, b});
    EXPECT_EQ(same["same"], true);
    EXPECT_EQ(same["not_compared"], Json::array());
    EXPECT_EQ(same["compared"], Json({{"tensors", 1}, {"bytes", 8}}));

    WriteOfType(b, "T99", shape, 2.0f);
    // No tolerance makes other bytes the same.
    const Json differs = RunJson({"diff", a, b, "--tolerance", "1e9"}, 1);
    ASSERT_EQ(differs["values"].size(), 1u);
    EXPECT_EQ(differs["values"][0]["numel"], 4);
    EXPECT_EQ(differs["values"][0]["differing"], 2);
  }
}

TEST_F(DiffTest, TypesThatDifferAndAreNotReadAreListed) {
  const std::string a = folder_ / "a.safetensors";
  const std::string b = folder_ / "b.safetensors";
  WriteOfType(a, "T98", "[1]", 1);
  WriteOfType(b, "T99", "[1]", 1);
  const Json json = RunJson({"diff", a, b, "--ignore-dtypes"}, 1);
  EXPECT_EQ(json["same"], false);
  EXPECT_EQ(json["not_compared"], Json({"x"}));
  const Result text = RunShardctl({"diff", a, b, "--ignore-dtypes"});
  EXPECT_TRUE(Has(text.out, "not known: compared 0 tensors")) << text.out;
  EXPECT_TRUE(Has(RunShardctl({"diff", "--help"}).out, "\"not known\""));
}

// A file may call its own type by the name of one that libshard reads.
TEST_F(DiffTest, AnUnknownTypeDoesNotLookLikeAKnownOne) {
  const std::string a = folder_ / "a.safetensors";
  const std::string b = folder_ / "b.safetensors";
  WriteOfType(a, "F32", "[1]", 1);
  WriteOfType(b, "f32", "[1]", 1);
  const Json json = RunJson({"diff", a, b}, 1);
  EXPECT_EQ(json["dtypes"],
            Json::array({{{"key", "x"}, {"a", "f32"}, {"b", "opaque f32"}}}));
  EXPECT_EQ(RunJson({"inspect", b})["tensors"][0]["dtype"], "opaque f32");
}

// A tensor without elements has no values that could differ, whatever its type.
TEST_F(DiffTest, EmptyTensorsOfAnyTypeAreTheSame) {
  const std::string file = folder_ / "empty.safetensors";
  WriteSafetensors(file, {{"known", {1}}, {"empty", {}}});
  std::string bytes = ReadFile(file);
  const std::string of_floats = R"("F32","shape":[0])";
  const size_t at = bytes.find(of_floats);
  ASSERT_NE(at, std::string::npos);
  WriteFile(file, bytes.replace(at, of_floats.size(), R"("C64","shape":[0])"));
  const Json json = RunJson({"diff", file, file});
  EXPECT_EQ(json["same"], true);
  EXPECT_EQ(json["not_compared"], Json::array());
}

TEST_F(DiffTest, WrongUse) {
  EXPECT_EQ(RunShardctl({"diff", root_}).code, 2);
  for (const char* const number : {"-1", "nan", "inf", "x"}) {
    SCOPED_TRACE(number);
    const Result result =
        RunShardctl({"diff", root_, root_, "--tolerance", number});
    EXPECT_EQ(result.code, 2);
    EXPECT_TRUE(Has(result.error, "--tolerance: '" + std::string(number) +
                                      "' is no number of 0 or more; see "))
        << result.error;
  }
  EXPECT_EQ(RunShardctl({"diff", root_, root_, "--relative", "0"}).code, 0);
}

}  // namespace
}  // namespace shardctl_testing::diff_test
