// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/write_checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "core/base/file.h"
#include "core/base/host_memory.h"
#include "core/base/out_of_memory.h"
#include "core/base/parallel.h"
#include "core/checkpoint/data/data_layout.h"
#include "core/checkpoint/data/data_writer.h"
#include "core/checkpoint/folder/cleanup.h"
#include "core/checkpoint/folder/pending.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/schema/manifest_generated.h"
#include "core/model/names.h"

namespace shard {

namespace {

// The promise of the header, and what reading and converting take of it beside
// the slice that is read and the one that is written.
constexpr uint64_t kMemory = uint64_t{64} << 20;
constexpr uint64_t kMemoryPerThread = uint64_t{16} << 20;
constexpr uint64_t kConverting = uint64_t{4} << 20;
constexpr uint64_t kReading = uint64_t{8} << 20;

// Codes and scales of a block of q8 go into one file.
constexpr int64_t kBlock = 256;

// A blob of more bytes than a chunk of the writer is copied piece by piece.
constexpr uint64_t kLargeBlob = DataWriter::kFetchedChunkBytes;

// What is smaller than this for each file is not cut.
constexpr uint64_t kLeastPiece = kSliceAlignment;

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
  // What goes into a file, in the order of offsets.
  struct Piece {
    bool blob;
    size_t index;  // Of the tensor or blob.
    size_t slice;  // Of a tensor.
  };
  struct Output {
    DataLayout layout;
    std::vector<Piece> pieces;
    uint64_t pieces_bytes = 0;  // Of the file, up to the end of the pieces.
    std::vector<size_t> large_blobs;  // Behind the pieces.
  };

  Status Check() const;
  void Describe();
  void PlaceTensors();
  Status CheckSize() const;
  void PlaceBlobs();
  void Place(size_t tensor, int64_t begin, int64_t numel, size_t file);
  bool IsCut(size_t tensor) const;
  int Threads() const;
  Extent& ExtentOf(const Piece& piece);
  Status WriteFile(const Directory& folder, size_t file,
                   ProgressMeter* progress);
  Status Fetch(const Output& output, std::span<const DataFetch> fetches) const;
  Status CopyLargeBlobs(const Output& output, const File& file,
                        ProgressMeter* progress) const;
  Status CopyLargeBlob(size_t blob, const File& file,
                       ProgressMeter* progress) const;
  Status WriteManifest(const Directory& folder) const;

