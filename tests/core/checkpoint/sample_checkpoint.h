// SPDX-License-Identifier: Apache-2.0
//
// A small checkpoint with every kind of entry, written without an engine, and
// the contents of a checkpoint in a form that tests compare.

#ifndef SHARD_TESTS_CORE_CHECKPOINT_SAMPLE_CHECKPOINT_H_
#define SHARD_TESTS_CORE_CHECKPOINT_SAMPLE_CHECKPOINT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/file.h"
#include "core/base/strings.h"
#include "core/checkpoint/data/data_layout.h"
#include "core/checkpoint/data/data_writer.h"
#include "core/checkpoint/data/file_store.h"
#include "core/checkpoint/folder/commit.h"
#include "core/checkpoint/folder/pending.h"
#include "core/checkpoint/manifest/checksum.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/open_store.h"

namespace shard::testing {

// Returns bytes that are finite numbers in every type, and that differ.
inline std::vector<std::byte> SampleBytes(ElementType type, size_t numel,
                                          uint32_t seed) {
  std::vector<std::byte> bytes(numel * ElementSize(type));
  for (size_t i = 0; i < numel; ++i) {
    const uint32_t number =
        (static_cast<uint32_t>(i) * 2654435761u + seed) >> 8;
    std::byte* const to = bytes.data() + i * ElementSize(type);
    if (type == ElementType::kF32) {
      const float value = static_cast<float>(number) / 4096.0f - 1000.0f;
      std::memcpy(to, &value, sizeof(value));
    } else if (type == ElementType::kBF16) {
      const auto value = static_cast<uint16_t>(0x3F00 + number % 0x80);
      std::memcpy(to, &value, sizeof(value));
    } else {
      std::memcpy(to, &number, std::min<size_t>(ElementSize(type), 4));
    }
  }
  return bytes;
}

class CheckpointBuilder {
 public:
  // `slice_bytes`: the largest size of a slice.
  explicit CheckpointBuilder(uint64_t slice_bytes = 1 << 20)
      : slice_bytes_(slice_bytes) {
    contents_.writer = "test";
    contents_.step = 42;
    contents_.world_size = 1;
  }

  ManifestContents& contents() { return contents_; }

  ManifestContents::Tensor& Add(const std::string& key, ElementType type,
                                TensorRole role, std::vector<int64_t> shape) {
    int64_t numel = 1;
    for (const int64_t dim : shape) numel *= dim;
    auto& tensor = contents_.tensors.emplace_back();
    tensor.key = key;
    tensor.type = type;
    tensor.role = role;
    tensor.shape = std::move(shape);
    bytes_.push_back(
        SampleBytes(type, static_cast<size_t>(numel),
                    static_cast<uint32_t>(contents_.tensors.size()) * 7919));
    if (numel > 0) {
      PlaceElements(0, numel, ElementSize(type), 0, slice_bytes_, &layout_,
                    &tensor.slices);
    }
    return tensor;
  }

  // Adds a parameter of an opaque type.
  void AddOpaque(const std::string& key, const std::string& type,
                 std::vector<int64_t> shape, uint64_t bytes) {
    auto& tensor = Add(key, ElementType::kU8, TensorRole::kParam,
                       {static_cast<int64_t>(bytes)});
    tensor.type = ElementType::kOpaque;
    tensor.shape = std::move(shape);
    tensor.opaque = std::make_shared<ManifestContents::Opaque>(
        ManifestContents::Opaque{type, bytes});
  }

  void AddAlias(const std::string& key, int64_t of) {
    auto tensor = contents_.tensors[static_cast<size_t>(of)];
    tensor.key = key;
    tensor.alias_of = of;
    tensor.slices.clear();
    tensor.group = -1;
    tensor.step = -1;
    tensor.trainable = true;
    contents_.tensors.push_back(tensor);
    bytes_.emplace_back();
  }

  // Adds codes and their scales.
  void AddQ8(const std::string& key, int64_t numel, int32_t codebook) {
    Add(key, ElementType::kQ8, TensorRole::kState, {numel}).codebook = codebook;
    Add(StrCat(key, kScaleSuffix), ElementType::kF32, TensorRole::kState,
        {(numel + kQ8Block - 1) / kQ8Block});
  }

