// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/manifest/manifest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "core/base/element_type.h"
#include "core/base/strings.h"
#include "core/checkpoint/manifest/checksum.h"
#include "core/checkpoint/schema/manifest_generated.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/checkpoint/raw_manifest.h"
#include "tests/core/checkpoint/read_manifest.h"

namespace shard::manifest_test {
namespace {

using Contents = ManifestContents;

std::shared_ptr<const Contents::Opaque> Opaque(const std::string& type,
                                               uint64_t bytes) {
  return std::make_shared<Contents::Opaque>(Contents::Opaque{type, bytes});
}

// Contents with every kind of entry, whose slices and blobs are laid out in one
// file.
struct Rich {
  Contents contents;
  uint64_t end = 0;

  Extent Place(uint64_t bytes) {
    const uint64_t alignment =
        bytes >= kSliceAlignment ? kSliceAlignment : kSmallSliceAlignment;
    const uint64_t offset = (end + alignment - 1) / alignment * alignment;
    if (bytes > 0) end = offset + bytes;
    contents.files[0].bytes = (end + 4095) / 4096 * 4096;
    return {0, offset, bytes, {offset * 7 + 1, ~offset}};
  }

  Contents::Tensor* Add(const std::string& key, ElementType type,
                        TensorRole role, std::vector<int64_t> shape,
                        int slices = 1) {
    Contents::Tensor tensor;
    tensor.key = key;
    tensor.type = type;
    tensor.role = role;
    tensor.shape = std::move(shape);
    int64_t numel = 1;
    for (const int64_t dim : tensor.shape) numel *= dim;
    for (int i = 0; i < slices; ++i) {
      const int64_t begin = numel * i / slices;
      const int64_t size = numel * (i + 1) / slices - begin;
      tensor.slices.push_back(
          {begin, size,
           Place(static_cast<uint64_t>(size) * ElementSize(type))});
    }
    contents.tensors.push_back(std::move(tensor));
    return &contents.tensors.back();
  }

  void AddOpaque(const std::string& key, const std::string& type,
                 std::vector<int64_t> shape, uint64_t bytes) {
    const auto size = static_cast<int64_t>(bytes);
    auto* tensor =
        Add(key, ElementType::kU8, TensorRole::kParam, {size}, bytes > 0);
    tensor->type = ElementType::kOpaque;
    tensor->shape = std::move(shape);
    tensor->opaque = Opaque(type, bytes);
  }

