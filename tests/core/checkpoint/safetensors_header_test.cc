// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/safetensors/safetensors_header.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/checkpoint/allocation_meter.h"

namespace shard::safetensors_header_test {

namespace {

std::string Tensor(std::string_view key, std::string_view type,
                   std::string_view shape, uint64_t begin, uint64_t end) {
  return StrCat("\"", key, "\":{\"dtype\":\"", type, "\",\"shape\":[", shape,
                "],\"data_offsets\":[", begin, ",", end, "]}");
}

void ExpectCorrupt(std::string_view json, uint64_t data_bytes,
                   std::initializer_list<std::string_view> parts) {
  SCOPED_TRACE(json.substr(0, 200));
  ExpectError(SafetensorsHeader::Parse(json, data_bytes), StatusCode::kCorrupt,
              parts);
}

// Parses the example of the format's documentation, with further forms that
// JSON allows.
TEST(SafetensorsHeader, Parses) {
  const auto header = SafetensorsHeader::Parse(
      "{ \"b\\u00e4\\\"\":{\"shape\":[2, 3],\"data_offsets\":[8,32],"
      "\"dtype\":\"F32\"},\n \"__metadata__\":{\"format\":\"pt\",\"\":\"x\"},"
      "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
      "\"none\":{\"dtype\":\"BF16\",\"shape\":[0,7],\"data_offsets\":[8,8]}}"
      "   ",
      32);
  ASSERT_OK(header);
  ASSERT_EQ(header->num_tensors(), 3u);
  EXPECT_EQ(header->tensor(0).key, "scalar");
  EXPECT_EQ(header->tensor(0).type, ElementType::kI64);
  EXPECT_EQ(header->tensor(0).shape().size(), 0u);
  EXPECT_EQ(header->tensor(0).numel(), 1);
  EXPECT_EQ(header->tensor(1).key, "none");
  EXPECT_EQ(header->tensor(1).numel(), 0);
  EXPECT_EQ(header->tensor(1).shape()[1], 7);
  EXPECT_EQ(header->tensor(2).key, "b\u00e4\"");
  EXPECT_EQ(header->tensor(2).begin, 8u);
  EXPECT_EQ(header->tensor(2).bytes, 24u);
  EXPECT_EQ(header->tensor(2).shape()[0], 2);
  EXPECT_EQ(header->tensor(2).shape()[1], 3);
  EXPECT_EQ(header->Find("scalar"), 0);
  EXPECT_EQ(header->Find("b\u00e4\""), 2);
  EXPECT_EQ(header->Find("b"), -1);
  EXPECT_EQ(header->Find(""), -1);
  ASSERT_EQ(header->metadata().size(), 2u);
  EXPECT_EQ(header->metadata()[0].second, "pt");
}

TEST(SafetensorsHeader, ReadsEveryTypeByItsName) {
  const std::pair<const char*, ElementType> types[] = {
      {"F64", ElementType::kF64},        {"F32", ElementType::kF32},
      {"F16", ElementType::kF16},        {"BF16", ElementType::kBF16},
      {"F8_E4M3", ElementType::kF8E4M3}, {"F8_E5M2", ElementType::kF8E5M2},
      {"I64", ElementType::kI64},        {"I32", ElementType::kI32},
      {"I16", ElementType::kI16},        {"I8", ElementType::kI8},
      {"U64", ElementType::kU64},        {"U32", ElementType::kU32},
      {"U16", ElementType::kU16},        {"U8", ElementType::kU8},
      {"BOOL", ElementType::kBool},
  };
  for (const auto& [name, type] : types) {
    const size_t size = ElementSize(type);
    const auto header = SafetensorsHeader::Parse(
        StrCat("{", Tensor("t", name, "3", 0, 3 * size), "}"), 3 * size);
    ASSERT_OK(header);
    EXPECT_EQ(header->tensor(0).type, type);
    EXPECT_STREQ(SafetensorsTypeName(type), name);
  }
  EXPECT_EQ(SafetensorsTypeName(ElementType::kQ8), nullptr);
}

// Types that libshard does not read: other types of the format, and future
// ones.
TEST(SafetensorsHeader, CarriesOtherTypes) {
  struct Case {
    const char* type;
    const char* shape;
    uint64_t bytes;
    int64_t numel;
  };
  for (const Case& c :
       {Case{"C64", "2,3", 48, 6}, Case{"F8_E8M0", "5", 5, 5},
        Case{"F8_E4M3FNUZ", "", 1, 1}, Case{"F8_E5M2FNUZ", "0,7", 0, 0},
        Case{"F4", "2,3", 3, 6}, Case{"F6_E2M3", "4", 3, 4},
        Case{"F6_E3M2", "8", 6, 8}, Case{"T1", "3,3", 7, 9},
        Case{"C128", "2", 32, 2}}) {
    const auto header = SafetensorsHeader::Parse(
        StrCat("{", Tensor("t", c.type, c.shape, 0, c.bytes), ",",
               Tensor("u", "U8", "2", c.bytes, c.bytes + 2), "}"),
        c.bytes + 2);
    ASSERT_OK(header);
    const auto& tensor = header->tensor(static_cast<size_t>(header->Find("t")));
    EXPECT_EQ(tensor.type, ElementType::kOpaque);
    EXPECT_EQ(header->type_name(tensor), c.type);
    EXPECT_EQ(tensor.bytes, c.bytes);
    EXPECT_EQ(tensor.numel(), c.numel);
  }
  const auto refused = [](const char* type, const char* shape, uint64_t bytes,
                          std::initializer_list<std::string_view> parts) {
    ExpectCorrupt(StrCat("{", Tensor("t", type, shape, 0, bytes), "}"), bytes,
                  parts);
  };
  // The bytes are checked for types whose size is known.
  refused("C64", "2,3", 40, {"'t'", "40 bytes", "C64", "[2, 3]", "64 bits"});
  refused("F8_E8M0", "5", 6, {"6 bytes", "8 bits"});
  refused("F4", "3", 2, {"2 bytes", "4 bits"});
  refused("T1", "4294967296,4294967296", 1, {"'t'", "63 bits"});
  refused("", "1", 1, {"'t'", "''", "no name of a type"});
  refused("F 32", "1", 1, {"no name of a type"});
  refused("A23456789012345678901234567890123", "1", 1, {"at most 32"});
  ExpectCorrupt(
      "{\"t\":{\"dtype\":\"T1\",\"shape\":[1],"
      "\"data_offsets\":[4,3]}}",
      4, {"'t'", "end before they begin"});
  ExpectCorrupt(StrCat("{", Tensor("t", "T1", "1", 0, 9), "}"), 8,
                {"only 8", "cut off"});
  // The number of types of a header is bounded.
  std::string many = "{";
  for (int i = 0; i < 256; ++i) {
    StrAppend(&many, i == 0 ? "" : ",",
              Tensor(StrCat("t", i), StrCat("T", i), "0", 0, 0));
  }
  ExpectError(SafetensorsHeader::Parse(many + "}", 0),
              StatusCode::kResourceExhausted, {"255", "types"});
}

TEST(SafetensorsHeader, RefusesWhatIsNoHeader) {
  ExpectCorrupt("", 0, {"does not begin with '{'"});
  ExpectCorrupt(" {}", 0, {"does not begin with '{'"});
  ExpectCorrupt("\xef\xbb\xbf{}", 0, {"does not begin with '{'"});
  ExpectCorrupt("[]", 0, {"does not begin with '{'"});
  ExpectCorrupt("{", 0, {"not JSON"});
  ExpectCorrupt("{}x", 0, {"not JSON"});
  ExpectCorrupt("{} {}", 0, {"not JSON"});
  ExpectCorrupt("{'a':1}", 0, {"not JSON", "column 2"});
  ExpectCorrupt("{\"a\xff\":1}", 0, {"not JSON", "UTF-8", "column 4"});
  ExpectCorrupt("{\"\\ud800\":1}", 0, {"not JSON", "surrogate"});
  ExpectCorrupt(std::string_view("{\"a\0\":1}", 8), 0, {"not JSON"});
  ExpectCorrupt("{\"a\\u0000\":1}", 0, {"'a?'", "NUL"});
  ExpectCorrupt("{\"a\":1}", 0, {"'a'", "1", "not an object"});
  ExpectCorrupt("{\"a\":[]}", 0, {"'a'", "an array", "not an object"});
  ExpectCorrupt("{\"a\":null}", 0, {"'a'", "null", "not an object"});
}

TEST(SafetensorsHeader, RefusesFieldsThatAreWrong) {
  ExpectCorrupt("{\"a\":{}}", 0, {"'a'", "no dtype"});
  ExpectCorrupt("{\"a\":{\"dtype\":\"U8\"}}", 0, {"'a'", "no shape"});
  ExpectCorrupt("{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 0,
                {"'a'", "no data_offsets"});
  ExpectCorrupt("{\"a\":{\"dtype\":1}}", 0, {"'a'", "dtype is 1"});
  ExpectCorrupt("{\"a\":{\"dtype\":[\"U8\"]}}", 0, {"dtype is an array"});
  ExpectCorrupt("{\"a\":{\"shape\":\"U8\"}}", 0, {"shape is 'U8'"});
  ExpectCorrupt("{\"a\":{\"shape\":{}}}", 0, {"shape is an object"});
  ExpectCorrupt("{\"a\":{\"stride\":[1]}}", 0, {"'a'", "'stride'"});
  ExpectCorrupt("{\"a\":{\"shape\":[],\"shape\":[]}}", 0,
                {"'a'", "shape is there twice"});
  ExpectCorrupt("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0,
                {"dtype is there twice"});
  ExpectCorrupt("{\"a\":{\"data_offsets\":[0,0],\"data_offsets\":[0,0]}}", 0,
                {"data_offsets is there twice"});
  ExpectCorrupt("{\"a\":{\"shape\":[-1]}}", 0, {"shape holds -1"});
  ExpectCorrupt("{\"a\":{\"shape\":[1.0]}}", 0, {"shape holds 1.0"});
  ExpectCorrupt("{\"a\":{\"shape\":[18446744073709551616]}}", 0,
                {"shape holds 18446744073709551616"});
  ExpectCorrupt("{\"a\":{\"shape\":[9223372036854775808]}}", 0,
                {"9223372036854775808", "too large"});
  ExpectCorrupt("{\"a\":{\"shape\":[[1]]}}", 0, {"shape holds an array"});
  ExpectCorrupt("{\"a\":{\"shape\":[\"1\"]}}", 0, {"shape holds '1'"});
  ExpectCorrupt("{\"a\":{\"data_offsets\":[0]}}", 0, {"has 1 numbers, not 2"});
  ExpectCorrupt("{\"a\":{\"data_offsets\":[0,1,2]}}", 0,
                {"has 3 numbers, not 2"});
  std::string ones = "1";
  for (size_t i = 1; i < kMaxSafetensorsRank; ++i) ones += ",1";
  EXPECT_OK(SafetensorsHeader::Parse(
      StrCat("{", Tensor("a", "U8", ones, 0, 1), "}"), 1));
  ExpectCorrupt(StrCat("{", Tensor("a", "U8", ones + ",1", 0, 1), "}"), 1,
                {"'a'", "more than 64 dimensions"});
}

TEST(SafetensorsHeader, RefusesMetadataThatIsNotText) {
  ExpectCorrupt("{\"__metadata__\":1}", 0, {"'__metadata__' is 1"});
  ExpectCorrupt("{\"__metadata__\":{\"a\":1}}", 0, {"'a' is 1"});
  ExpectCorrupt("{\"__metadata__\":{\"a\":{}}}", 0, {"'a' is an object"});
  ExpectCorrupt("{\"__metadata__\":{\"a\":[]}}", 0, {"'a' is an array"});
  ExpectCorrupt("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0,
                {"'a' is there twice"});
  ExpectCorrupt("{\"__metadata__\":{},\"__metadata__\":{}}", 0,
                {"'__metadata__' is there twice"});
}

TEST(SafetensorsHeader, RefusesPlacesThatAreWrong) {
  const std::string a = Tensor("a", "F32", "2", 0, 8);
  ExpectCorrupt(StrCat("{", a, ",", a, "}"), 8, {"'a'", "twice"});
  ExpectCorrupt(StrCat("{", a, ",\"\\u0061\"",
                       Tensor("", "F32", "2", 8, 16).substr(2), "}"),
                16, {"'a'", "twice"});
  ExpectCorrupt(StrCat("{", a, ",", Tensor("b", "U8", "4", 4, 8), "}"), 8,
                {"'b'", "byte 4", "within", "ends at 8"});
  ExpectCorrupt(StrCat("{", a, ",", Tensor("b", "U8", "4", 0, 4), "}"), 8,
                {"byte 0", "within"});
  ExpectCorrupt(StrCat("{", a, ",", Tensor("b", "U8", "4", 9, 13), "}"), 13,
                {"'b'", "byte 9", "hole", "ends at 8"});
  ExpectCorrupt(StrCat("{", Tensor("a", "F32", "2", 1, 9), "}"), 9,
                {"'a'", "byte 1", "hole"});
  ExpectCorrupt(StrCat("{", a, "}"), 9, {"1 bytes after the last tensor"});
  ExpectCorrupt("{}", 5, {"5 bytes after the last tensor"});
  ExpectCorrupt(StrCat("{", a, "}"), 7, {"'a'", "0 to 8", "only 7", "cut off"});
  ExpectCorrupt(StrCat("{", Tensor("a", "F32", "2", 0, 9), "}"), 9,
                {"'a'", "9 bytes", "F32", "[2]", "8"});
  ExpectCorrupt(StrCat("{", Tensor("a", "F32", "2", 8, 0), "}"), 8,
                {"'a'", "[8, 0]", "before they begin"});
  const std::string max = "18446744073709551615";
  ExpectCorrupt(StrCat("{", a, ",\"b\":{\"dtype\":\"U8\",\"shape\":[7],",
                       "\"data_offsets\":[18446744073709551608,", max, "]}}"),
                8, {"'b'", "18446744073709551608", "hole"});
}

TEST(SafetensorsHeader, RefusesShapesThatOverflow) {
  for (const char* shape :
       {"4294967296,4294967296", "4611686018427387904,2",
        "3037000500,3037000500", "9223372036854775807,2,0"}) {
    ExpectCorrupt(StrCat("{", Tensor("a", "F64", shape, 0, 0), "}"), 0,
                  {"'a'", "more bytes than 63 bits"});
  }
  ExpectCorrupt(
      StrCat("{", Tensor("a", "U8", "4611686018427387904,2", 0, 1ull << 63),
             "}"),
      0, {"'a'", "more bytes than 63 bits"});
  // With a 0 first, no product overflows.
  EXPECT_OK(SafetensorsHeader::Parse(
      StrCat("{", Tensor("a", "F64", "0,9223372036854775807,2", 0, 0), "}"),
      0));
}

TEST(SafetensorsHeader, ThePrefixIsComparedWithTheFile) {
  const auto bytes_of = [](uint64_t value, uint64_t file_bytes) {
    std::array<std::byte, 8> prefix;
    for (size_t i = 0; i < 8; ++i) {
      prefix[i] = static_cast<std::byte>(value >> (8 * i));
    }
    return SafetensorsHeaderBytes(prefix, file_bytes);
  };
  EXPECT_EQ(*bytes_of(2, 10), 2u);
  EXPECT_EQ(*bytes_of(kMaxSafetensorsHeader, 200'000'000), 100'000'000u);
  ExpectError(bytes_of(3, 10), StatusCode::kCorrupt, {"3 bytes", "only 10"});
  ExpectError(bytes_of(3, 7), StatusCode::kCorrupt, {"only 7"});
  ExpectError(bytes_of(kMaxSafetensorsHeader + 1, 200'000'000),
              StatusCode::kCorrupt, {"100000001", "100000000"});
  ExpectError(bytes_of(~uint64_t{0}, 200'000'000), StatusCode::kCorrupt,
              {"18446744073709551615"});
  std::string large(kMaxSafetensorsHeader + 1, ' ');
  large[0] = '{';
  large[1] = '}';
  ExpectCorrupt(large, 0, {"100000001", "100000000"});
  large.pop_back();
  EXPECT_OK(SafetensorsHeader::Parse(large, 0));
}

std::string SmallHeader() {
  return StrCat("{\"__metadata__\":{\"format\":\"pt\"},",
                Tensor("weight", "F32", "2,3", 0, 24), ",",
                Tensor("bias", "BF16", "3", 24, 30), "} ");
}

// A header with any byte changed is read or refused, and never worse.
TEST(SafetensorsHeader, EveryByteOfItMayBeWrong) {
  const std::string valid = SmallHeader();
  ASSERT_OK(SafetensorsHeader::Parse(valid, 30));
  int accepted = 0;
  for (size_t at = 0; at < valid.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string wrong = valid;
      wrong[at] = static_cast<char>(byte);
      const auto header = SafetensorsHeader::Parse(wrong, 30);
      if (!header.ok()) {
        EXPECT_TRUE(IsValidUtf8(header.status().message()));
        continue;
      }
      ++accepted;
      uint64_t end = 0;
      for (size_t i = 0; i < header->num_tensors(); ++i) {
        EXPECT_EQ(header->tensor(i).begin, end);
        end += header->tensor(i).bytes;
        EXPECT_EQ(header->Find(header->tensor(i).key), static_cast<int64_t>(i));
      }
      EXPECT_EQ(end, 30u);
    }
  }
  // At least the letters of names may be others.
  EXPECT_GT(accepted, 1000);
}

TEST(SafetensorsHeader, EveryLengthButTheWholeIsAnError) {
  const std::string valid = SmallHeader();
  for (size_t length = 0; length + 1 < valid.size(); ++length) {
    EXPECT_FALSE(SafetensorsHeader::Parse(valid.substr(0, length), 30).ok());
  }
}

// Parses `json`, which succeeds if `ok`, and expects that this takes no more
// memory than the size of `json` and 16 MiB.
void ExpectCheap(const std::string& json, bool ok, uint64_t data_bytes = 0) {
  SCOPED_TRACE(json.substr(0, 80));
  ResetAllocatedPeak();
  const int64_t before = AllocatedBytes();
  const auto header = SafetensorsHeader::Parse(json, data_bytes);
  EXPECT_EQ(header.ok(), ok) << header.status().ToString();
  EXPECT_LE(AllocatedPeak() - before,
            static_cast<int64_t>(json.size()) + (int64_t{16} << 20));
  EXPECT_LE(header.status().message().size(), 1000u);
}

TEST(SafetensorsHeader, MemoryIsBoundedByTheHeader) {
  constexpr size_t kMiB = size_t{1} << 20;
  const std::string open = "{\"__metadata__\":{\"a\":\"";
  // One string, just within the limit of a piece, and beyond it.
  ExpectCheap(open + std::string(kMiB - 100, 'x') + "\"}}", true);
  ExpectCheap(open + std::string(kMiB - 100, 'x') + "\x01", false);
  ExpectCheap(open + std::string(8 * kMiB, 'x') + "\"}}", false);
  ExpectCheap(open + std::string(8 * kMiB, '\xff'), false);
  ExpectCheap("{" + std::string(8 * kMiB, '\n') + "}", false);
  ExpectCheap("{" + std::string(8 * kMiB, '\t') + "}", false);
  ExpectCheap("{" + std::string(8 * kMiB, ' ') + "}", false);
  ExpectCheap("{\"a\":{\"shape\":[" + std::string(8 * kMiB, '1'), false);
  ExpectCheap("{\"a\":" + std::string(8 * kMiB, '['), false);
  ExpectCheap("{\"a\":" + std::string(8 * kMiB, '{'), false);
  ExpectCheap("{}" + std::string(8 * kMiB, ' ') + "x", false);
  ExpectCheap("{}" + std::string(8 * kMiB, ' '), true);
  // Many short names, and shapes of many dimensions.
  std::string many = open.substr(0, open.size() - 5);
  for (int i = 0; i < 200'000; ++i) {
    StrAppend(&many, i == 0 ? "\"" : ",\"", i, "\":\"\"");
  }
  ExpectCheap(many + "}}", false);
  std::string ones = "0";
  for (size_t i = 1; i < kMaxSafetensorsRank; ++i) ones += ",1";
  many = "{";
  for (int i = 0; i < 100'000; ++i) {
    StrAppend(&many, i == 0 ? "" : ",", Tensor(StrCat(i), "U8", ones, 0, 0));
  }
  ExpectCheap(many + "}", false);
  // A usual header, of many tensors.
  many = "{";
  constexpr uint64_t kTensors = 200'000;
  constexpr uint64_t kBytes = 4 * 768 * 768;
  for (uint64_t i = 0; i < kTensors; ++i) {
    StrAppend(
        &many, i == 0 ? "" : ",",
        Tensor(StrCat("l", i), "F32", "768,768", i * kBytes, (i + 1) * kBytes));
  }
  ExpectCheap(many + "}", true, kTensors * kBytes);
}

TEST(SafetensorsLayout, IsTheFormatsOwn) {
  // From the tests of the format's own library.
  const std::vector<SafetensorsTensor> tensors = {
      {"attn0", ElementType::kF32, {1, 1, 2, 3}}};
  const auto layout = LayOutSafetensors(tensors, {});
  ASSERT_OK(layout);
  EXPECT_EQ(layout->header,
            std::string("\x48\0\0\0\0\0\0\0", 8) +
                "{\"attn0\":{\"dtype\":\"F32\",\"shape\":[1,1,2,3],"
                "\"data_offsets\":[0,24]}}       ");
  EXPECT_EQ(layout->begin[0], 80u);
  EXPECT_EQ(layout->file_bytes, 104u);

  const std::vector<std::pair<std::string, std::string>> metadata = {
      {"framework", "pt"}};
  const auto empty = LayOutSafetensors({}, metadata);
  ASSERT_OK(empty);
  EXPECT_EQ(empty->header,
            std::string("\x28\0\0\0\0\0\0\0", 8) +
                "{\"__metadata__\":{\"framework\":\"pt\"}}     ");
}

TEST(SafetensorsLayout, LargeElementsComeFirst) {
  const std::vector<SafetensorsTensor> tensors = {
      {"d", ElementType::kBool, {3}},    {"c", ElementType::kF32, {1}},
      {"b\n\"", ElementType::kF32, {}},  {"e", ElementType::kI64, {0}},
      {"f", ElementType::kBF16, {2, 1}}, {"a", ElementType::kF64, {1}},
  };
  const auto layout = LayOutSafetensors(tensors, {});
  ASSERT_OK(layout);
  const uint64_t data = layout->header.size();
  EXPECT_EQ(data % 8, 0u);
  const std::vector<uint64_t> expected = {data + 20, data + 12, data + 8,
                                          data,      data + 16, data};
  EXPECT_EQ(layout->begin, expected);
  EXPECT_EQ(layout->bytes, (std::vector<uint64_t>{3, 4, 4, 0, 4, 8}));
  EXPECT_EQ(layout->file_bytes, data + 23);
  const auto header =
      SafetensorsHeader::Parse(std::string_view(layout->header).substr(8), 23);
  ASSERT_OK(header);
  EXPECT_EQ(header->num_tensors(), 6u);
  EXPECT_GE(header->Find("b\n\""), 0);
}

TEST(SafetensorsLayout, OtherTypesMoveNoneFromItsAlignment) {
  const std::vector<SafetensorsTensor> tensors = {
      {"a", ElementType::kF64, {1}},
      {"b", ElementType::kOpaque, {3}, "T1", 7},
      {"c", ElementType::kOpaque, {1}, "T2", 16},
      {"d", ElementType::kOpaque, {1}, "C64", 8},
      {"e", ElementType::kU8, {1}},
      {"f", ElementType::kF32, {1}},
  };
  const auto layout = LayOutSafetensors(tensors, {});
  ASSERT_OK(layout);
  const uint64_t data = layout->header.size();
  EXPECT_EQ(layout->begin,
            (std::vector<uint64_t>{data + 16, data + 37, data, data + 24,
                                   data + 36, data + 32}));
  EXPECT_OK(
      SafetensorsHeader::Parse(std::string_view(layout->header).substr(8), 44));
  ExpectInvalid(LayOutSafetensors(
                    std::vector<SafetensorsTensor>{
                        {"a", ElementType::kOpaque, {1}, "F32", 4}},
                    {}),
                {"'a'", "'F32'"});
  ExpectInvalid(LayOutSafetensors(
                    std::vector<SafetensorsTensor>{
                        {"a", ElementType::kOpaque, {1}, "C64", 4}},
                    {}),
                {"'a'", "4 bytes", "C64"});
}

TEST(SafetensorsLayout, RefusesWhatCannotBeRead) {
  const auto lay_out = [](std::vector<SafetensorsTensor> tensors) {
    return LayOutSafetensors(tensors, {});
  };
  ExpectInvalid(lay_out({{"a", ElementType::kQ8, {1}}}), {"'a'", "q8", "f32"});
  ExpectInvalid(lay_out({{"a\xff", ElementType::kU8, {1}}}), {"UTF-8"});
  ExpectInvalid(lay_out({{"__metadata__", ElementType::kU8, {1}}}),
                {"'__metadata__'"});
  ExpectInvalid(lay_out({{"a", ElementType::kU8, {-1}}}), {"'a'", "[-1]"});
  ExpectInvalid(lay_out({{"a", ElementType::kF32, {int64_t{1} << 61}}}),
                {"'a'", "63 bits"});
  ExpectInvalid(lay_out({{"a", ElementType::kF32, {int64_t{1} << 60}},
                         {"b", ElementType::kF32, {int64_t{1} << 60}}}),
                {"63 bits"});
  ExpectInvalid(lay_out({{"a", ElementType::kU8, std::vector<int64_t>(65)}}),
                {"'a'", "65", "64"});
  ExpectInvalid(
      lay_out({{"a", ElementType::kU8, {1}}, {"a", ElementType::kF32, {1}}}),
      {"'a'", "twice"});
}

TEST(SafetensorsLayout, RefusesHeadersThatNoReaderTakes) {
  if (kSanitized) GTEST_SKIP() << "a hundred megabytes are only copied";
  const std::string name(1'000'000, 'x');
  std::vector<SafetensorsTensor> many;
  for (int i = 0; i < 101; ++i) {
    many.push_back({StrCat(name, i), ElementType::kU8, {0}});
  }
  ExpectError(LayOutSafetensors(many, {}), StatusCode::kResourceExhausted,
              {"100000000", "max_shard_bytes"});
}

}  // namespace

}  // namespace shard::safetensors_header_test
