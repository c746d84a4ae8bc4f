// SPDX-License-Identifier: Apache-2.0
//
// A reader of manifests that is made from docs/checkpoint-format.md alone: it
// uses neither FlatBuffers nor the library, except for comparing with the
// library's results. The reader would fail on the library's files if the
// document were wrong or left something out.

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/checkpoint/manifest/manifest.h"
#include "kernels/cpu/q8.h"
#include "kernels/formula/state_kind.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/checkpoint/read_manifest.h"

namespace format_doc_test {
namespace {

using Bytes = std::vector<uint8_t>;

// ---------------------------------------------------------------------------
// The reader. All reads go through `at`, which throws beyond the end.
// ---------------------------------------------------------------------------

class Body {
 public:
  explicit Body(Bytes bytes) : bytes_(std::move(bytes)) {}

  uint64_t Unsigned(size_t at, size_t bytes) const {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) {
      value |= uint64_t{bytes_.at(at + i)} << (8 * i);
    }
    return value;
  }
  uint32_t U32(size_t at) const {
    return static_cast<uint32_t>(Unsigned(at, 4));
  }
  int32_t I32(size_t at) const { return static_cast<int32_t>(U32(at)); }
  std::string Text(size_t at) const {
    std::string text;
    const size_t end = at + 4 + U32(at);
    for (size_t i = at + 4; i < end; ++i) {
      text.push_back(static_cast<char>(bytes_.at(i)));
    }
    if (bytes_.at(end) != 0) throw std::runtime_error("no zero");
    return text;
  }

 private:
  Bytes bytes_;
};

class Table {
 public:
  Table(const Body& body, size_t at)
      : body_(body), at_(at), vtable_(at - static_cast<size_t>(body.I32(at))) {}

  // Returns the position of a field; 0: absent.
  size_t Field(size_t number) const {
    const size_t entry = 4 + 2 * number;
    if (entry >= body_.Unsigned(vtable_, 2)) return 0;
    const auto offset = static_cast<size_t>(body_.Unsigned(vtable_ + entry, 2));
    return offset == 0 ? 0 : at_ + offset;
  }
  uint64_t Number(size_t number, size_t bytes, uint64_t fallback) const {
    const size_t at = Field(number);
    return at == 0 ? fallback : body_.Unsigned(at, bytes);
  }
  int64_t Int32(size_t number, int32_t fallback) const {
    const size_t at = Field(number);
    return at == 0 ? fallback : body_.I32(at);
  }
  int64_t Int64(size_t number, int64_t fallback) const {
    return static_cast<int64_t>(
        Number(number, 8, static_cast<uint64_t>(fallback)));
  }
  std::string Text(size_t number) const {
    const size_t at = Field(number);
    return at == 0 ? "" : body_.Text(at + body_.U32(at));
  }
  // Returns the positions of a vector's elements.
  std::vector<size_t> Elements(size_t number, size_t bytes) const {
    std::vector<size_t> elements;
    const size_t field = Field(number);
    if (field == 0) return elements;
    const size_t vector = field + body_.U32(field);
    for (size_t i = 0; i < body_.U32(vector); ++i) {
      elements.push_back(vector + 4 + i * bytes);
    }
    return elements;
  }
  std::vector<Table> Tables(size_t number) const {
    std::vector<Table> tables;
    for (const size_t at : Elements(number, 4)) {
      tables.emplace_back(body_, at + body_.U32(at));
    }
    return tables;
  }

