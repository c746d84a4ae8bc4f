// SPDX-License-Identifier: Apache-2.0
//
// Manifests with correct checksums whose FlatBuffer is built wrongly: tables
// that share bytes, misaligned vectors, wrong sizes, replaced words.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/checkpoint/manifest/manifest_header.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/checkpoint/raw_manifest.h"
#include "tests/core/checkpoint/read_manifest.h"

namespace shard::manifest_structure_test {
namespace {

using Raw = RawManifest;

constexpr char kShared[] = "two that share bytes";
constexpr char kSchema[] = "not a FlatBuffer of its schema";

using Builder = flatbuffers::FlatBufferBuilder;
template <typename T>
using Offsets = std::vector<flatbuffers::Offset<T>>;

flatbuffers::Offset<schema::Tensor> EmptyTensor(Builder* fbb, const char* key) {
  const auto name = fbb->CreateString(key);
  const auto shape = fbb->CreateVector(std::vector<int64_t>{0});
  return schema::CreateTensor(*fbb, name, shape, schema::ElementType::f32,
                              schema::TensorRole::param);
}

std::vector<std::byte> OfTensors(Builder* fbb,
                                 const Offsets<schema::Tensor>& tensors) {
  const auto list = fbb->CreateVector(tensors);
  return Finish(fbb, schema::CreateManifest(*fbb, 0, 0, 1, 0, list));
}

TEST(ManifestStructure, RefusesASharedTable) {
  Builder fbb;
  const auto tensor = EmptyTensor(&fbb, "a");
  ExpectError(Manifest::Parse(OfTensors(&fbb, {tensor, tensor})),
              StatusCode::kCorrupt, {kShared});
}

TEST(ManifestStructure, RefusesASharedString) {
  Builder fbb;
  const auto name = fbb.CreateString("adamw");
  const auto a = schema::CreateGroup(fbb, name);
  const auto b = schema::CreateGroup(fbb, name);
  const auto list = fbb.CreateVector(Offsets<schema::Group>{a, b});
  ExpectError(Manifest::Parse(Finish(
                  &fbb, schema::CreateManifest(fbb, 0, 0, 1, 0, 0, 0, list))),
              StatusCode::kCorrupt, {kShared});
}

TEST(ManifestStructure, RefusesASharedShape) {
  Builder fbb;
  const auto shape = fbb.CreateVector(std::vector<int64_t>{0, 7});
  Offsets<schema::Tensor> tensors;
  for (const char* key : {"a", "b"}) {
    const auto name = fbb.CreateString(key);
    tensors.push_back(schema::CreateTensor(
        fbb, name, shape, schema::ElementType::f32, schema::TensorRole::param));
  }
  ExpectError(Manifest::Parse(OfTensors(&fbb, tensors)), StatusCode::kCorrupt,
              {kShared});
}

TEST(ManifestStructure, RefusesASharedTypeName) {
  Builder fbb;
  const auto type = fbb.CreateString("C64");
  Offsets<schema::Tensor> tensors;
  for (const char* key : {"a", "b"}) {
    const auto name = fbb.CreateString(key);
    const auto shape = fbb.CreateVector(std::vector<int64_t>{0});
    schema::TensorBuilder tensor(fbb);
    tensor.add_key(name);
    tensor.add_shape(shape);
    tensor.add_type(schema::ElementType::opaque);
    tensor.add_role(schema::TensorRole::param);
    tensor.add_opaque_type(type);
    tensors.push_back(tensor.Finish());
  }
  const auto list = fbb.CreateVector(tensors);
  ExpectError(Manifest::Parse(Finish(
                  &fbb, schema::CreateManifest(fbb, 0, 0, 1, 0, list), 3)),
              StatusCode::kCorrupt, {kShared});
}

// Two strings overlap: one lies in the bytes of the other.
TEST(ManifestStructure, RefusesNestedStrings) {
  Builder fbb;
  const char inner[] = {3, 0, 0, 0, 'a', 'b', 'c', 0, 'x'};
  const auto outer = fbb.CreateString(inner, sizeof(inner));
  // Offsets count from the end of the buffer.
  const flatbuffers::Offset<flatbuffers::String> inside(outer.o - 4);
  const auto a = schema::CreateGroup(fbb, outer);
  const auto b = schema::CreateGroup(fbb, inside);
  const auto list = fbb.CreateVector(Offsets<schema::Group>{a, b});
  ExpectError(Manifest::Parse(Finish(
                  &fbb, schema::CreateManifest(fbb, 0, 0, 1, 0, 0, 0, list))),
              StatusCode::kCorrupt, {kShared});
}

// The verifier of FlatBuffers accepts a vector that is four bytes off.
TEST(ManifestStructure, RefusesAMisalignedShape) {
  bool misaligned = false;
  for (int pad = 0; pad < 4; ++pad) {
    Builder fbb;
    const auto name = fbb.CreateString("a");
    const int64_t dims[] = {0, 3};
    fbb.CreateString(std::string(static_cast<size_t>(4 * pad), 'x'));
    fbb.StartVector(4, 4);
    fbb.PushBytes(reinterpret_cast<const uint8_t*>(dims), sizeof(dims));
    const flatbuffers::Offset<flatbuffers::Vector<int64_t>> shape(
        (fbb.EndVector(2)));
    const auto parsed = Manifest::Parse(OfTensors(
        &fbb, {schema::CreateTensor(fbb, name, shape, schema::ElementType::f32,
                                    schema::TensorRole::param, 0, 0, -1, true,
                                    -1, /*step=*/7)}));
    if (parsed.ok()) continue;
    ExpectError(parsed, StatusCode::kCorrupt, {"misaligned"});
    misaligned = true;
  }
  EXPECT_TRUE(misaligned);
}

TEST(ManifestStructure, RefusesMisalignedSlices) {
  bool misaligned = false;
  for (int pad = 0; pad < 4; ++pad) {
    Builder fbb;
    const auto name = fbb.CreateString("a");
    const auto tensor = schema::CreateTensor(
        fbb, name, 0, schema::ElementType::f32, schema::TensorRole::param, 0, 1,
        -1, true, -1, /*step=*/7);
    const auto file = schema::CreateFile(fbb, fbb.CreateString("f"), 4096);
    const auto files = fbb.CreateVector(Offsets<schema::File>{file});
    const auto tensors = fbb.CreateVector(Offsets<schema::Tensor>{tensor});
    const schema::Slice slice(0, 0, 0, 0, 0, 0);
    fbb.CreateString(std::string(static_cast<size_t>(4 * pad), 'x'));
    fbb.StartVector(sizeof(slice) / 4, 4);
    fbb.PushBytes(reinterpret_cast<const uint8_t*>(&slice), sizeof(slice));
    const flatbuffers::Offset<flatbuffers::Vector<const schema::Slice*>> slices(
        fbb.EndVector(1));
    const auto parsed = Manifest::Parse(Finish(
        &fbb, schema::CreateManifest(fbb, 0, 0, 1, files, tensors, slices)));
    if (parsed.ok()) continue;
    ExpectError(parsed, StatusCode::kCorrupt, {"misaligned"});
    misaligned = true;
  }
  EXPECT_TRUE(misaligned);
}

// The verifier of FlatBuffers checks neither the size of a table nor whether a
// vtable has room for that size.
TEST(ManifestStructure, RefusesWrongSizesOfTables) {
  const std::vector<std::byte> file = Raw::Sample().Build();
  const auto expect_refused = [&](size_t word, uint16_t value) {
    std::vector<std::byte> body(file.begin() + kManifestHeaderBytes,
                                file.end());
    uint32_t root;
    int32_t vtable;
    std::memcpy(&root, body.data(), sizeof(root));
    std::memcpy(&vtable, &body[root], sizeof(vtable));
    const size_t at = root - static_cast<size_t>(int64_t{vtable}) + 2 * word;
    std::memcpy(&body[at], &value, sizeof(value));
    ExpectError(Manifest::Parse(Seal(body)), StatusCode::kCorrupt, {kShared});
  };
  expect_refused(0, 0);
  expect_refused(0, 2);
  expect_refused(1, 0);
  expect_refused(1, 3);
  expect_refused(1, 0xFFFF);
}

TEST(ManifestStructure, RefusesOtherBodies) {
  ExpectError(Manifest::Parse(Seal({})), StatusCode::kCorrupt, {kSchema});
  std::vector<std::byte> body(4096);
  ExpectError(Manifest::Parse(Seal(body)), StatusCode::kCorrupt, {kSchema});
  std::fill(body.begin(), body.end(), std::byte{0xFF});
  ExpectError(Manifest::Parse(Seal(body)), StatusCode::kCorrupt, {kSchema});
  // The file identifier is another one.
  std::vector<std::byte> file = Raw::Sample().Build();
  file[kManifestHeaderBytes + 4] = std::byte{'X'};
  ExpectError(
      Manifest::Parse(Seal(std::span(file).subspan(kManifestHeaderBytes))),
      StatusCode::kCorrupt, {kSchema});
}

// Fields that this version does not know are not read, however deep they are.
TEST(ManifestStructure, UnknownFieldsAreSkipped) {
  Builder fbb;
  flatbuffers::uoffset_t inner = 0;
  for (int i = 0; i < 10000; ++i) {
    const auto start = fbb.StartTable();
    if (i > 0) fbb.AddOffset(4, flatbuffers::Offset<void>(inner));
    inner = fbb.EndTable(start);
  }
  const auto start = fbb.StartTable();
  fbb.AddElement<int32_t>(schema::Manifest::VT_WORLD_SIZE, 1, 0);
  fbb.AddOffset(60, flatbuffers::Offset<void>(inner));
  const flatbuffers::Offset<schema::Manifest> root(fbb.EndTable(start));
  EXPECT_OK(Manifest::Parse(Finish(&fbb, root)));
}

// Writes offsets and lengths that claim up to 4 GiB into every place where one
// may be. Contents that Parse accepts can be read and written again.
TEST(ManifestStructure, SurvivesAnyReplacedWord) {
  const std::vector<std::byte> file = Raw::OpaqueSample().Build(3);
  std::vector<std::byte> body(file.begin() + kManifestHeaderBytes, file.end());
  size_t accepted = 0;
  size_t refused = 0;
  for (size_t at = 0; at + 4 <= body.size(); at += 2) {
    for (const uint32_t value :
         {0u, 1u, 2u, 4u, 8u, 0x40u, 0xFFFFu, 0x10000u, 0x7FFFFFFFu,
          0x80000000u, 0xFFFFFFFFu, 0xFFFFFFF0u,
          static_cast<uint32_t>(body.size()),
          static_cast<uint32_t>(body.size() - at)}) {
      uint32_t old;
      std::memcpy(&old, &body[at], sizeof(old));
      std::memcpy(&body[at], &value, sizeof(value));
      const auto parsed = Manifest::Parse(Seal(body, 3));
      if (parsed.ok()) {
        ++accepted;
        const auto again = EncodeManifest(ContentsOf(**parsed));
        ASSERT_OK(again);
        ASSERT_EQ(Describe(**Manifest::Parse(*again)), Describe(**parsed));
      } else {
        ++refused;
        // An older code book is not damage.
        const bool before =
            parsed.status().code() == StatusCode::kUnimplemented &&
            parsed.status().message().find("code book") != std::string::npos;
        ASSERT_TRUE(before || parsed.status().code() == StatusCode::kCorrupt)
            << parsed.status().ToString();
      }
      std::memcpy(&body[at], &old, sizeof(old));
    }
  }
  EXPECT_GT(accepted, 100u);
  EXPECT_GT(refused, 1000u);
}

}  // namespace
}  // namespace shard::manifest_structure_test
