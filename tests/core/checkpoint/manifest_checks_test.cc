// SPDX-License-Identifier: Apache-2.0
//
// Manifests with correct checksums and one defect in each.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "core/checkpoint/manifest/manifest_header.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/checkpoint/raw_manifest.h"
#include "tests/core/checkpoint/read_manifest.h"

namespace shard::manifest_checks_test {
namespace {

using Raw = RawManifest;
using Change = void (*)(Raw*);

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

struct Case {
  Change change;
  std::vector<std::string_view> message;
};

void ExpectEach(const std::vector<Case>& cases) {
  ASSERT_OK(Manifest::Parse(Raw::Sample().Build()));
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(StrCat("case ", i));
    Raw raw = Raw::Sample();
    cases[i].change(&raw);
    const auto parsed = Manifest::Parse(raw.Build());
    ExpectError(parsed, StatusCode::kCorrupt, {"the manifest is wrong"});
    for (const std::string_view part : cases[i].message) {
      ExpectError(parsed, StatusCode::kCorrupt, {part});
    }
  }
}

void ExpectFine(const std::vector<Change>& changes) {
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(StrCat("change ", i));
    Raw raw = Raw::Sample();
    changes[i](&raw);
    EXPECT_OK(Manifest::Parse(raw.Build()));
  }
}

// The manifest is whole, but from a version that coded in another way.
TEST(ManifestChecks, OlderCodeBooks) {
  Raw raw = Raw::Sample();
  raw.tensors[4].codebook = 2;
  ExpectError(Manifest::Parse(raw.Build()), StatusCode::kUnimplemented,
              {"code book 2", "states=f32"});
}

TEST(ManifestChecks, Manifest) {
  ExpectEach({
      {[](Raw* r) { r->writer = "a\nb"; }, {"writer"}},
      {[](Raw* r) { r->step = -1; }, {"step -1"}},
      {[](Raw* r) { r->world_size = 0; }, {"0 ranks"}},
      {[](Raw* r) { r->world_size = -5; }, {"-5 ranks"}},
  });
}

TEST(ManifestChecks, Files) {
  ExpectEach({
      {[](Raw* r) { r->files[0].name = ""; }, {"file 0", "no name"}},
      {[](Raw* r) { r->files[0].name = "."; }, {"file 0", "'.'"}},
      {[](Raw* r) { r->files[0].name = ".."; }, {"'..'", "plain"}},
      {[](Raw* r) { r->files[0].name = "../x"; }, {"'../x'"}},
      {[](Raw* r) { r->files[0].name = "/etc/passwd"; }, {"plain"}},
      {[](Raw* r) { r->files[0].name = "manifest.shard"; }, {"plain"}},
      {[](Raw* r) { r->files[0].name = std::string(256, 'x'); }, {"plain"}},
      {[](Raw* r) { r->files[0].name = "a\x1b[2J"; }, {"control"}},
      {[](Raw* r) { r->files[0].name = std::string("a\0b", 3); }, {"control"}},
      {[](Raw* r) { r->files[0].name = "data-00001.bin"; },
       {"two files", "data-00001.bin"}},
      {[](Raw* r) { r->files[0].bytes = uint64_t{1} << 63; },
       {"9223372036854775808 bytes; at most 2^63 - 1"}},
      {[](Raw* r) { r->files[0].bytes -= 1; },
       {"69631 bytes", "multiple of 4096"}},
  });
  ExpectFine({[](Raw* r) { r->files[0].name = std::string(255, 'x'); },
              [](Raw* r) {
                r->files.push_back({"...", 0});
              }});
}