 private:
  const Body& body_;
  size_t at_;
  size_t vtable_;
};

// Formats a number as Describe of read_manifest.h does, so that texts can be
// compared.
std::string Hex(uint64_t value) {
  char text[19];
  std::snprintf(text, sizeof(text), "0x%016llx",
                static_cast<unsigned long long>(value));
  return text;
}

// Describes an extent. The file offset is at `offset`; the checksum, and the
// file after it, are at `checksum`.
void DescribeExtent(const Body& body, size_t offset, uint64_t bytes,
                    size_t checksum, std::ostream* to) {
  *to << " file " << body.U32(checksum + 16) << " offset "
      << body.Unsigned(offset, 8) << " bytes " << bytes << " "
      << Hex(body.Unsigned(checksum, 8)) << " "
      << Hex(body.Unsigned(checksum + 8, 8)) << "\n";
  EXPECT_EQ(body.U32(checksum + 20), 0u);
}

void DescribeTensor(const Body& body, const Table& root, const Table& tensor,
                    std::ostream* to) {
  static const std::map<uint64_t, std::pair<const char*, uint64_t>> kTypes = {
      {1, {"f32", 4}},     {2, {"bf16", 2}},    {3, {"f16", 2}},
      {4, {"f64", 8}},     {5, {"q8", 1}},      {6, {"f8_e4m3", 1}},
      {7, {"f8_e5m2", 1}}, {16, {"i8", 1}},     {17, {"i16", 2}},
      {18, {"i32", 4}},    {19, {"i64", 8}},    {20, {"u8", 1}},
      {21, {"u16", 2}},    {22, {"u32", 4}},    {23, {"u64", 8}},
      {24, {"bool", 1}},   {32, {"opaque", 1}},
  };
  static const std::map<uint64_t, const char*> kRoles = {
      {1, "param"}, {2, "buffer"}, {3, "state"}};
  const auto [type, size] = kTypes.at(tensor.Number(2, 1, 0));
  const int64_t alias = tensor.Int32(6, -1);
  const Table values =
      alias < 0 ? tensor : root.Tables(4).at(static_cast<size_t>(alias));
  *to << "tensor " << tensor.Text(0) << " " << type << " "
      << kRoles.at(tensor.Number(3, 1, 0)) << " [";
  uint64_t numel = 1;
  const char* separator = "";
  for (const size_t dim : tensor.Elements(1, 8)) {
    *to << separator << body.Unsigned(dim, 8);
    numel *= body.Unsigned(dim, 8);
    separator = ", ";
  }
  const int64_t step = values.Int64(9, -1);
  *to << "] alias of " << alias << " trainable "
      << (values.Number(7, 1, 1) != 0 ? "true" : "false") << " group "
      << values.Int32(8, -1) << " step " << (step < 0 ? root.Int64(1, 0) : step)
      << " code book " << values.Number(10, 1, 0) << " opaque '"
      << values.Text(11) << "' " << values.Number(12, 8, 0) << "\n";
  if (tensor.Number(2, 1, 0) == 32) numel = tensor.Number(12, 8, 0);
  const std::vector<size_t> slices = root.Elements(5, 40);
  const uint64_t first = tensor.Number(4, 4, 0);
  const uint64_t count = tensor.Number(5, 4, 0);
  for (uint64_t i = first; i < first + count; ++i) {
    const size_t at = slices.at(i);
    const uint64_t begin = body.Unsigned(at, 8);
    const uint64_t end =
        i + 1 < first + count ? body.Unsigned(slices.at(i + 1), 8) : numel;
    *to << "  slice " << begin << " " << end - begin;
    DescribeExtent(body, at + 8, (end - begin) * size, at + 16, to);
  }
}

Bytes BodyOf(const Bytes& file) {
  const Body all(file);
  if (std::string(file.begin(), file.begin() + 8) != "LIBSHARD" ||
      all.U32(8) < 1 || all.U32(8) > 3 || all.U32(12) != ~all.U32(8) ||
      all.Unsigned(16, 8) != file.size() - 40) {
    throw std::runtime_error("header");
  }
  const XXH128_hash_t hash = XXH3_128bits(file.data() + 40, file.size() - 40);
  if (all.Unsigned(24, 8) != hash.low64 || all.Unsigned(32, 8) != hash.high64) {
    throw std::runtime_error("checksum");
  }
  return Bytes(file.begin() + 40, file.end());
}

std::string DescribeFile(const Bytes& file) {
  const Body body(BodyOf(file));
  EXPECT_EQ(body.Unsigned(4, 4), 0x44524853u) << "SHRD";
  const Table root(body, body.U32(0));
  std::ostringstream to;
  to << "writer " << root.Text(0) << " step " << root.Int64(1, 0)
     << " world size " << root.Int32(2, 0) << "\n";
  for (const Table& each : root.Tables(3)) {
    to << "file " << each.Text(0) << " " << each.Number(1, 8, 0) << "\n";
  }
  for (const Table& tensor : root.Tables(4)) {
    DescribeTensor(body, root, tensor, &to);
  }
  for (const Table& group : root.Tables(6)) {
    to << "group " << group.Text(0) << "\n";
  }
  for (const Table& scalar : root.Tables(7)) {
    const uint64_t bits = scalar.Number(1, 8, 0);
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    to << "scalar " << scalar.Text(0) << " " << value << "\n";
  }
  for (const Table& blob : root.Tables(8)) {
    const size_t extent = blob.Field(3);
    to << "blob " << blob.Text(0) << " rule " << blob.Number(1, 1, 0)
       << " rank " << blob.Int32(2, 0);
    DescribeExtent(body, extent, body.Unsigned(extent + 8, 8), extent + 16,
                   &to);
  }
  return to.str();
}

// ---------------------------------------------------------------------------

Bytes ToBytes(const std::vector<std::byte>& file) {
  Bytes bytes;
  for (const std::byte each : file) bytes.push_back(static_cast<uint8_t>(each));
  return bytes;
}

shard::ManifestContents Example() {
  const float values[] = {1, 2, 3, 4};
  const XXH128_hash_t hash = XXH3_128bits(values, sizeof(values));
  shard::ManifestContents contents;
  contents.writer = "libshard";
  contents.step = 7;
  contents.files = {{"data-00000.bin", 4096}};
  contents.groups = {"sgd?lr=0.1"};
  contents.tensors.resize(2);
  contents.tensors[0].key = "w";
  contents.tensors[0].shape = {2, 2};
  contents.tensors[0].group = 0;
  contents.tensors[0].slices = {{0, 4, {0, 0, 16, {hash.low64, hash.high64}}}};
  contents.tensors[1].key = "tied";
  contents.tensors[1].shape = {2, 2};
  contents.tensors[1].alias_of = 0;
  return contents;
}

TEST(FormatDocument, ItsExampleIsWhatTheLibraryWrites) {
  std::ifstream document("docs/checkpoint-format.md");
  Bytes example;
  bool inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("```")) {
      inside = line == "```hex";
      continue;
    }
    if (!inside) continue;
    std::istringstream words(line);
    std::string word;
    words >> word;  // The offset of the line.
    EXPECT_EQ(std::stoul(word, nullptr, 16), example.size());
    while (words >> word) {
      example.push_back(static_cast<uint8_t>(std::stoul(word, nullptr, 16)));
    }
  }
  const auto file = shard::EncodeManifest(Example());
  ASSERT_OK(file);
  EXPECT_EQ(example, ToBytes(*file));
  EXPECT_EQ(DescribeFile(example),
            shard::Describe(**shard::Manifest::Parse(*file)));
}

