// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsStore: a safetensors file, or several under an index, as a
// FileStore. Every tensor is a parameter, under the key of the file; tensors of
// types that libshard does not read are kOpaque, and can be copied. The format
// has no checksums: ReadOptions::verify does nothing.
//
// Symbolic links are followed, because Hugging Face's cache consists of them;
// but an index names files of its own folder, never paths.

#ifndef SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_STORE_H_
#define SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file.h"
#include "core/base/pooled_file.h"
#include "core/base/status.h"
#include "core/checkpoint/data/file_store.h"
#include "core/checkpoint/safetensors/safetensors_header.h"
#include "core/checkpoint/safetensors/safetensors_index.h"

namespace shard {

class SafetensorsStore final : public FileStore {
 public:
  // Opens `path` with all its files and reads their headers. A path that ends
  // in ".json" is an index; any other is a safetensors file. Errors: kNotFound;
  // kCorrupt for a file of another format, and for files that do not hold
  // exactly the tensors of the index.
  static StatusOr<std::unique_ptr<SafetensorsStore>> Open(
      FileEnv* env, const std::string& path);

  std::string_view describe() const override { return description_; }
  // Tensors are numbered file after file, in each by ascending place.
  size_t num_tensors() const override { return first_.back(); }
  TensorInfo tensor(size_t index) const override;
  // O(log n).
  int64_t Find(std::string_view key) const override;
  Status Read(std::span<const ReadRequest> requests, const ReadOptions& options,
              const PieceSink& sink) const override;

  const std::string& path() const override { return path_; }
  const Manifest* manifest() const override { return nullptr; }
  size_t num_files() const override { return parts_.size(); }
  std::string_view file_name(size_t file) const override {
    return parts_[file].name;
  }
  uint64_t file_bytes(size_t file) const override { return parts_[file].bytes; }
  uint64_t index_bytes() const override { return index_bytes_; }
  // Each tensor has one slice.
  size_t num_slices(size_t tensor) const override;
  Slice slice(size_t tensor, size_t index) const override;
  Status StreamBlob(size_t index, const BlobSink& sink) const override;
  Status Verify(const ReadOptions& options,
                std::vector<std::string>* problems) const override;

  const SafetensorsHeader& header(size_t file) const {
    return parts_[file].header;
  }

 private:
  struct Part {
    std::string name;  // Without a path.
    uint64_t bytes = 0;
    PooledFile file;
    uint64_t data_begin = 0;
    SafetensorsHeader header;
  };
  struct Place {
    const Part* part;
    const SafetensorsHeader::Tensor* tensor;
  };

  SafetensorsStore() = default;

  static StatusOr<Part> OpenPart(FileEnv* env, const std::string& path);
  Status CheckIndex() const;
  Place PlaceOf(size_t index) const;

  std::string path_;
  std::string description_;
  uint64_t index_bytes_ = 0;
  std::vector<Part> parts_;
  // The index of each part's first tensor; then the number of tensors.
  std::vector<size_t> first_;
  std::optional<SafetensorsIndex> index_;
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_SAFETENSORS_SAFETENSORS_STORE_H_
