// SPDX-License-Identifier: Apache-2.0
//
// RawManifest: the contents of a manifest file, for building files with any
// defect. EncodeManifest refuses to write defects.

#ifndef SHARD_TESTS_CORE_CHECKPOINT_RAW_MANIFEST_H_
#define SHARD_TESTS_CORE_CHECKPOINT_RAW_MANIFEST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/manifest/manifest_header.h"
#include "core/checkpoint/schema/manifest_generated.h"

namespace shard {

// Returns a body with a correct header before it.
inline std::vector<std::byte> Seal(std::span<const std::byte> body,
                                   uint32_t version = 1) {
  std::vector<std::byte> file(kManifestHeaderBytes + body.size());
  WriteManifestHeader(body, version, file.data());
  std::copy(body.begin(), body.end(), file.begin() + kManifestHeaderBytes);
  return file;
}

inline std::vector<std::byte> Finish(flatbuffers::FlatBufferBuilder* builder,
                                     flatbuffers::Offset<schema::Manifest> root,
                                     uint32_t version = 1) {
  schema::FinishManifestBuffer(*builder, root);
  return Seal(
      std::as_bytes(std::span(builder->GetBufferPointer(), builder->GetSize())),
      version);
}

struct RawManifest {
  struct File {
    std::string name;
    uint64_t bytes;
  };
  struct Tensor {
    std::string key;
    std::vector<int64_t> shape;
    uint8_t type = 1;
    uint8_t role = 1;
    uint32_t first_slice = 0;
    uint32_t num_slices = 0;
    int32_t alias_of = -1;
    bool trainable = true;
    int32_t group = -1;
    int64_t step = -1;
    uint8_t codebook = 0;
    std::optional<std::string> opaque_type = {};
    uint64_t opaque_bytes = 0;
  };
  struct Slice {
    int64_t begin;
    uint64_t offset;
    uint32_t file = 0;
    uint32_t reserved = 0;
  };
  struct Scalar {
    std::string name;
    double value;
  };
  struct Blob {
    std::string name;
    uint8_t rule;
    int32_t rank;
    uint32_t file;
    uint64_t offset;
    uint64_t bytes;
    uint32_t reserved = 0;
  };

  std::string writer = "a test";
  int64_t step = 3;
  int32_t world_size = 2;
  std::vector<File> files;
  std::vector<Tensor> tensors;
  std::vector<Slice> slices;
  std::vector<std::string> groups;
  std::vector<Scalar> scalars;
  std::vector<Blob> blobs;

  // Returns a manifest with every kind of entry and no defect.
  static RawManifest Sample() {
    RawManifest raw;
    raw.files = {{"data-00000.bin", 69632}, {"data-00001.bin", 4096}};
    raw.tensors = {
        {.key = "a.weight", .shape = {3, 4096}, .num_slices = 2, .group = 0},
        {.key = "b", .first_slice = 2, .num_slices = 1, .trainable = false},
        {.key = "tied", .shape = {3, 4096}, .alias_of = 0},
        {.key = "empty", .shape = {0, 5}, .role = 2},
        {.key = "state.a.weight.v",
         .shape = {3, 4096},
         .type = 5,
         .role = 3,
         .first_slice = 3,
         .num_slices = 1,
         .step = 2,
         .codebook = 4},
        {.key = "state.a.weight.v.q8_scale",
         .shape = {48},
         .role = 3,
         .first_slice = 4,
         .num_slices = 1},
    };
    raw.slices = {{0, 0}, {4096, 16384}, {0, 49152}, {0, 53248}, {0, 65536}};
    raw.groups = {"sgd?lr=0.1"};
    raw.scalars = {{"loss_scale.scale", 1024}, {"other", -0.5}};
    raw.blobs = {
        {"loader", 1, 0, 0, 65728, 10}, {"loader", 1, 1, 1, 0, 8},
        {"counts", 3, 0, 1, 64, 16},    {"counts", 3, 1, 1, 128, 16},
        {"rng", 2, 0, 1, 192, 5},       {"none", 1, 1, 0, 0, 0},
    };
    return raw;
  }