// Versions 2 and 3 differ from version 1 in their limits and types only.
TEST(FormatDocument, LaterVersionsAreAsVersion1) {
  auto file = shard::EncodeManifest(Example());
  ASSERT_OK(file);
  const std::string expected = DescribeFile(ToBytes(*file));
  for (const uint8_t version : {uint8_t{2}, uint8_t{3}}) {
    (*file)[8] = std::byte{version};
    (*file)[12] = ~std::byte{version};
    EXPECT_EQ(DescribeFile(ToBytes(*file)), expected);
    const auto manifest = shard::Manifest::Parse(*file);
    ASSERT_OK(manifest);
    EXPECT_EQ((*manifest)->version(), version);
    EXPECT_EQ(shard::Describe(**manifest), expected);
  }
}

// The contents have all types, roles, rules and defaults.
TEST(FormatDocument, SufficesForAReader) {
  using shard::BlobRule;
  using shard::ElementType;
  using shard::TensorRole;
  shard::ManifestContents contents = Example();
  contents.world_size = 2;
  uint64_t end = 64;
  auto& tensors = contents.tensors;
  for (int type = 1; type <= 24; ++type) {
    if (!shard::IsElementType(type)) continue;
    auto& tensor = tensors.emplace_back();
    tensor.type = ElementType{type};
    tensor.key = "type " + std::to_string(type);
    tensor.role = type == 5 ? TensorRole::kState : TensorRole::kBuffer;
    tensor.codebook = type == 5 ? 5 : 0;
    tensor.shape = {300};
    const auto size = static_cast<uint64_t>(shard::ElementSize(tensor.type));
    for (int64_t begin = 0; begin < 300; begin += 100) {
      tensor.slices.push_back({begin, 100, {0, end, 100 * size, {end, size}}});
      end = (end + 100 * size + 63) / 64 * 64;
    }
  }
  auto& scales = tensors.emplace_back();
  scales.key = "type 5.q8_scale";
  scales.role = TensorRole::kState;
  scales.shape = {2};
  scales.slices = {{0, 2, {0, end, 8, {~uint64_t{0}, 1}}}};
  auto& scalar = tensors.emplace_back();
  scalar.key = "0-d \xC3\xA9";
  scalar.trainable = false;
  scalar.step = 3;
  scalar.slices = {{0, 1, {0, end + 64, 4, {}}}};
  auto& empty = tensors.emplace_back();
  empty.key = "empty";
  empty.shape = {0, 2};
  auto& opaque = tensors.emplace_back();
  opaque.key = "opaque";
  opaque.type = ElementType::kOpaque;
  opaque.shape = {5, 4};
  opaque.opaque = std::make_shared<shard::ManifestContents::Opaque>(
      shard::ManifestContents::Opaque{"F6_E3M2", 15});
  opaque.slices = {{0, 1, {0, end + 256, 1, {1, 2}}},
                   {1, 14, {0, end + 320, 14, {3, 4}}}};
  auto& again = tensors.emplace_back();
  again.key = "opaque again";
  again.type = ElementType::kOpaque;
  again.shape = {5, 4};
  again.alias_of = static_cast<int64_t>(tensors.size()) - 2;
  contents.scalars = {{"loss_scale.scale", 1024}, {"zero", 0}};
  contents.blobs = {
      {"loader", BlobRule::kPerRank, 1, {0, end + 128, 3, {5, 6}}},
      {"rng", BlobRule::kReplicated, 0, {0, 0, 0, {7, 8}}},
      {"seen", BlobRule::kSummed, 0, {0, end + 192, 8, {9, 10}}}};
  contents.files[0].bytes = (end + 334 + 4095) / 4096 * 4096;
  const auto file = shard::EncodeManifest(contents);
  ASSERT_OK(file);
  const auto manifest = shard::Manifest::Parse(*file);
  ASSERT_OK(manifest);
  EXPECT_EQ(DescribeFile(ToBytes(*file)), shard::Describe(**manifest));
}