TEST(ManifestChecks, Keys) {
  ExpectEach({
      {[](Raw* r) { r->tensors[1].key = ""; }, {"tensor 1", "no name"}},
      {[](Raw* r) { r->tensors[1].key = std::string(65536, 'x'); },
       {"65536 bytes", "65535"}},
      {[](Raw* r) { r->tensors[1].key = "\xFF"; }, {"UTF-8"}},
      {[](Raw* r) { r->tensors[1].key = "a\xC3"; }, {"UTF-8"}},
      {[](Raw* r) { r->tensors[1].key = "a\tb"; }, {"control"}},
      {[](Raw* r) { r->tensors[1].key = "a\x7F"; }, {"control"}},
      {[](Raw* r) { r->tensors[1].key = "a\xC2\x85"; }, {"control"}},
      {[](Raw* r) { r->tensors[1].key = std::string("a\0", 2); }, {"control"}},
      {[](Raw* r) { r->tensors[1].key = "tied"; },
       {"same key", "numbers 1 and 2"}},
  });
  ExpectFine({
      [](Raw* r) { r->tensors[1].key = std::string(65535, 'x'); },
      [](Raw* r) { r->tensors[1].key = "a\xC2\xA0 \xE2\x82\xAC"; },
  });
}

TEST(ManifestChecks, TypesAndShapes) {
  ExpectEach({
      {[](Raw* r) { r->tensors[1].type = 0; }, {"'b'", "type 0"}},
      {[](Raw* r) { r->tensors[1].type = 8; }, {"type 8"}},
      {[](Raw* r) { r->tensors[1].type = 255; }, {"type 255"}},
      {[](Raw* r) { r->tensors[1].role = 0; }, {"role 0"}},
      {[](Raw* r) { r->tensors[1].role = 4; }, {"role 4"}},
      {[](Raw* r) { r->tensors[4].role = 1; }, {"q8"}},
      {[](Raw* r) { r->tensors[1].shape.assign(9, 1); }, {"at most 8"}},
      {[](Raw* r) {
         r->tensors[3].shape = {-1, 0};
       },
       {"[-1, 0]"}},
      {[](Raw* r) {
         r->tensors[3].shape = {0, kInt64Max, 2};
       },
       {"2^63 - 1"}},
      // The shape describes 2^62 elements of four bytes.
      {[](Raw* r) {
         r->tensors[3].shape = {0, int64_t{1} << 62};
       },
       {"2^63 - 1"}},
      {[](Raw* r) { r->tensors[1].group = 1; }, {"group 1", "there are 1"}},
      {[](Raw* r) { r->tensors[1].group = -2; }, {"group -2"}},
      {[](Raw* r) { r->tensors[1].step = -2; }, {"-2 steps"}},
      {[](Raw* r) { r->tensors[4].codebook = 6; }, {"code book 6", "q8"}},
      {[](Raw* r) { r->tensors[1].codebook = 1; }, {"code book 1", "f32"}},
  });
  ExpectFine({
      [](Raw* r) { r->tensors[1].shape.assign(8, 1); },
      [](Raw* r) {
        r->tensors[3].shape = {0, int64_t{1} << 60};
      },
      [](Raw* r) { r->tensors[4].codebook = 5; },
  });
}

TEST(ManifestChecks, Aliases) {
  ExpectEach({
      {[](Raw* r) { r->tensors[2].alias_of = 6; }, {"'tied'", "tensor 6"}},
      {[](Raw* r) { r->tensors[2].alias_of = -2; }, {"tensor -2"}},
      {[](Raw* r) { r->tensors[2].alias_of = 2; }, {"an alias itself"}},
      {[](Raw* r) {
         r->tensors.push_back(r->tensors[2]);
         r->tensors[6].key = "tied2";
         r->tensors[6].alias_of = 2;
       },
       {"'tied2'", "an alias itself"}},
      {[](Raw* r) { r->tensors[2].type = 18; }, {"another type"}},
      {[](Raw* r) { r->tensors[2].role = 2; }, {"role"}},
      {[](Raw* r) {
         r->tensors[2].shape = {4096, 3};
       },
       {"shape"}},
      {[](Raw* r) {
         r->tensors[2].shape = {3, 4096, 1};
       },
       {"shape"}},
      {[](Raw* r) { r->tensors[2].num_slices = 1; }, {"of its own"}},
      {[](Raw* r) { r->tensors[2].group = 0; }, {"of its own"}},
      {[](Raw* r) { r->tensors[2].step = 3; }, {"of its own"}},
      {[](Raw* r) { r->tensors[2].trainable = false; }, {"of its own"}},
      {[](Raw* r) { r->tensors[2].codebook = 1; }, {"of its own"}},
      {[](Raw* r) { r->tensors[2].first_slice = 1; }, {"of its own"}},
  });
}