  // Returns Sample with tensors of opaque types, for version 3 and later: "c",
  // in two slices, its alias "c2", and "t", of a type of unknown size.
  static RawManifest OpaqueSample() {
    RawManifest raw = Sample();
    const auto slice = static_cast<uint32_t>(raw.slices.size());
    raw.files.push_back({"data-00002.bin", 12288});
    raw.tensors.push_back({.key = "c",
                           .shape = {3, 300},
                           .type = 32,
                           .first_slice = slice,
                           .num_slices = 2,
                           .opaque_type = "C64",
                           .opaque_bytes = 7200});
    raw.tensors.push_back(
        {.key = "c2", .shape = {3, 300}, .type = 32, .alias_of = 6});
    raw.tensors.push_back({.key = "t",
                           .shape = {2, 2},
                           .type = 32,
                           .role = 2,
                           .first_slice = slice + 2,
                           .num_slices = 1,
                           .opaque_type = "TOMORROW",
                           .opaque_bytes = 7});
    raw.slices.push_back({0, 0, 2});
    raw.slices.push_back({4096, 4096, 2});
    raw.slices.push_back({0, 8192, 2});
    return raw;
  }

  std::vector<std::byte> Build(uint32_t version = 1) const {
    flatbuffers::FlatBufferBuilder fbb;
    std::vector<flatbuffers::Offset<schema::File>> file_list;
    for (const File& file : files) {
      file_list.push_back(
          schema::CreateFile(fbb, fbb.CreateString(file.name), file.bytes));
    }
    std::vector<flatbuffers::Offset<schema::Tensor>> tensor_list;
    for (const Tensor& t : tensors) {
      const auto key = fbb.CreateString(t.key);
      const auto shape = fbb.CreateVector(t.shape);
      const auto opaque_type =
          t.opaque_type.has_value() ? fbb.CreateString(*t.opaque_type) : 0;
      tensor_list.push_back(schema::CreateTensor(
          fbb, key, shape, static_cast<schema::ElementType>(t.type),
          static_cast<schema::TensorRole>(t.role), t.first_slice, t.num_slices,
          t.alias_of, t.trainable, t.group, t.step, t.codebook, opaque_type,
          t.opaque_bytes));
    }
    std::vector<schema::Slice> slice_list;
    for (const Slice& slice : slices) {
      slice_list.emplace_back(slice.begin, slice.offset, 1, 2, slice.file,
                              slice.reserved);
    }
    std::vector<flatbuffers::Offset<schema::Group>> group_list;
    for (const std::string& group : groups) {
      group_list.push_back(schema::CreateGroup(fbb, fbb.CreateString(group)));
    }
    std::vector<flatbuffers::Offset<schema::Scalar>> scalar_list;
    for (const Scalar& scalar : scalars) {
      scalar_list.push_back(schema::CreateScalar(
          fbb, fbb.CreateString(scalar.name), scalar.value));
    }
    std::vector<flatbuffers::Offset<schema::Blob>> blob_list;
    for (const Blob& blob : blobs) {
      const schema::Extent extent(blob.offset, blob.bytes, 3, 4, blob.file,
                                  blob.reserved);
      blob_list.push_back(schema::CreateBlob(
          fbb, fbb.CreateString(blob.name),
          static_cast<schema::BlobRule>(blob.rule), blob.rank, &extent));
    }
    const auto name = fbb.CreateString(writer);
    const auto f = fbb.CreateVector(file_list);
    const auto t = fbb.CreateVector(tensor_list);
    const auto s = fbb.CreateVectorOfStructs(slice_list);
    const auto g = fbb.CreateVector(group_list);
    const auto c = fbb.CreateVector(scalar_list);
    const auto b = fbb.CreateVector(blob_list);
    return Finish(
        &fbb,
        schema::CreateManifest(fbb, name, step, world_size, f, t, s, g, c, b),
        version);
  }
};

}  // namespace shard

#endif  // SHARD_TESTS_CORE_CHECKPOINT_RAW_MANIFEST_H_
