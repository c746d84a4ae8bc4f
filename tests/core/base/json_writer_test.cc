// SPDX-License-Identifier: Apache-2.0

#include "core/base/json_writer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace shard::json_writer_test {
namespace {

using Json = nlohmann::ordered_json;

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(&out, text);
  return out;
}

void WriteSample(JsonWriter* json) {
  json->BeginObject();
  json->Field("name", "a\"b");
  json->Field("count", int64_t{-3});
  json->Field("on", true);
  json->NullField("none");
  json->Field("list", std::vector<int32_t>{1, 2});
  json->Field("empty", std::vector<std::string>());
  json->Key("nested");
  json->BeginArray();
  json->BeginObject();
  json->EndObject();
  json->BeginObject();
  json->Field("x", std::string("[{"));
  json->EndObject();
  json->Value(0.1);
  json->EndArray();
  json->EndObject();
}

TEST(JsonWriter, WritesOneLine) {
  JsonWriter json;
  WriteSample(&json);
  EXPECT_EQ(json.text(),
            R"({"name":"a\"b","count":-3,"on":true,"none":null,"list":[1,2],)"
            R"("empty":[],"nested":[{},{"x":"[{"},0.1]})");
}

TEST(JsonWriter, IndentsAsOthersDo) {
  JsonWriter flat;
  WriteSample(&flat);
  JsonWriter indented(2);
  WriteSample(&indented);
  EXPECT_EQ(indented.text(), Json::parse(flat.text()).dump(2));
}

TEST(JsonWriter, ValuesStandAlone) {
  JsonWriter text;
  text.Value("x");
  EXPECT_EQ(text.text(), "\"x\"");
  JsonWriter empty(2);
  empty.BeginArray();
  empty.EndArray();
  EXPECT_EQ(empty.text(), "[]");
}

TEST(JsonWriter, NumbersReadBackAsTheyWere) {
  const std::vector<double> doubles = {
      0.0,     -0.0,   1.0,     0.1,
      1e300,   1e-300, 1.0 / 3, std::numeric_limits<double>::denorm_min(),
      5e15 + 1};
  for (const double value : doubles) {
    JsonWriter json;
    json.Value(value);
    EXPECT_EQ(Json::parse(json.text()).get<double>(), value) << json.text();
  }
  JsonWriter json;
  json.BeginArray();
  json.Value(std::numeric_limits<int64_t>::min());
  json.Value(std::numeric_limits<uint64_t>::max());
  json.Value(uint8_t{200});
  json.Value(std::numeric_limits<double>::infinity());
  json.Value(std::numeric_limits<float>::quiet_NaN());
  json.EndArray();
  EXPECT_EQ(json.text(),
            "[-9223372036854775808,18446744073709551615,200,null,null]");
}

TEST(JsonWriter, EveryByteAsOthersWriteIt) {
  std::string all;
  for (int c = 0; c < 128; ++c) all.push_back(static_cast<char>(c));
  all += "\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80";
  EXPECT_EQ(Quoted(all), Json(all).dump());
}

TEST(JsonWriter, BytesThatAreNoCharacterAreReplaced) {
  constexpr const char* kReplacement = "\xEF\xBF\xBD";
  EXPECT_EQ(Quoted("a\xFF"
                   "b"),
            StrCat("\"a", kReplacement, "b\""));
  // The texts are cut off at the end, overlong, and a surrogate.
  EXPECT_EQ(Quoted("\xE2\x82"), StrCat("\"", kReplacement, kReplacement, "\""));
  EXPECT_TRUE(Json::accept(Quoted("\xC0\x80")));
  EXPECT_TRUE(Json::accept(Quoted("\xED\xA0\x80")));
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 12, '\0');
    for (char& c : text) c = static_cast<char>(random());
    EXPECT_TRUE(Json::accept(Quoted(text)));
  }
}

}  // namespace
}  // namespace shard::json_writer_test