TEST(ManifestChecks, Slices) {
  ExpectEach({
      {[](Raw* r) { r->slices[0].begin = 1; }, {"slice 0", "element 1"}},
      {[](Raw* r) { r->slices[1].begin = 0; }, {"slice 1", "element 0"}},
      {[](Raw* r) { r->slices[1].begin = -1; }, {"element -1"}},
      {[](Raw* r) { r->slices[1].begin = 12288; }, {"12288 of 12288"}},
      {[](Raw* r) { r->tensors[0].num_slices = 0; }, {"no slices", "12288"}},
      {[](Raw* r) {
         r->tensors[3].num_slices = 1, r->tensors[3].first_slice = 3;
       },
       {"element 0 of 0"}},
      {[](Raw* r) { r->tensors[3].first_slice = 3; }, {"its first is 3"}},
      {[](Raw* r) { r->tensors[1].first_slice = 1; }, {"from number 1"}},
      {[](Raw* r) { r->tensors[1].first_slice = 3; }, {"from number 3"}},
      {[](Raw* r) { r->tensors[5].num_slices = 2; }, {"are 2 from number 4"}},
      {[](Raw* r) { r->tensors[5].num_slices = 0xFFFFFFFF; }, {"4294967295"}},
      {[](Raw* r) {
         r->slices.push_back({0, 70000});
       },
       {"6 slices", "5"}},
      {[](Raw* r) { r->slices[1].reserved = 1; }, {"reserved"}},
  });
}

TEST(ManifestChecks, Places) {
  ExpectEach({
      {[](Raw* r) { r->slices[2].file = 2; }, {"'b'", "file 2"}},
      {[](Raw* r) { r->slices[2].offset += 32; }, {"49184", "multiple of 64"}},
      {[](Raw* r) { r->slices[1].offset += 64; }, {"multiple of 4096"}},
      {[](Raw* r) { r->slices[2].offset = 1 << 20; }, {"which has 69632"}},
      {[](Raw* r) { r->slices[2].offset = ~uint64_t{63}; }, {"which has"}},
      {[](Raw* r) { r->files[0].bytes = 65536; }, {"which has 65536"}},
      {[](Raw* r) { r->blobs[0].bytes = 4096; }, {"'loader' of rank 0"}},
      {[](Raw* r) {
         r->tensors[1].shape = {(1 << 24) + 1};
         r->files[0].bytes += 64 << 20;
       },
       {"slice 0 of tensor 'b'", "67108868 bytes", "67108864"}},
      {[](Raw* r) { r->slices[1].offset = 0; }, {"shares bytes"}},
      {[](Raw* r) { r->slices[1].offset = 12288; },
       {"slice 1 of tensor 'a.weight'", "shares bytes"}},
      {[](Raw* r) { r->blobs[1].file = 0, r->blobs[1].offset = 49152; },
       {"shares bytes"}},
      {[](Raw* r) { r->blobs[4].offset = 128; }, {"shares bytes"}},
      // Bytes that nothing refers to: in front, in the middle, at the end, in a
      // file.
      {[](Raw* r) {
         r->files[1].bytes += 4096;
         for (int i = 1; i < 5; ++i) {
           r->blobs[static_cast<size_t>(i)].offset += 4096;
         }
       },
       {"bytes 0 to 4096", "data-00001.bin", "belong to nothing"}},
      {[](Raw* r) { r->blobs[4].offset += 4096, r->files[1].bytes += 4096; },
       {"bytes 144 to 4288"}},
      {[](Raw* r) { r->files[1].bytes += 4096; }, {"bytes 197 to 8192"}},
      {[](Raw* r) {
         r->files.push_back({"x", 4096});
       },
       {"bytes 0 to 4096", "'x'"}},
      {[](Raw* r) { r->blobs[0].reserved = 5; }, {"reserved"}},
  });
  ExpectFine({
      [](Raw* r) { r->blobs[4].offset = 4032; },
      [](Raw* r) { r->blobs[4].offset += 4032, r->files[1].bytes += 4096; },
  });
}