  Rich() {
    contents.writer = "libshard 0.1.0";
    contents.step = 42;
    contents.world_size = 3;
    contents.files.push_back({"data-00000.bin", 0});
    contents.groups = {"adamw?lr=0.001&beta1=0.9", "sgd?lr=0.1"};
    contents.scalars = {{"loss_scale.scale", 65536}, {"x", -0.0}};
    auto* weight = Add("encoder.weight", ElementType::kBF16, TensorRole::kParam,
                       {1000, 33, 2}, 7);
    weight->group = 1;
    weight->step = 40;
    Add("frozen \xC3\xA9", ElementType::kF16, TensorRole::kParam, {5})
        ->trainable = false;
    Add("zero_d", ElementType::kF64, TensorRole::kBuffer, {});
    Add("none", ElementType::kI64, TensorRole::kBuffer, {4, 0, 9}, 0);
    Add("eight", ElementType::kBool, TensorRole::kBuffer,
        {1, 2, 1, 2, 1, 2, 1, 2}, 16);
    Contents::Tensor alias;
    alias.key = "decoder.weight";
    alias.type = ElementType::kBF16;
    alias.shape = {1000, 33, 2};
    contents.tensors.push_back(alias);
    contents.tensors.back().alias_of = 0;
    Add("state.encoder.weight.exp_avg_sq", ElementType::kQ8, TensorRole::kState,
        {1000, 33, 2}, 3)
        ->codebook = 5;
    Add("state.encoder.weight.exp_avg_sq.q8_scale", ElementType::kF32,
        TensorRole::kState, {258}, 2);
    Add("state.encoder.weight.master_param", ElementType::kF32,
        TensorRole::kState, {1000, 33, 2}, 2);
    AddOpaque("complex", "C64", {30, 2}, 480);
    AddOpaque("of tomorrow", "T1", {3}, 7);
    AddOpaque("no bytes", "F4", {0}, 0);
    Contents::Tensor other;
    other.key = "conjugate";
    other.type = ElementType::kOpaque;
    other.shape = {30, 2};
    other.alias_of = 9;
    contents.tensors.push_back(other);
    contents.blobs = {
        {"loader", BlobRule::kPerRank, 0, Place(7)},
        {"loader", BlobRule::kPerRank, 2, Place(5000)},
        {"rng", BlobRule::kReplicated, 0, Place(64)},
        {"seen", BlobRule::kSummed, 1, Place(16)},
        {"empty", BlobRule::kPerRank, 1, Place(0)},
    };
  }
};

std::string WithoutDefaults(Contents contents) {
  for (auto& tensor : contents.tensors) {
    if (tensor.step == -1) tensor.step = contents.step;
  }
  for (auto& tensor : contents.tensors) {
    if (tensor.alias_of < 0) continue;
    const auto& target = contents.tensors[static_cast<size_t>(tensor.alias_of)];
    tensor.trainable = target.trainable;
    tensor.group = target.group;
    tensor.step = target.step;
    tensor.codebook = target.codebook;
    tensor.opaque = target.opaque;
  }
  for (auto& blob : contents.blobs) {
    if (blob.extent.bytes == 0) blob.extent.offset = 0;
  }
  return Describe(contents);
}

TEST(Manifest, ParsesTheContentsThatWereEncoded) {
  const Contents contents = Rich().contents;
  auto file = EncodeManifest(contents);
  ASSERT_OK(file);
  auto manifest = Manifest::Parse(*file);
  ASSERT_OK(manifest);
  EXPECT_EQ(Describe(**manifest), WithoutDefaults(contents));
  // The same contents give the same bytes.
  EXPECT_EQ(*EncodeManifest(contents), *file);
  EXPECT_EQ(*EncodeManifest(ContentsOf(**manifest)),
            *EncodeManifest(ContentsOf(
                **Manifest::Parse(*EncodeManifest(ContentsOf(**manifest))))));

  const Manifest& m = **manifest;
  for (size_t i = 0; i < contents.tensors.size(); ++i) {
    EXPECT_EQ(m.Find(contents.tensors[i].key), static_cast<int64_t>(i));
  }
  EXPECT_EQ(m.Find("encoder.weigh"), -1);
  EXPECT_EQ(m.Find(""), -1);
  EXPECT_EQ(m.id(), ChecksumOf(file->data(), file->size()));
  // An alias has the slices, group and shape of its target.
  EXPECT_EQ(m.num_slices(5), 7u);
  EXPECT_EQ(m.slice(5, 6).begin, m.slice(0, 6).begin);
  EXPECT_EQ(m.group(5), 1);
  EXPECT_EQ(m.tensor(5).numel, 66000);
  EXPECT_EQ(m.tensor(2).numel, 1);
  EXPECT_EQ(m.tensor(3).numel, 0);
  for (const size_t tensor : {size_t{0}, size_t{4}, size_t{5}}) {
    for (int64_t e = 0; e < m.tensor(tensor).numel; ++e) {
      const Slice slice = m.slice(tensor, m.SliceAt(tensor, e));
      ASSERT_TRUE(slice.begin <= e && e < slice.begin + slice.numel) << e;
    }
  }
}

TEST(Manifest, MayBeEmpty) {
  auto file = EncodeManifest({});
  ASSERT_OK(file);
  auto manifest = Manifest::Parse(*file);
  ASSERT_OK(manifest);
  EXPECT_EQ((*manifest)->num_tensors(), 0u);
  EXPECT_EQ((*manifest)->Find("x"), -1);
  EXPECT_EQ((*manifest)->world_size(), 1);
}

// Vectors without elements are aligned to their lengths alone, so that each of
// these counts could make a reader miss a place.
TEST(Manifest, MayHaveTensorsWithoutElements) {
  for (size_t count = 1; count < 20; ++count) {
    Contents contents;
    for (size_t i = 0; i < count; ++i) {
      Contents::Tensor tensor;
      tensor.key = StrCat(i);
      tensor.shape.assign(1 + i % 3, 0);
      contents.tensors.push_back(tensor);
    }
    auto file = EncodeManifest(contents);
    ASSERT_OK(file);
    auto manifest = Manifest::Parse(*file);
    ASSERT_OK(manifest);
    EXPECT_EQ((*manifest)->num_slices(0), 0u);
    EXPECT_EQ((*manifest)->tensor(count - 1).numel, 0);
  }
}

// Parse makes no copy, because a manifest may be a large part of the memory.
TEST(Manifest, KeepsTheBytesThatItIsGiven) {
  auto file = EncodeManifest(Rich().contents);
  ASSERT_OK(file);
  const std::string expected = Describe(**Manifest::Parse(*file));
  const std::byte* const begin = file->data();
  const std::byte* const end = begin + file->size();
  const auto manifest = Manifest::Parse(*std::move(file));
  ASSERT_OK(manifest);
  EXPECT_EQ(Describe(**manifest), expected);
  const auto* const name =
      reinterpret_cast<const std::byte*>((*manifest)->file_name(0).data());
  EXPECT_TRUE(begin < name && name < end);
}

TEST(Manifest, EveryFlippedBitIsSeen) {
  std::vector<std::byte> file = RawManifest::Sample().Build();
  ASSERT_OK(Manifest::Parse(file));
  for (size_t i = 0; i < file.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      file[i] ^= std::byte{1} << bit;
      auto parsed = Manifest::Parse(file);
      ASSERT_EQ(parsed.status().code(), StatusCode::kCorrupt)
          << i << " " << bit;
      file[i] ^= std::byte{1} << bit;
    }
  }
}

TEST(Manifest, EveryOtherLengthIsSeen) {
  std::vector<std::byte> file = RawManifest::Sample().Build();
  for (size_t size = 0; size < file.size(); ++size) {
    // The vector has exactly that length, so that the address sanitizer sees
    // reads beyond it.
    const std::vector<std::byte> cut(file.begin(),
                                     file.begin() + static_cast<long>(size));
    ASSERT_EQ(Manifest::Parse(cut).status().code(), StatusCode::kCorrupt)
        << size;
  }
  file.resize(kManifestHeaderBytes - 1);
  ExpectError(Manifest::Parse(file), StatusCode::kCorrupt,
              {"39 bytes", "less than its header"});
  file = RawManifest::Sample().Build();
  for (int i = 0; i < 100; ++i) {
    file.push_back(std::byte{0});
    ASSERT_EQ(Manifest::Parse(file).status().code(), StatusCode::kCorrupt);
  }
}

TEST(Manifest, NewerVersionsAreNamed) {
  std::vector<std::byte> file = RawManifest::Sample().Build();
  const std::span<const std::byte> body =
      std::span(file).subspan(kManifestHeaderBytes);
  ExpectError(Manifest::Parse(Seal(body, 7)), StatusCode::kUnimplemented,
              {"version 7", "up to 3"});
  // The rest of the file does not matter.
  std::vector<std::byte> newer = Seal(body, 4);
  newer.resize(16);
  ExpectError(Manifest::Parse(newer), StatusCode::kUnimplemented,
              {"version 4", "up to 3"});
  ExpectError(Manifest::Parse(Seal(body, 0)), StatusCode::kCorrupt,
              {"version"});
}

TEST(Manifest, IsNotSomethingElse) {
  const std::string text(100, 'x');
  const auto bytes = std::as_bytes(std::span(text));
  ExpectError(Manifest::Parse({bytes.begin(), bytes.end()}),
              StatusCode::kCorrupt, {"not a manifest", "LIBSHARD"});
  ExpectError(Manifest::Parse({}), StatusCode::kCorrupt, {"0 bytes"});
}

// Refuses contents that the file format cannot represent.
TEST(EncodeManifest, RefusesWhatCannotBeWritten) {
  struct Case {
    void (*change)(Contents*);
    const char* message;
  };
  const Case cases[] = {
      {[](Contents* c) { c->tensors[0].slices[1].begin += 1; },
       "slices before it end at"},
      {[](Contents* c) {
         c->tensors[0].slices.erase(c->tensors[0].slices.begin());
       },
       "slices before it end at 0"},
      {[](Contents* c) { c->tensors[0].slices.pop_back(); },
       "slices end at element 56571 of 66000"},
      {[](Contents* c) { c->tensors[0].slices[0].numel = 0; }, "0 elements"},
      {[](Contents* c) { c->tensors[0].slices[0].extent.bytes -= 1; },
       "bytes for"},
      {[](Contents* c) { c->tensors[0].slices[0].extent.bytes *= 2; },
       "bytes for"},
      {[](Contents* c) { c->tensors[5].slices = c->tensors[0].slices; },
       "alias and has slices"},
      {[](Contents* c) { c->tensors[0].type = ElementType{257}; },
       "no element type 257"},
      {[](Contents* c) { c->tensors[0].role = TensorRole{258}; },
       "no role 258"},
      {[](Contents* c) { c->tensors[5].alias_of = int64_t{1} << 32; },
       "alias of tensor 4294967296"},
      {[](Contents* c) { c->tensors[6].codebook = 256; }, "no code book 256"},
      {[](Contents* c) { c->blobs[0].rule = BlobRule{257}; }, "no rule 257"},
      {[](Contents* c) { c->tensors[9].opaque = Opaque("C64", 481); },
       "slices end at element 480 of 481"},
      {[](Contents* c) { c->tensors[9].slices[0].numel = 60; }, "bytes for"},
      {[](Contents* c) {
         constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
         auto& tensor = c->tensors[4];
         tensor.slices.resize(2);
         tensor.slices[0] = {0, kMax, {0, 0, uint64_t{kMax}, {}}};
         tensor.slices[1] = {kMax, 1, {0, 0, 1, {}}};
       },
       "more than 2^63 - 1 elements"},
      // The other errors are those of Parse, in its words.
      {[](Contents* c) { c->tensors[1].key = "zero_d"; }, "same key"},
      {[](Contents* c) { c->step = -1; }, "step -1"},
      {[](Contents* c) { c->tensors[9].opaque = nullptr; }, "opaque_type ''"},
      {[](Contents* c) { c->tensors[9].opaque = Opaque("F32", 480); },
       "opaque_type 'F32'"},
      {[](Contents* c) { c->tensors[0].opaque = Opaque("C64", 0); },
       "not opaque"},
      {[](Contents* c) {
         c->tensors[9].opaque = Opaque("C64", uint64_t{1} << 63);
       },
       "63 bits"},
  };
  for (const Case& c : cases) {
    Contents contents = Rich().contents;
    c.change(&contents);
    ExpectInvalid(EncodeManifest(contents),
                  {"the manifest is wrong", c.message});
  }
}

// Returns tensors without elements, whose keys have `bytes` bytes.
Contents OfKeys(size_t count, size_t bytes) {
  Contents contents;
  contents.files = {{"data-00000.bin", 0}};
  contents.tensors.resize(count);
  for (size_t i = 0; i < count; ++i) {
    std::string& key = contents.tensors[i].key;
    key = StrCat(i, "_");
    key.resize(bytes, 'k');
    contents.tensors[i].shape = {0};
  }
  return contents;
}

uint32_t VersionOf(const std::vector<std::byte>& file) {
  uint32_t version;
  std::memcpy(&version, file.data() + 8, sizeof(version));
  return version;
}

// Chooses the oldest version whose limits suffice, and refuses contents beyond
// the limits of the newest.
TEST(EncodeManifest, WritesTheFirstVersionThatHasRoom) {
  const ManifestLimits first = LimitsOf(1);
  struct Case {
    size_t tensors;
    size_t key_bytes;
    uint32_t version;
  };
  for (const auto& [tensors, key_bytes, version] :
       {Case{1000, 60000, 1}, Case{1200, 60000, 2}, Case{first.tensors, 10, 1},
        Case{first.tensors + 1, 10, 2}}) {
    // Millions of tensors take instrumented code half a minute.
    if (kSanitized && tensors > 1200) continue;
    const Contents contents = OfKeys(tensors, key_bytes);
    auto file = EncodeManifest(contents);
    ASSERT_OK(file);
    EXPECT_EQ(VersionOf(*file), version);
    EXPECT_EQ(version > 1, file->size() > first.bytes ||
                               contents.tensors.size() > first.tensors);
    // With version 1 as the newest, contents beyond its limits are refused.
    const auto refused = EncodeManifest(contents, 1);
    EXPECT_EQ(refused.ok(), version == 1);
    if (version > 1) {
      ExpectError(
          refused, StatusCode::kResourceExhausted,
          {StrCat(contents.tensors.size(), " tensors"), "67108864", "1048576"});
    }
    const auto manifest = Manifest::Parse(*std::move(file));
    ASSERT_OK(manifest);
    EXPECT_EQ((*manifest)->version(), version);
    EXPECT_EQ((*manifest)->Find(contents.tensors.back().key),
              static_cast<int64_t>(contents.tensors.size()) - 1);
  }
}

// Only a tensor of an opaque type needs version 3.
TEST(EncodeManifest, WritesTheFirstVersionThatHasItsTypes) {
  Contents contents = OfKeys(3, 10);
  ASSERT_OK(EncodeManifest(contents));
  EXPECT_EQ(VersionOf(*EncodeManifest(contents)), 1u);
  contents.tensors[1].type = ElementType::kOpaque;
  contents.tensors[1].opaque = Opaque("C64", 0);
  ASSERT_OK(EncodeManifest(contents));
  EXPECT_EQ(VersionOf(*EncodeManifest(contents)), 3u);
  ExpectInvalid(EncodeManifest(contents, 2), {"'1_", "no element type 32"});
}

// The contents are within each limit that is checked before the file is built;
// only the built file is too large.
TEST(EncodeManifest, IsTooLargeOnceItIsBuilt) {
  if (kSanitized) {
    GTEST_SKIP() << "a million tensors take instrumented code half a minute";
  }
  const ManifestLimits first = LimitsOf(1);
  Contents contents = OfKeys(first.tensors, 16);
  for (auto& tensor : contents.tensors) tensor.shape = {1, 1, 0};
  ExpectError(EncodeManifest(contents, 1), StatusCode::kResourceExhausted,
              {"1048576 tensors", "67108864"});
}

TEST(Manifest, LimitsAreThoseOfItsVersion) {
  RawManifest raw = RawManifest::Sample();
  for (size_t i = 0; i < 1100; ++i) {
    raw.tensors.push_back({StrCat(std::string(62000, 'k'), i), {0}});
  }
  std::vector<std::byte> file = raw.Build();
  ExpectError(Manifest::Parse(file), StatusCode::kCorrupt,
              {"at most 67108864", "version 1"});
  EXPECT_OK(
      Manifest::Parse(Seal(std::span(file).subspan(kManifestHeaderBytes), 2)));
}

TEST(Manifest, ParsesThreeHundredThousandTensorsInTime) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) {
    return std::chrono::duration<double>(d).count();
  };
  Rich rich;
  constexpr int kTensors = 300000;
  for (int i = static_cast<int>(rich.contents.tensors.size()); i < kTensors;
       ++i) {
    rich.Add(StrCat("model.layers.", i / 10, ".mlp.weight", i % 10),
             ElementType::kF32, TensorRole::kParam, {64, 64});
  }
  const auto start = Clock::now();
  auto file = EncodeManifest(rich.contents);
  const auto encoded = Clock::now();
  ASSERT_OK(file);
  auto manifest = Manifest::Parse(*file);
  const auto parsed = Clock::now();
  ASSERT_OK(manifest);
  EXPECT_EQ((*manifest)->num_tensors(), size_t{kTensors});
  EXPECT_EQ((*manifest)->Find("model.layers.29999.mlp.weight9"), kTensors - 1);
  const double mib = static_cast<double>(file->size()) / (1 << 20);
  std::cout << mib << " MiB; encoded in " << seconds(encoded - start)
            << " s, parsed in " << seconds(parsed - encoded) << " s\n";
  EXPECT_LT(seconds(parsed - encoded), mib);
}

// The schema and the table of element types list the same.
TEST(Manifest, TheSchemaHasTheElementTypes) {
  std::map<int32_t, std::string> in_schema;
  for (const schema::ElementType type : schema::EnumValuesElementType()) {
    if (type == schema::ElementType::unknown) continue;
    // "bool" is a word of the schema's language.
    in_schema[static_cast<int32_t>(type)] =
        type == schema::ElementType::boolean
            ? "bool"
            : schema::EnumNameElementType(type);
  }
  std::map<int32_t, std::string> in_table;
  for (const ElementTypeInfo& info : kElementTypes) {
    in_table[static_cast<int32_t>(info.type)] = info.name;
  }
  EXPECT_EQ(in_schema, in_table);
}

}  // namespace
}  // namespace shard::manifest_test
