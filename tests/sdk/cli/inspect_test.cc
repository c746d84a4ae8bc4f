// SPDX-License-Identifier: Apache-2.0
//
// `shardctl inspect`, and keys that attack a terminal in every command.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/sdk/cli/checkpoint_testing.h"

namespace shardctl_testing::inspect_test {
namespace {

using Json = nlohmann::json;
using InspectTest = CheckpointTest;

TEST_F(InspectTest, AsJson) {
  const Json json = RunJson({"inspect", root_});
  EXPECT_EQ(json["path"], root_ + "/step-000002");
  EXPECT_EQ(json["format"], "checkpoint");
  EXPECT_EQ(json["step"], 2);
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_EQ(json["id"].get<std::string>().size(), 32u);
  EXPECT_EQ(json["files"].size(), 2u);
  EXPECT_EQ(json["files"][1]["name"], "data-00001.bin");
  EXPECT_EQ(json["groups"].size(), 2u);
  EXPECT_EQ(json["blobs"].size(), 2u);
  EXPECT_EQ(json["blobs"][0]["rule"], "per_rank");
  // Five parameters have two states each; one is frozen, and one name is an
  // alias.
  EXPECT_EQ(json["totals"]["tensors"], 6 + 10);
  EXPECT_EQ(json["totals"]["aliases"], 1);
  EXPECT_EQ(json["totals"]["numel"], kElements + 2 * (kElements - 8));
  EXPECT_EQ(json["tensor_bytes"], json["totals"]["bytes"]);
  int checked = 0;
  for (const Json& tensor : json["tensors"]) {
    if (tensor["key"] == "head.weight") {
      EXPECT_EQ(tensor["alias_of"], "embed.weight");
      ++checked;
    } else if (tensor["key"] == "scale") {
      EXPECT_EQ(tensor["trainable"], false);
      ++checked;
    } else if (tensor["key"] == "block.1.bias") {
      EXPECT_EQ(tensor["group"], 1);
      EXPECT_EQ(tensor["step"], 2);
      EXPECT_EQ(tensor["shape"], Json({8}));
      EXPECT_EQ(tensor["dtype"], "f32");
      ++checked;
    } else if (tensor["key"] == "state.block.1.bias.exp_avg") {
      EXPECT_EQ(tensor["role"], "state");
      EXPECT_TRUE(tensor["trainable"].is_null());
      ++checked;
    }
  }
  EXPECT_EQ(checked, 4);
}

TEST_F(InspectTest, AsText) {
  const Result result =
      RunShardctl({"inspect", root_, "--match", "block.0.*", "--role", "param",
                   "--match", "head*", "--sort", "key"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(Has(result.out, "  step      2\n  saved by  2 ranks\n"));
  EXPECT_TRUE(Has(
      result.out,
      "\nkey             role   dtype  shape       bytes  of\n"
      "block.0.bias    param  f32    [8]          32 B  group 1\n"
      "block.0.weight  param  f32    [16, 8]     512 B\n"
      "head.weight     param  f32    [32, 8]  1.00 KiB  alias of embed.weight\n"
      "\nparam f32: 2 tensors, 136 elements, 544 B, and 1 alias\n"))
      << result.out;
  // There is no color without a terminal.
  EXPECT_FALSE(Has(result.out, "\x1b"));
}

TEST_F(InspectTest, Sorts) {
  const Json json = RunJson({"inspect", root_, "--sort", "bytes"});
  uint64_t last = UINT64_MAX;
  for (const Json& tensor : json["tensors"]) {
    EXPECT_LE(tensor["bytes"].get<uint64_t>(), last);
    last = tensor["bytes"].get<uint64_t>();
  }
}

TEST_F(InspectTest, ATensor) {
  const Json json = RunJson({"inspect", root_, "--tensor", "scale"});
  // The parameter's id is 5, so its values are (0 .. 7 + 35) / 64.
  const Json& values = json["values"];
  EXPECT_EQ(values["min"], 35.0 / 64);
  EXPECT_EQ(values["max"], 42.0 / 64);
  EXPECT_DOUBLE_EQ(values["mean"], 38.5 / 64);
  EXPECT_EQ(values["nans"], 0);
  EXPECT_EQ(values["first"].size(), 8u);
  EXPECT_EQ(values["first"][1], 36.0 / 64);
  ASSERT_GE(json["slices"].size(), 1u);
  EXPECT_EQ(json["slices"][0]["checksum"].get<std::string>().size(), 32u);
  // An alias has the values of its tensor.
  const Json alias = RunJson({"inspect", root_, "--tensor", "head.weight"});
  const Json base = RunJson({"inspect", root_, "--tensor", "embed.weight"});
  EXPECT_EQ(alias["values"], base["values"]);

  const Result text = RunShardctl({"inspect", root_, "--tensor", "scale"});
  EXPECT_TRUE(Has(text.out,
                  "scale\n  param, f32 [8], 8 elements, 32 B\n"
                  "  min 0.546875, max 0.65625, mean 0.601562, rms "))
      << text.out;
  const Result none = RunShardctl({"inspect", root_, "--tensor", "nothing"});
  EXPECT_EQ(none.code, 3);
  EXPECT_TRUE(Has(none.error, "has no tensor 'nothing'"));
}

TEST_F(InspectTest, ValuesThatAreNoNumbersAreCounted) {
  const std::string path = folder_ / "odd.safetensors";
  WriteSafetensors(path, {{"x", {NAN, INFINITY, 0, -2, 4, -INFINITY, NAN}}});
  const Json json = RunJson({"inspect", path, "--tensor", "x"});
  const Json& values = json["values"];
  EXPECT_EQ(values["nans"], 2);
  EXPECT_EQ(values["infinities"], 2);
  EXPECT_EQ(values["zeros"], 1);
  EXPECT_EQ(values["min"], -2);
  EXPECT_EQ(values["max"], 4);
  EXPECT_DOUBLE_EQ(values["mean"], 2.0 / 3);
  EXPECT_TRUE(json["slices"][0]["checksum"].is_null());
}

TEST_F(InspectTest, KeysAreHarmlessToATerminal) {
  const std::string path = folder_ / "hostile.safetensors";
  const std::string key = "\x1b]0;title\x07\nforged: line\xe2\x80\xae<b>";
  const std::string shown = "\\x1b]0;title\\x07\\nforged: line\\u{202e}<b>";
  WriteSafetensors(path, {{key, {1, 2}}});
  const std::string other = folder_ / "other.safetensors";
  WriteSafetensors(other, {{"x", {1, 2}}});
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {"inspect", path},
           {"inspect", path, "--tensor", key},
           {"diff", path, other},
           {"plan", path, "--ranks", "2", "--json"}}) {
    SCOPED_TRACE(arguments[0]);
    const Result result = RunShardctl(arguments);
    const std::string all = result.out + result.error;
    EXPECT_FALSE(Has(all, "\x1b"));
    EXPECT_FALSE(Has(all, "\nforged"));
    EXPECT_FALSE(Has(all, "\xe2\x80\xae"));
    // The plan refuses the key, as every model does, and shows it.
    EXPECT_TRUE(Has(all, shown)) << all;
    EXPECT_EQ(result.code == 0, arguments[0] == "inspect") << result.code;
  }
  // The library's message has its own escapes, which shardctl does not escape
  // again.
  const Result none = RunShardctl({"inspect", other, "--tensor", key});
  EXPECT_TRUE(
      Has(none.error, "'\\x1b]0;title\\x07\\x0aforged: line\\u{202e}<b>'\n"))
      << none.error;
  // JSON has the key unchanged, in ASCII.
  const Json json = RunJson({"inspect", path});
  EXPECT_EQ(json["tensors"][0]["key"], key);
  const Result raw = RunShardctl({"inspect", path, "--json"});
  for (const char c : raw.out) {
    EXPECT_TRUE(c == '\n' || (c >= ' ' && c < 0x7f));
  }
}

// Tensors of a type of unknown size may have any shape, whatever their bytes.
TEST_F(InspectTest, CountsNoMoreElementsThanANumberHolds) {
  const std::string file = folder_ / "huge.safetensors";
  WriteSafetensors(file, {{"a", {}}, {"b", {}}});
  std::string bytes = ReadFile(file);
  const std::string known = R"("F32","shape":[0])";
  const std::string unknown = R"("T99","shape":[4611686018427387904])";
  for (int tensor = 0; tensor < 2; ++tensor) {
    const size_t at = bytes.find(known);
    ASSERT_NE(at, std::string::npos);
    bytes.replace(at, known.size(), unknown);
    // The header's length is in front of it.
    bytes[0] = static_cast<char>(bytes[0] + unknown.size() - known.size());
  }
  WriteFile(file, bytes);
  const Json json = RunJson({"inspect", file});
  EXPECT_EQ(json["totals"]["numel"], INT64_MAX);
  EXPECT_EQ(json["totals"]["bytes"], 0);
}

TEST_F(InspectTest, WrongUse) {
  EXPECT_EQ(RunShardctl({"inspect"}).code, 2);
  EXPECT_EQ(RunShardctl({"inspect", root_, "--role", "x"}).code, 2);
}

}  // namespace
}  // namespace shardctl_testing::inspect_test
