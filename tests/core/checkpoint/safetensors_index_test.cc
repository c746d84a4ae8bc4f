// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/safetensors/safetensors_index.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/checkpoint/allocation_meter.h"

namespace shard::safetensors_index_test {

namespace {

void ExpectCorrupt(std::string_view json,
                   std::initializer_list<std::string_view> parts) {
  SCOPED_TRACE(json.substr(0, 200));
  ExpectError(SafetensorsIndex::Parse(json), StatusCode::kCorrupt, parts);
}

constexpr const char* kSmall =
    "{\"metadata\":{\"total_size\":24.5,\"by\":\"me\",\"x\":null},"
    "\"weight_map\":{\"b\":\"2.safetensors\",\"a\":\"1.safetensors\","
    "\"c\":\"2.safetensors\"}}\n";

TEST(SafetensorsIndex, Parses) {
  const auto index = SafetensorsIndex::Parse(kSmall);
  ASSERT_OK(index);
  ASSERT_EQ(index->files().size(), 2u);
  EXPECT_EQ(index->files()[0], "2.safetensors");
  EXPECT_EQ(index->files()[1], "1.safetensors");
  ASSERT_EQ(index->entries().size(), 3u);
  EXPECT_EQ(index->entries()[0].key, "a");
  EXPECT_EQ(index->entries()[0].file, 1u);
  EXPECT_EQ(index->entries()[1].key, "b");
  EXPECT_EQ(index->entries()[1].file, 0u);
  EXPECT_EQ(index->entries()[2].file, 0u);
  EXPECT_OK(SafetensorsIndex::Parse("{\"weight_map\":{}}"));
}

TEST(SafetensorsIndex, ReadsWhatItWrites) {
  const std::string text = EncodeSafetensorsIndex(
      12, {{"b\"\u00e4", "m-2.safetensors"}, {"a", "m-1.safetensors"}});
  EXPECT_EQ(text,
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n"
            "  \"weight_map\": {\n    \"a\": \"m-1.safetensors\",\n"
            "    \"b\\\"\u00e4\": \"m-2.safetensors\"\n  }\n}\n");
  const auto index = SafetensorsIndex::Parse(text);
  ASSERT_OK(index);
  EXPECT_EQ(index->entries()[1].key, "b\"\u00e4");
  EXPECT_OK(SafetensorsIndex::Parse(EncodeSafetensorsIndex(0, {})));
}

TEST(SafetensorsIndex, RefusesFilesElsewhere) {
  for (const char* file :
       {"", ".", "..", "/etc/passwd", "a/b", "../a", "a/", "a\\u0000b"}) {
    ExpectCorrupt(StrCat("{\"weight_map\":{\"a\":\"", file, "\"}}"),
                  {"'a'", "plain name"});
  }
  ExpectCorrupt(
      StrCat("{\"weight_map\":{\"a\":\"", std::string(256, 'x'), "\"}}"),
      {"plain name"});
  EXPECT_OK(SafetensorsIndex::Parse(
      StrCat("{\"weight_map\":{\"a\":\"", std::string(255, 'x'), "\"}}")));
}

TEST(SafetensorsIndex, RefusesWhatIsNoIndex) {
  ExpectCorrupt("", {"not JSON"});
  ExpectCorrupt("{}", {"no weight_map"});
  ExpectCorrupt("{\"metadata\":{}}", {"no weight_map"});
  ExpectCorrupt("[]", {"an array", "not an object"});
  ExpectCorrupt("1", {"1", "not an object"});
  ExpectCorrupt("\"a\"", {"'a'", "not an object"});
  ExpectCorrupt("{\"weight_map\":{}} x", {"not JSON"});
  ExpectCorrupt("{\"weight_map\":[]}", {"'weight_map' is an array"});
  ExpectCorrupt("{\"weight_map\":1}", {"'weight_map' is 1"});
  ExpectCorrupt("{\"metadata\":\"x\"}", {"'metadata' is 'x'"});
  ExpectCorrupt("{\"metadata\":{\"a\":{}}}", {"'metadata' holds an object"});
  ExpectCorrupt("{\"metadata\":{\"a\":[]}}", {"'metadata' holds an array"});
  ExpectCorrupt("{\"weight_map\":{\"a\":1}}", {"'a' is in 1"});
  ExpectCorrupt("{\"weight_map\":{\"a\":null}}", {"'a' is in null"});
  ExpectCorrupt("{\"weight_map\":{\"a\":{}}}", {"'a' is in an object"});
  ExpectCorrupt("{\"weight_map\":{\"a\":[]}}", {"'a' is in an array"});
  ExpectCorrupt("{\"weight_map\":{},\"weight_map\":{}}",
                {"'weight_map' is there twice"});
  ExpectCorrupt("{\"metadata\":{},\"metadata\":{}}",
                {"'metadata' is there twice"});
  ExpectCorrupt("{\"map\":{}}", {"'map'", "weight_map"});
  ExpectCorrupt("{\"weight_map\":{\"a\":\"x\",\"a\":\"x\"}}",
                {"'a' is there twice"});
  ExpectCorrupt("{\"weight_map\":{\"a\\u0000\":\"x\"}}", {"NUL"});
  ExpectCorrupt("{\"weight_map\":{\"\xc0\x80\":\"x\"}}", {"UTF-8"});
  ExpectCorrupt(std::string(kMaxSafetensorsIndex + 1, ' '), {"100000001"});
}

TEST(SafetensorsIndex, NoDamageIsWorseThanAnError) {
  const std::string valid = kSmall;
  for (size_t at = 0; at < valid.size(); ++at) {
    if (at + 2 < valid.size()) {
      EXPECT_FALSE(SafetensorsIndex::Parse(valid.substr(0, at)).ok());
    }
    for (int byte = 0; byte < 256; ++byte) {
      std::string wrong = valid;
      wrong[at] = static_cast<char>(byte);
      const auto index = SafetensorsIndex::Parse(wrong);
      if (!index.ok()) continue;
      for (const auto& entry : index->entries()) {
        EXPECT_LT(entry.file, index->files().size());
        EXPECT_EQ(index->files()[entry.file].find('/'), std::string::npos);
      }
    }
  }
}

void ExpectCheap(const std::string& json, StatusCode code) {
  SCOPED_TRACE(json.substr(0, 80));
  ResetAllocatedPeak();
  const int64_t before = AllocatedBytes();
  const auto index = SafetensorsIndex::Parse(json);
  EXPECT_EQ(index.status().code(), code) << index.status().ToString();
  EXPECT_LE(AllocatedPeak() - before,
            static_cast<int64_t>(json.size()) + (int64_t{16} << 20));
}

TEST(SafetensorsIndex, MemoryIsBoundedByTheText) {
  const auto entries = [](int count, const auto& key, const auto& file) {
    std::string json = "{\"weight_map\":{";
    for (int i = 0; i < count; ++i) {
      StrAppend(&json, i == 0 ? "\"" : ",\"", key(i), "\":\"", file(i), "\"");
    }
    return json + "}}";
  };
  const auto number = [](int i) { return StrCat(i); };
  const auto layer = [](int i) {
    return StrCat("model.layers.", i, ".weight");
  };
  ExpectCheap(entries(200'000, number, number), StatusCode::kResourceExhausted);
  ExpectCheap(entries(200'000, number, [](int) { return "f"; }),
              StatusCode::kResourceExhausted);
  // A usual index.
  ExpectCheap(entries(200'000, layer,
                      [](int i) {
                        return StrCat("model-", i % 1000,
                                      "-of-1000.safetensors");
                      }),
              StatusCode::kOk);
  ExpectCheap(std::string(4 << 20, '['), StatusCode::kCorrupt);
  ExpectCheap(std::string(4 << 20, '\n'), StatusCode::kCorrupt);
}

}  // namespace

}  // namespace shard::safetensors_index_test