  // Adds a blob. Call it after the tensors.
  void AddBlob(const std::string& name, BlobRule rule, int32_t rank,
               std::string_view text) {
    Extent extent;
    extent.bytes = text.size();
    extent.checksum = ChecksumOf(text.data(), text.size());
    if (!text.empty()) extent.offset = layout_.Add(text.size());
    contents_.blobs.push_back({name, rule, rank, extent});
    blobs_.emplace_back(text);
  }

  Status Write(FileEnv* env, const std::string& root) {
    std::vector<DataSource> sources;
    for (size_t t = 0; t < bytes_.size(); ++t) {
      const std::byte* data = bytes_[t].data();
      for (const Slice& slice : contents_.tensors[t].slices) {
        sources.push_back({data, slice.extent.offset, slice.extent.bytes});
        data += slice.extent.bytes;
      }
    }
    for (size_t b = 0; b < blobs_.size(); ++b) {
      const Extent& extent = contents_.blobs[b].extent;
      if (extent.bytes == 0) continue;
      sources.push_back({reinterpret_cast<const std::byte*>(blobs_[b].data()),
                         extent.offset, extent.bytes});
    }
    contents_.files = {{DataFileName(0), layout_.file_bytes()}};
    DataWriter writer(std::move(sources), layout_.file_bytes());
    SHARD_ASSIGN_OR_RETURN(
        PendingCheckpoint pending,
        PendingCheckpoint::Begin(env, root, contents_.step, false));
    SHARD_ASSIGN_OR_RETURN(
        File file,
        File::Open(pending.directory(), DataFileName(0), File::Mode::kCreate));
    ProgressMeter progress(nullptr, 0);
    SHARD_RETURN_IF_ERROR(writer.Write(&file, 1, &progress));
    SHARD_RETURN_IF_ERROR(file.Sync());
    size_t next = 0;
    for (auto& tensor : contents_.tensors) {
      for (Slice& slice : tensor.slices) {
        slice.extent.checksum = writer.checksums()[next++];
      }
    }
    return CommitCheckpoint(contents_, &pending);
  }

