// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/write_checkpoint.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/out_of_memory.h"
#include "core/base/parallel.h"
#include "core/checkpoint/checkpoint_draft.h"
#include "core/checkpoint/data/data_writer.h"
#include "core/checkpoint/folder/cleanup.h"
#include "core/checkpoint/folder/commit.h"
#include "core/checkpoint/folder/pending.h"
#include "core/checkpoint/manifest/manifest.h"

namespace shard {

namespace {

// The limit that the header of this unit promises, and the memory of it that
// reading and converting take beside the slice that is read and the one that is
// written.
constexpr uint64_t kMemory = uint64_t{64} << 20;
constexpr uint64_t kMemoryPerThread = uint64_t{16} << 20;
constexpr uint64_t kConverting = uint64_t{4} << 20;
constexpr uint64_t kReading = uint64_t{8} << 20;

class CheckpointWriter {
 public:
  CheckpointWriter(FileEnv* env, const FileStore& from,
                   const WriteCheckpointOptions& options)
      : env_(env),
        from_(from),
        options_(options),
        store_(from, options.conversion) {}

  Status Write(const std::string& root);

 private:
  using Piece = CheckpointDraft::Piece;
  using Output = CheckpointDraft::Output;

  int Threads() const;
  Status WriteFile(const Directory& folder, size_t file,
                   ProgressMeter* progress);
  Status Fetch(const Output& output, std::span<const DataFetch> fetches) const;
  Status CopyLargeBlobs(const Output& output, const File& file,
                        ProgressMeter* progress) const;
  Status CopyLargeBlob(size_t blob, const File& file,
                       ProgressMeter* progress) const;

