// SPDX-License-Identifier: Apache-2.0
//
// ShardStore: a checkpoint as a FileStore.
//
// A read is cut into runs of some MiB that are contiguous in one file. Each
// thread takes the next run, reads it past the page cache where the file allows
// that, compares checksums, and only then passes the requested elements on:
// damaged bytes never reach the sink.

#ifndef SHARD_CORE_CHECKPOINT_DATA_SHARD_STORE_H_
#define SHARD_CORE_CHECKPOINT_DATA_SHARD_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file.h"
#include "core/base/pooled_file.h"
#include "core/base/status.h"
#include "core/checkpoint/data/file_store.h"
#include "core/checkpoint/manifest/manifest.h"

namespace shard {

class ShardStore final : public FileStore {
 public:
  // Opens the checkpoint in a folder: its manifest, and all data files. Errors:
  // kNotFound without a manifest; those of Manifest::Parse; kCorrupt for a data
  // file that is missing or has another length than the manifest says.
  static StatusOr<std::shared_ptr<const ShardStore>> Open(
      const Directory& folder);

  std::string_view describe() const override { return describe_; }
  const std::string& path() const override { return path_; }
  // Never null.
  const Manifest* manifest() const override { return manifest_.get(); }

  size_t num_tensors() const override { return manifest_->num_tensors(); }
  TensorInfo tensor(size_t index) const override {
    return manifest_->tensor(index);
  }
  int64_t Find(std::string_view key) const override {
    return manifest_->Find(key);
  }
  Status Read(std::span<const ReadRequest> requests, const ReadOptions& options,
              const PieceSink& sink) const override;

  size_t num_files() const override { return manifest_->num_files(); }
  std::string_view file_name(size_t file) const override {
    return manifest_->file_name(file);
  }
  uint64_t file_bytes(size_t file) const override {
    return manifest_->file_bytes(file);
  }
  uint64_t index_bytes() const override { return manifest_bytes_; }
  size_t num_slices(size_t tensor) const override {
    return manifest_->num_slices(tensor);
  }
  Slice slice(size_t tensor, size_t index) const override {
    return manifest_->slice(tensor, index);
  }
  Status StreamBlob(size_t index, const BlobSink& sink) const override;
  // Verifies blobs and the zeros between slices too.
  Status Verify(const ReadOptions& options,
                std::vector<std::string>* problems) const override;

 private:
  struct Piece;
  struct Run;

  ShardStore() = default;

  Status OpenFiles();
  Piece PieceOfBlob(size_t index) const;
  void AddPieces(const ReadRequest& request, size_t index, bool whole,
                 std::vector<Piece>* pieces) const;
  std::vector<Run> CutRuns(std::span<const Piece> pieces) const;
  // Reads pieces, which are in the order of files and offsets. `problems`:
  // receives the damaged ones, which are then not an error.
  Status ReadPieces(std::span<const Piece> pieces, const ReadOptions& options,
                    const PieceSink& sink,
                    std::vector<std::string>* problems) const;
  Status CheckPiece(const Piece& piece, const std::byte* data) const;
  Status CheckChecksum(const Piece& piece, const Checksum& checksum) const;
  Status CheckBlobNumber(size_t index) const;
  // Reads a piece through `room`, which has kRunBytes.
  Status StreamPiece(const Piece& piece, std::span<std::byte> room,
                     const BlobSink& sink) const;
  std::string NameOf(const Piece& piece) const;

  std::string path_;
  std::string describe_;
  std::shared_ptr<const Manifest> manifest_;
  uint64_t manifest_bytes_ = 0;
  Directory folder_;
  std::vector<PooledFile> files_;
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_DATA_SHARD_STORE_H_