 private:
  const uint64_t slice_bytes_;
  ManifestContents contents_;
  DataLayout layout_;
  std::vector<std::vector<std::byte>> bytes_;  // By tensor.
  std::vector<std::string> blobs_;
};

// Returns a checkpoint of parameters, one of them frozen, one tied, one empty,
// some small; a buffer; tensors of opaque types, one of them tied; states in
// f32 and q8; two groups, scalars, and blobs of three ranks by every rule.
inline CheckpointBuilder SampleBuilder() {
  CheckpointBuilder sample;
  sample.contents().world_size = 3;
  sample.contents().groups = {"adamw?lr=0.001", "sgd?lr=0.5"};
  sample.contents().scalars = {{"loss_scale.scale", 1024.0},
                               {"loss_scale.good_steps", 7.0}};
  auto& embed = sample.Add("embed", ElementType::kF32, TensorRole::kParam,
                           {700, 1000});  // Several slices.
  embed.group = 0;
  sample.AddAlias("head", 0);
  auto& weight = sample.Add("layer.weight", ElementType::kBF16,
                            TensorRole::kParam, {301, 257});
  weight.group = 1;
  weight.step = 40;
  auto& frozen =
      sample.Add("frozen", ElementType::kF32, TensorRole::kParam, {3, 5});
  frozen.trainable = false;
  for (int i = 0; i < 20; ++i) {
    sample.Add(StrCat("small.", i), ElementType::kF32, TensorRole::kParam,
               {i + 1, 33});
  }
  sample.Add("empty", ElementType::kF32, TensorRole::kParam, {0, 4});
  sample.Add("scalar", ElementType::kF32, TensorRole::kParam, {});
  sample.Add("count", ElementType::kI64, TensorRole::kBuffer, {9});
  sample.AddOpaque("phase", "C64", {301, 41}, 301 * 41 * 8);
  sample.AddAlias("phase.tied",
                  static_cast<int64_t>(sample.contents().tensors.size()) - 1);
  sample.AddOpaque("of tomorrow", "T1", {3, 3}, 7);
  sample.AddOpaque("packed", "F6_E2M3", {8, 12345}, 8 * 12345 * 6 / 8);
  sample.AddOpaque("no bytes", "F8_E8M0", {4, 0}, 0);
  sample.Add("state.embed.exp_avg", ElementType::kF32, TensorRole::kState,
             {700, 1000});
  sample.AddQ8("state.layer.weight.exp_avg", 301 * 257, 4);
  sample.AddQ8("state.small.0.exp_avg", 33, 4);
  for (int rank = 0; rank < 3; ++rank) {
    sample.AddBlob("loader", BlobRule::kPerRank, rank,
                   StrCat("position of rank ", rank));
    sample.AddBlob("seen", BlobRule::kSummed, rank, "12345678");
  }
  sample.AddBlob("seed", BlobRule::kReplicated, 0, "");
  return sample;
}

inline std::shared_ptr<const FileStore> OpenStore(const std::string& path) {
  auto opened = OpenTensorStore(FileEnv::Posix(), path);
  EXPECT_TRUE(opened.ok()) << opened.status().ToString();
  return opened.ok() ? opened->store : nullptr;
}

inline std::string BytesOf(const TensorStore& store, size_t tensor) {
  const TensorInfo info = store.tensor(tensor);
  std::string bytes(TensorBytes(info), '?');
  const ReadRequest request = {tensor, 0, StoredNumel(info)};
  const ReadOptions options = {.opaque_as_bytes = true};
  const Status status = store.Read(
      {&request, 1}, options,
      [&](size_t, int64_t begin, int64_t numel, const std::byte* data) {
        const size_t size = ElementSize(info.type);
        std::memcpy(bytes.data() + static_cast<size_t>(begin) * size, data,
                    static_cast<size_t>(numel) * size);
        return Status();
      });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return bytes;
}

// Returns, by key, a description of the tensor and the checksum of its bytes.
inline std::map<std::string, std::string> TensorsOf(const TensorStore& store) {
  std::map<std::string, std::string> all;
  for (size_t t = 0; t < store.num_tensors(); ++t) {
    const TensorInfo info = store.tensor(t);
    std::string what = StrCat(TypeNameOf(info), " ", TensorRoleName(info.role),
                              " ", info.codebook);
    for (const int64_t dim : info.shape) StrAppend(&what, " ", dim);
    if (info.alias_of >= 0) {
      StrAppend(&what, " is ",
                store.tensor(static_cast<size_t>(info.alias_of)).key);
    }
    const std::string bytes = BytesOf(store, t);
    all[std::string(info.key)] = StrCat(
        what, ": ", ChecksumText(ChecksumOf(bytes.data(), bytes.size())));
  }
  return all;
}

// Returns all contents but tensors and their places, one line each.
inline std::vector<std::string> NumbersOf(const FileStore& store) {
  const Manifest& manifest = *store.manifest();
  std::vector<std::string> lines = {StrCat("step ", manifest.step())};
  for (size_t g = 0; g < manifest.num_groups(); ++g) {
    lines.push_back(StrCat("group ", manifest.group_optimizer(g)));
  }
  for (size_t s = 0; s < manifest.num_scalars(); ++s) {
    lines.push_back(
        StrCat(manifest.scalar(s).name, " ", manifest.scalar(s).value));
  }
  for (size_t b = 0; b < manifest.num_blobs(); ++b) {
    const BlobInfo info = manifest.blob(b);
    const auto content = store.ReadBlob(b);
    EXPECT_TRUE(content.ok()) << content.status().ToString();
    if (!content.ok()) continue;
    lines.push_back(
        StrCat(info.name, " ", static_cast<int>(info.rule), " ", info.rank, " ",
               std::string_view(reinterpret_cast<const char*>(content->data()),
                                content->size())));
  }
  for (size_t t = 0; t < manifest.num_tensors(); ++t) {
    lines.push_back(StrCat(manifest.tensor(t).key, " ", manifest.trainable(t),
                           " ", manifest.group(t), " ",
                           manifest.tensor_step(t)));
  }
  return lines;
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_CHECKPOINT_SAMPLE_CHECKPOINT_H_