  FileEnv* const env_;
  const FileStore& from_;
  const WriteCheckpointOptions& options_;
  const ConvertingStore store_;
  CheckpointDraft draft_;
};

int CheckpointWriter::Threads() const {
  uint64_t largest = kReading;
  for (size_t t = 0; t < from_.num_tensors(); ++t) {
    for (size_t s = 0; s < from_.num_slices(t); ++s) {
      // Stores without checksums are read in small pieces.
      if (from_.manifest() == nullptr) break;
      largest = std::max(largest, from_.slice(t, s).extent.bytes);
    }
  }
  const uint64_t each =
      kConverting + largest +
      std::max(draft_.slice_bytes, DataWriter::kFetchedChunkBytes);
  const auto threads = static_cast<uint64_t>(options_.threads);
  const uint64_t most = (kMemory + kMemoryPerThread * threads) / each;
  return static_cast<int>(std::clamp<uint64_t>(most, 1, threads));
}

Status CheckpointWriter::CopyLargeBlob(size_t blob, const File& file,
                                       ProgressMeter* progress) const {
  const Extent& extent = draft_.contents.blobs[blob].extent;
  SHARD_RETURN_IF_ERROR(from_.StreamBlob(
      blob, [&](uint64_t offset, std::span<const std::byte> piece) {
        SHARD_RETURN_IF_ERROR(file.WriteExactly(extent.offset + offset, piece));
        return progress->Add(piece.size());
      }));
  // The rest of the blob's last page, which is zeros in a new file.
  const uint64_t used = extent.bytes % kSliceAlignment;
  return progress->Add(used == 0 ? 0 : kSliceAlignment - used);
}

Status CheckpointWriter::CopyLargeBlobs(const Output& output, const File& file,
                                        ProgressMeter* progress) const {
  const std::vector<size_t>& blobs = output.large_blobs;
  return ParallelFor(blobs.size(), options_.threads, [&](size_t index, int) {
    return CopyLargeBlob(blobs[index], file, progress);
  });
}

Status CheckpointWriter::Fetch(const Output& output,
                               std::span<const DataFetch> fetches) const {
  std::vector<ReadRequest> requests;
  std::vector<std::byte*> targets;
  for (const DataFetch& fetch : fetches) {
    const Piece& piece = output.pieces[fetch.source];
    if (!piece.blob) {
      const Slice& slice =
          draft_.contents.tensors[piece.index].slices[piece.slice];
      requests.push_back({piece.index, slice.begin, slice.numel});
      targets.push_back(fetch.to);
      continue;
    }
    SHARD_RETURN_IF_ERROR(from_.StreamBlob(
        piece.index, [&](uint64_t offset, std::span<const std::byte> some) {
          std::copy(some.begin(), some.end(), fetch.to + offset);
          return Status();
        }));
  }
  if (requests.empty()) return Status();
  ReadOptions read;
  read.threads = 1;
  read.opaque_as_bytes = true;
  return store_.Read(
      requests, read,
      [&](size_t r, int64_t begin, int64_t numel, const std::byte* data) {
        const size_t size =
            ElementSize(draft_.contents.tensors[requests[r].tensor].type);
        const auto skip = static_cast<size_t>(begin - requests[r].begin);
        std::memcpy(targets[r] + skip * size, data,
                    static_cast<size_t>(numel) * size);
        return Status();
      });
}

Status CheckpointWriter::WriteFile(const Directory& folder, size_t file,
                                   ProgressMeter* progress) {
  const Output& output = draft_.outputs[file];
  std::vector<DataSource> sources;
  sources.reserve(output.pieces.size());
  for (const Piece& piece : output.pieces) {
    const Extent& extent = draft_.ExtentOf(piece);
    sources.push_back({nullptr, extent.offset, extent.bytes});
  }
  DataWriter writer(
      std::move(sources), output.pieces_bytes,
      [&](std::span<const DataFetch> some) { return Fetch(output, some); });
  SHARD_ASSIGN_OR_RETURN(File out,
                         File::Open(folder, draft_.contents.files[file].name,
                                    File::Mode::kCreate, File::Cache::kDirect));
  SHARD_RETURN_IF_ERROR(progress->Add(0));
  SHARD_RETURN_IF_ERROR(out.Allocate(output.layout.file_bytes()));
  SHARD_RETURN_IF_ERROR(writer.Write(&out, Threads(), progress));
  SHARD_RETURN_IF_ERROR(CopyLargeBlobs(output, out, progress));
  SHARD_RETURN_IF_ERROR(out.Sync());
  SHARD_RETURN_IF_ERROR(out.Close());
  for (size_t p = 0; p < output.pieces.size(); ++p) {
    // A blob keeps the checksum of the source, with which its bytes were
    // compared.
    if (output.pieces[p].blob) continue;
    draft_.ExtentOf(output.pieces[p]).checksum = writer.checksums()[p];
  }
  return Status();
}

Status CheckpointWriter::Write(const std::string& root) {
  SHARD_ASSIGN_OR_RETURN(draft_,
                         DraftCheckpoint(from_, store_, options_.world_size));
  uint64_t total = 0;
  for (const Output& output : draft_.outputs) {
    total += output.layout.file_bytes();
  }
  // Finds all errors of the manifest early; only the checksums are missing yet.
  SHARD_RETURN_IF_ERROR(EncodeManifest(draft_.contents).status());
  SHARD_ASSIGN_OR_RETURN(
      PendingCheckpoint pending,
      PendingCheckpoint::Begin(env_, root, draft_.contents.step,
                               options_.overwrite));
  ProgressMeter progress(options_.progress, total);
  for (size_t f = 0; f < draft_.outputs.size(); ++f) {
    SHARD_RETURN_IF_ERROR(WriteFile(pending.directory(), f, &progress));
  }
  SHARD_RETURN_IF_ERROR(CommitCheckpoint(draft_.contents, &pending));
  // The checkpoint is complete: an error in deleting old ones is not an error
  // of it.
  (void)CatchOutOfMemory([&]() -> Status {
    SHARD_ASSIGN_OR_RETURN(const Directory opened, Directory::Open(env_, root));
    return CleanStale(opened).status();
  }).ok();
  return Status();
}

}  // namespace

Status WriteCheckpoint(FileEnv* env, const FileStore& from,
                       const std::string& root,
                       const WriteCheckpointOptions& options) {
  return CheckpointWriter(env, from, options).Write(root);
}

}  // namespace shard