  FileEnv* const env_;
  const FileStore& from_;
  const WriteCheckpointOptions& options_;
  const ConvertingStore store_;
  ManifestContents contents_;
  uint64_t slice_bytes_ = 0;
  std::vector<Output> outputs_;
};

Status CheckpointWriter::Check() const {
  if (options_.world_size < 0 || options_.world_size > kMaxWrittenFiles) {
    return InvalidArgument("world_size is ", options_.world_size,
                           "; allowed: 1 to ", kMaxWrittenFiles,
                           ", or 0 for as many files as there are");
  }
  for (size_t t = 0; t < store_.num_tensors(); ++t) {
    const TensorInfo info = store_.tensor(t);
    if (info.type != ElementType::kOpaque) continue;
    return Unimplemented("tensor '", info.key, "' of ", from_.describe(),
                         " is of type ", info.opaque_type,
                         ", which a checkpoint cannot hold; it can only be "
                         "copied into another safetensors file");
  }
  if (store_.num_tensors() > 0 || from_.num_tensors() == 0) return Status();
  return InvalidArgument(from_.describe(), " has ", from_.num_tensors(),
                         " tensors, and none of the content asked for");
}

// What is cut into slices that a manifest can name. A file of a few bytes may
// say that it has more, and take no space.
Status CheckpointWriter::CheckSize() const {
  constexpr uint64_t kMost =
      kMaxManifestBytes / sizeof(schema::Slice) * kMaxSliceBytes;
  uint64_t total = 0;
  for (size_t t = 0; t < store_.num_tensors(); ++t) {
    const TensorInfo info = store_.tensor(t);
    if (info.alias_of >= 0) continue;
    const uint64_t size = ElementSize(info.type);
    const auto numel = static_cast<uint64_t>(info.numel);
    if (numel > (kMost - total) / size) {
      return ResourceExhausted(
          from_.describe(), " has tensors of more than ", kMost,
          " bytes, tensor ", QuoteName(info.key),
          " included, which is more than a checkpoint can hold");
    }
    total += numel * size;
  }
  // Of each slice: what it is here, in the manifest, and where that is built.
  constexpr uint64_t kPerSlice = 256;
  return CheckHostMemory(total / SliceBytes(total) * kPerSlice)
      .WithContext(StrCat("the manifest of ", from_.describe()));
}

void CheckpointWriter::Describe() {
  const size_t given = options_.world_size > 0
                           ? static_cast<size_t>(options_.world_size)
                           : std::max<size_t>(from_.num_files(), 1);
  outputs_.resize(given);
  contents_.writer = "libshard";
  contents_.world_size = static_cast<int32_t>(given);
  const Manifest* const manifest = from_.manifest();
  if (manifest != nullptr) {
    contents_.step = manifest->step();
    if (manifest->num_blobs() > 0) {
      contents_.world_size = manifest->world_size();
    }
    for (size_t g = 0; g < manifest->num_groups(); ++g) {
      contents_.groups.emplace_back(manifest->group_optimizer(g));
    }
    for (size_t s = 0; s < manifest->num_scalars(); ++s) {
      const ScalarInfo scalar = manifest->scalar(s);
      contents_.scalars.push_back({std::string(scalar.name), scalar.value});
    }
  }
  uint64_t total = 0;
  for (size_t t = 0; t < store_.num_tensors(); ++t) {
    const TensorInfo info = store_.tensor(t);
    ManifestContents::Tensor& tensor = contents_.tensors.emplace_back();
    tensor.key = info.key;
    tensor.type = info.type;
    tensor.role = info.role;
    tensor.shape.assign(info.shape.begin(), info.shape.end());
    tensor.alias_of = info.alias_of;
    if (info.alias_of >= 0) continue;
    total += TensorBytes(info);
    tensor.codebook = info.codebook;
    if (manifest == nullptr) continue;
    const size_t source = store_.source(t);
    tensor.trainable = manifest->trainable(source);
    tensor.group = manifest->group(source);
    const int64_t step = manifest->tensor_step(source);
    if (step != manifest->step()) tensor.step = step;
  }
  slice_bytes_ = SliceBytes(total);
}

bool CheckpointWriter::IsCut(size_t tensor) const {
  return outputs_.size() > 1 &&
         TensorBytes(store_.tensor(tensor)) / outputs_.size() >= kLeastPiece;
}

void CheckpointWriter::Place(size_t tensor, int64_t begin, int64_t numel,
                             size_t file) {
  std::vector<Slice>& slices = contents_.tensors[tensor].slices;
  size_t s = slices.size();
  PlaceElements(begin, numel, ElementSize(contents_.tensors[tensor].type),
                static_cast<uint32_t>(file), slice_bytes_,
                &outputs_[file].layout, &slices);
  for (; s < slices.size(); ++s) {
    outputs_[file].pieces.push_back({false, tensor, s});
  }
}

void CheckpointWriter::PlaceTensors() {
  const auto files = static_cast<int64_t>(outputs_.size());
  uint64_t small = 0;  // Bytes of what is not cut.
  for (size_t t = 0; t < store_.num_tensors(); ++t) {
    const TensorInfo info = store_.tensor(t);
    if (info.alias_of < 0 && !IsCut(t)) small += TensorBytes(info);
  }
  // A file's share of that; what follows each other stays together.
  const uint64_t share = small / outputs_.size() + 1;
  uint64_t before = 0;
  for (size_t t = 0; t < store_.num_tensors(); ++t) {
    const TensorInfo info = store_.tensor(t);
    if (info.alias_of >= 0 || info.numel == 0) continue;
    if (!IsCut(t)) {
      Place(t, 0, info.numel, before / share);
      before += TensorBytes(info);
      continue;
    }
    const int64_t unit = info.type == ElementType::kQ8 ? kBlock : 1;
    const int64_t units = (info.numel - 1) / unit + 1;
    int64_t begin = 0;
    for (int64_t f = 0; f < files; ++f) {
      const int64_t some = (units / files + (f < units % files)) * unit;
      const int64_t numel = std::min(some, info.numel - begin);
      Place(t, begin, numel, static_cast<size_t>(f));
      begin += numel;
    }
  }
}

void CheckpointWriter::PlaceBlobs() {
  const Manifest* const manifest = from_.manifest();
  const size_t count = manifest == nullptr ? 0 : manifest->num_blobs();
  for (size_t b = 0; b < count; ++b) {
    const BlobInfo info = manifest->blob(b);
    Extent extent;
    extent.bytes = info.extent.bytes;
    extent.checksum = info.extent.checksum;
    contents_.blobs.push_back(
        {std::string(info.name), info.rule, info.rank, extent});
  }
  for (const bool large : {false, true}) {
    for (size_t b = 0; b < count; ++b) {
      Extent& extent = contents_.blobs[b].extent;
      if (extent.bytes == 0 || (extent.bytes > kLargeBlob) != large) continue;
      const size_t file =
          static_cast<size_t>(contents_.blobs[b].rank) % outputs_.size();
      Output& output = outputs_[file];
      extent.file = static_cast<uint32_t>(file);
      extent.offset = output.layout.Add(extent.bytes);
      if (large) {
        output.large_blobs.push_back(b);
      } else {
        output.pieces.push_back({true, b, 0});
      }
    }
    if (large) continue;
    for (Output& output : outputs_) {
      output.pieces_bytes = output.layout.file_bytes();
    }
  }
}

Extent& CheckpointWriter::ExtentOf(const Piece& piece) {
  if (piece.blob) return contents_.blobs[piece.index].extent;
  return contents_.tensors[piece.index].slices[piece.slice].extent;
}

int CheckpointWriter::Threads() const {
  uint64_t largest = kReading;
  for (size_t t = 0; t < from_.num_tensors(); ++t) {
    for (size_t s = 0; s < from_.num_slices(t); ++s) {
      // What has no checksums is read in small pieces.
      if (from_.manifest() == nullptr) break;
      largest = std::max(largest, from_.slice(t, s).extent.bytes);
    }
  }
  const uint64_t each = kConverting + largest +
                        std::max(slice_bytes_, DataWriter::kFetchedChunkBytes);
  const auto threads = static_cast<uint64_t>(options_.threads);
  const uint64_t most = (kMemory + kMemoryPerThread * threads) / each;
  return static_cast<int>(std::clamp<uint64_t>(most, 1, threads));
}

Status CheckpointWriter::CopyLargeBlob(size_t blob, const File& file,
                                       ProgressMeter* progress) const {
  const Extent& extent = contents_.blobs[blob].extent;
  SHARD_RETURN_IF_ERROR(from_.StreamBlob(
      blob, [&](uint64_t offset, std::span<const std::byte> piece) {
        SHARD_RETURN_IF_ERROR(file.WriteExactly(extent.offset + offset, piece));
        return progress->Add(piece.size());
      }));
  // The rest of its last page, which is zeros in a new file.
  const uint64_t used = extent.bytes % kSliceAlignment;
  return progress->Add(used == 0 ? 0 : kSliceAlignment - used);
}

Status CheckpointWriter::CopyLargeBlobs(const Output& output, const File& file,
                                        ProgressMeter* progress) const {
  const std::vector<size_t>& blobs = output.large_blobs;
  if (blobs.empty()) return Status();
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const auto threads =
      std::min(blobs.size(), static_cast<size_t>(options_.threads));
  return RunOnThreads(static_cast<int>(threads), [&](int) {
    Status status;
    while (status.ok() && !failed) {
      const size_t index = next.fetch_add(1);
      if (index >= blobs.size()) break;
      status = CopyLargeBlob(blobs[index], file, progress);
    }
    if (!status.ok()) failed = true;
    return status;
  });
}

Status CheckpointWriter::Fetch(const Output& output,
                               std::span<const DataFetch> fetches) const {
  std::vector<ReadRequest> requests;
  std::vector<std::byte*> targets;
  for (const DataFetch& fetch : fetches) {
    const Piece& piece = output.pieces[fetch.source];
    if (!piece.blob) {
      const Slice& slice = contents_.tensors[piece.index].slices[piece.slice];
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
  return store_.Read(
      requests, read,
      [&](size_t r, int64_t begin, int64_t numel, const std::byte* data) {
        const size_t size =
            ElementSize(contents_.tensors[requests[r].tensor].type);
        const auto skip = static_cast<size_t>(begin - requests[r].begin);
        std::memcpy(targets[r] + skip * size, data,
                    static_cast<size_t>(numel) * size);
        return Status();
      });
}

Status CheckpointWriter::WriteFile(const Directory& folder, size_t file,
                                   ProgressMeter* progress) {
  const Output& output = outputs_[file];
  std::vector<DataSource> sources;
  sources.reserve(output.pieces.size());
  for (const Piece& piece : output.pieces) {
    const Extent& extent = ExtentOf(piece);
    sources.push_back({nullptr, extent.offset, extent.bytes});
  }
  DataWriter writer(
      std::move(sources), output.pieces_bytes,
      [&](std::span<const DataFetch> some) { return Fetch(output, some); });
  SHARD_ASSIGN_OR_RETURN(File out,
                         File::Open(folder, contents_.files[file].name,
                                    File::Mode::kCreate, File::Cache::kDirect));
  SHARD_RETURN_IF_ERROR(progress->Add(0));
  SHARD_RETURN_IF_ERROR(out.Allocate(output.layout.file_bytes()));
  SHARD_RETURN_IF_ERROR(writer.Write(&out, Threads(), progress));
  SHARD_RETURN_IF_ERROR(CopyLargeBlobs(output, out, progress));
  SHARD_RETURN_IF_ERROR(out.Sync());
  SHARD_RETURN_IF_ERROR(out.Close());
  for (size_t p = 0; p < output.pieces.size(); ++p) {
    // A blob has the source's, with which its bytes were compared.
    if (output.pieces[p].blob) continue;
    ExtentOf(output.pieces[p]).checksum = writer.checksums()[p];
  }
  return Status();
}

Status CheckpointWriter::WriteManifest(const Directory& folder) const {
  SHARD_ASSIGN_OR_RETURN(const std::vector<std::byte> manifest,
                         EncodeManifest(contents_));
  SHARD_ASSIGN_OR_RETURN(
      File file, File::Open(folder, kManifestName, File::Mode::kCreate));
  SHARD_RETURN_IF_ERROR(file.WriteExactly(0, manifest));
  SHARD_RETURN_IF_ERROR(file.Sync());
  return file.Close();
}

Status CheckpointWriter::Write(const std::string& root) {
  SHARD_RETURN_IF_ERROR(Check());
  SHARD_RETURN_IF_ERROR(CheckSize());
  Describe();
  PlaceTensors();
  PlaceBlobs();
  uint64_t total = 0;
  for (size_t f = 0; f < outputs_.size(); ++f) {
    const uint64_t bytes = outputs_[f].layout.file_bytes();
    contents_.files.push_back({DataFileName(static_cast<uint32_t>(f)), bytes});
    total += bytes;
  }
  // Whatever is wrong with it but for the checksums, which are not there yet.
  SHARD_RETURN_IF_ERROR(EncodeManifest(contents_).status());
  SHARD_ASSIGN_OR_RETURN(
      PendingCheckpoint pending,
      PendingCheckpoint::Begin(env_, root, contents_.step, options_.overwrite));
  ProgressMeter progress(options_.progress, total);
  for (size_t f = 0; f < outputs_.size(); ++f) {
    SHARD_RETURN_IF_ERROR(WriteFile(pending.directory(), f, &progress));
  }
  SHARD_RETURN_IF_ERROR(WriteManifest(pending.directory()));
  SHARD_RETURN_IF_ERROR(pending.Commit());
  // The checkpoint is there: what goes wrong with old ones is no error of it.
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