TEST(ManifestChecks, GroupsAndScalars) {
  ExpectEach({
      {[](Raw* r) { r->groups[0] = ""; }, {"param group 0"}},
      {[](Raw* r) { r->groups[0] = "sgd?lr=\x01"; }, {"control"}},
      {[](Raw* r) { r->scalars[0].name = ""; }, {"scalar 0"}},
      {[](Raw* r) { r->scalars[0].name = "other"; }, {"two scalars", "other"}},
      {[](Raw* r) { r->scalars[0].value = NAN; }, {"loss_scale.scale"}},
      {[](Raw* r) { r->scalars[0].value = -INFINITY; }, {"not finite"}},
  });
}

TEST(ManifestChecks, Blobs) {
  ExpectEach({
      {[](Raw* r) { r->blobs[0].name = ""; }, {"blob 0"}},
      {[](Raw* r) { r->blobs[0].name = "\n"; }, {"blob 0", "control"}},
      {[](Raw* r) { r->blobs[4].rule = 0; }, {"'rng'", "rule 0"}},
      {[](Raw* r) { r->blobs[4].rule = 4; }, {"rule 4"}},
      {[](Raw* r) { r->blobs[4].rank = 1; }, {"replicated", "rank 1"}},
      {[](Raw* r) { r->blobs[0].rank = 2; }, {"rank 2 of 2"}},
      {[](Raw* r) { r->blobs[0].rank = -1; }, {"rank -1"}},
      {[](Raw* r) { r->blobs[0].rank = 1; }, {"rank 1 has two", "loader"}},
      {[](Raw* r) { r->blobs[4].name = "none"; }, {"'none'", "rules"}},
      {[](Raw* r) { r->blobs[2].bytes = 15; }, {"15 bytes", "multiple of 8"}},
      {[](Raw* r) { r->blobs[2].bytes = 8; }, {"'counts'", "sizes differ"}},
      {[](Raw* r) { r->blobs[5].offset = 64; }, {"empty and has a place"}},
      {[](Raw* r) { r->blobs[5].file = 1; }, {"empty and has a place"}},
      {[](Raw* r) { r->blobs[5].reserved = 1; }, {"empty and has a place"}},
  });
}

TEST(ManifestChecks, Scales) {
  ExpectEach({
      {[](Raw* r) { r->tensors[5].key = "other"; },
       {"'state.a.weight.v'", "no .q8_scale"}},
      {[](Raw* r) { r->tensors[5].type = 18; }, {"48 scales"}},
      {[](Raw* r) { r->tensors[5].role = 2; }, {"48 scales"}},
      {[](Raw* r) { r->tensors[5].shape = {47}; }, {"48 scales"}},
      {[](Raw* r) {
         r->tensors[5].shape = {48, 1};
       },
       {"48 scales"}},
  });
}

// ---------------------------------------------------------------------------
// Structure
// ---------------------------------------------------------------------------

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
  const std::vector<std::byte> file = Raw::Sample().Build();
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
      const auto parsed = Manifest::Parse(Seal(body));
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
}  // namespace shard::manifest_checks_test