// Decodes all codes by the document's formulas.
TEST(FormatDocument, SaysWhatCodesMean) {
  std::vector<uint8_t> codes(256);
  for (size_t c = 0; c < 256; ++c) codes[c] = static_cast<uint8_t>(c);
  for (const float scale : {1.0f, 0.1f, 3e-20f, 7e15f}) {
    std::vector<float> decoded(256);
    shard::DecodeQ8(shard::StateKind::kAverage, codes.data(), &scale,
                    decoded.data(), 256);
    for (int c = 0; c < 256; ++c) {
      const int e = c >> 3 & 15;
      const auto m = static_cast<float>(c & 7);
      const float z = std::ldexp(1 + m / 8, e + 1);
      const float value = (z - 2) * (scale / 122878);
      const float element = c >= 128 ? -value : value;
      EXPECT_EQ(decoded[static_cast<size_t>(c)], element) << c;
    }
    for (const int book : {4, 5}) {
      shard::DecodeQ8(static_cast<shard::StateKind>(book), codes.data(), &scale,
                      decoded.data(), 256);
      for (int c = 0; c < 256; ++c) {
        const float z =
            c < 48
                ? std::ldexp(1 + static_cast<float>(c & 3) / 4, (c >> 2) - 8)
                : std::ldexp(1 + static_cast<float>(c & 15) / 16, (c >> 4) + 1);
        const float element = (z - 0x1p-8f) * (scale / 126976);
        EXPECT_EQ(decoded[static_cast<size_t>(c)], element) << c;
      }
    }
  }
}

}  // namespace
}  // namespace format_doc_test
