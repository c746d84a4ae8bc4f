// SPDX-License-Identifier: Apache-2.0
//
// Reads the whole contents of a manifest, through every accessor.

#ifndef SHARD_TESTS_CORE_CHECKPOINT_READ_MANIFEST_H_
#define SHARD_TESTS_CORE_CHECKPOINT_READ_MANIFEST_H_

#include <string>

#include "core/base/strings.h"
#include "core/checkpoint/manifest/manifest.h"

namespace shard {

inline ManifestContents ContentsOf(const Manifest& manifest) {
  ManifestContents all;
  all.writer = manifest.writer();
  all.step = manifest.step();
  all.world_size = manifest.world_size();
  for (size_t i = 0; i < manifest.num_files(); ++i) {
    all.files.push_back(
        {std::string(manifest.file_name(i)), manifest.file_bytes(i)});
  }
  for (size_t i = 0; i < manifest.num_tensors(); ++i) {
    const TensorInfo info = manifest.tensor(i);
    ManifestContents::Tensor tensor;
    tensor.key = info.key;
    tensor.type = info.type;
    tensor.role = info.role;
    tensor.shape.assign(info.shape.begin(), info.shape.end());
    tensor.alias_of = info.alias_of;
    for (size_t s = 0; info.alias_of < 0 && s < manifest.num_slices(i); ++s) {
      tensor.slices.push_back(manifest.slice(i, s));
    }
    tensor.trainable = manifest.trainable(i);
    tensor.group = manifest.group(i);
    tensor.step = manifest.tensor_step(i);
    tensor.codebook = info.codebook;
    tensor.opaque = OpaqueOf(info);
    all.tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < manifest.num_groups(); ++i) {
    all.groups.emplace_back(manifest.group_optimizer(i));
  }
  for (size_t i = 0; i < manifest.num_scalars(); ++i) {
    const ScalarInfo scalar = manifest.scalar(i);
    all.scalars.push_back({std::string(scalar.name), scalar.value});
  }
  for (size_t i = 0; i < manifest.num_blobs(); ++i) {
    const BlobInfo blob = manifest.blob(i);
    all.blobs.push_back(
        {std::string(blob.name), blob.rule, blob.rank, blob.extent});
  }
  return all;
}

inline void Describe(const Extent& extent, std::string* to) {
  StrAppend(to, " file ", extent.file, " offset ", extent.offset, " bytes ",
            extent.bytes, " ", FormatHex(extent.checksum.low), " ",
            FormatHex(extent.checksum.high), "\n");
}

// Returns the contents as text; equal texts mean equal contents.
inline std::string Describe(const ManifestContents& all) {
  std::string text = StrCat("writer ", all.writer, " step ", all.step,
                            " world size ", all.world_size, "\n");
  for (const auto& file : all.files) {
    StrAppend(&text, "file ", file.name, " ", file.bytes, "\n");
  }
  for (const auto& tensor : all.tensors) {
    const auto* const opaque = tensor.opaque.get();
    StrAppend(&text, "tensor ", tensor.key, " ", ElementTypeName(tensor.type),
              " ", TensorRoleName(tensor.role), " ", FormatList(tensor.shape),
              " alias of ", tensor.alias_of, " trainable ", tensor.trainable,
              " group ", tensor.group, " step ", tensor.step, " code book ",
              tensor.codebook, " opaque '",
              opaque == nullptr ? "" : opaque->type, "' ",
              opaque == nullptr ? 0 : opaque->bytes, "\n");
    for (const Slice& slice : tensor.slices) {
      StrAppend(&text, "  slice ", slice.begin, " ", slice.numel);
      Describe(slice.extent, &text);
    }
  }
  for (const auto& group : all.groups) StrAppend(&text, "group ", group, "\n");
  for (const auto& scalar : all.scalars) {
    StrAppend(&text, "scalar ", scalar.name, " ", scalar.value, "\n");
  }
  for (const auto& blob : all.blobs) {
    StrAppend(&text, "blob ", blob.name, " rule ", blob.rule, " rank ",
              blob.rank);
    Describe(blob.extent, &text);
  }
  return text;
}

inline std::string Describe(const Manifest& manifest) {
  return Describe(ContentsOf(manifest));
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_CHECKPOINT_READ_MANIFEST_H_
