// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/checkpoint_draft.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/element_type.h"
#include "core/base/host_memory.h"
#include "core/base/strings.h"
#include "core/checkpoint/data/data_writer.h"
#include "core/checkpoint/schema/manifest_generated.h"
#include "core/checkpoint/write_checkpoint.h"
#include "core/model/names.h"

namespace shard {

namespace {

// A blob of more bytes than a chunk of the writer is copied piece by piece.
constexpr uint64_t kLargeBlob = DataWriter::kFetchedChunkBytes;

// Tensors with fewer bytes than this for each file are not cut.
constexpr uint64_t kLeastPiece = kSliceAlignment;

// Returns the number of elements that go into one file together: those of q8
// with a scale; of opaque types bytes, which are whole elements where these
// have a power of two of bits.
int64_t UnitOf(ElementType type) {
  if (type == ElementType::kOpaque) return kSmallSliceAlignment;
  return std::max<int64_t>(InfoOf(type).block, 1);
}

class Drafter {
 public:
  Drafter(const FileStore& from, const ConvertingStore& store, int files)
      : from_(from), store_(store), given_(files) {}

  StatusOr<CheckpointDraft> Draft() {
    SHARD_RETURN_IF_ERROR(Check());
    SHARD_RETURN_IF_ERROR(CheckSize());
    Describe();
    PlaceTensors();
    PlaceBlobs();
    for (size_t f = 0; f < draft_.outputs.size(); ++f) {
      draft_.contents.files.push_back({DataFileName(static_cast<uint32_t>(f)),
                                       draft_.outputs[f].layout.file_bytes()});
    }
    return std::move(draft_);
  }

 private:
  Status Check() const;
  Status CheckSize() const;
  void Describe();
  bool IsCut(size_t tensor) const;
  void Place(size_t tensor, int64_t begin, int64_t numel, size_t file);
  void PlaceTensors();
  void PlaceBlobs();

  const FileStore& from_;
  const ConvertingStore& store_;
  const int given_;  // Number of files.
  CheckpointDraft draft_;
};

Status Drafter::Check() const {
  if (given_ < 0 || given_ > kMaxWrittenFiles) {
    return InvalidArgument("world_size is ", given_, "; allowed: 1 to ",
                           kMaxWrittenFiles,
                           ", or 0 for as many files as there are");
  }
  if (store_.num_tensors() == 0 && from_.num_tensors() > 0) {
    return InvalidArgument(from_.describe(), " has ", from_.num_tensors(),
                           " tensors, and none of the content asked for");
  }
  for (size_t t = 0; t < store_.num_tensors(); ++t) {
    const TensorInfo info = store_.tensor(t);
    if (info.shape.size() <= kMaxTensorDims) continue;
    return InvalidArgument("tensor ", QuoteName(info.key), " of ",
                           from_.describe(), " has ", info.shape.size(),
                           " dimensions; those of a checkpoint have at most ",
                           kMaxTensorDims);
  }
  return Status();
}

// Rejects a store with more bytes than the slices of a manifest can name: a
// sparse file of a few bytes may claim them.
Status Drafter::CheckSize() const {
  constexpr uint64_t kMost =
      kMaxManifestBytes / sizeof(schema::Slice) * kMaxSliceBytes;
  uint64_t total = 0;
  for (size_t t = 0; t < store_.num_tensors(); ++t) {
    const TensorInfo info = store_.tensor(t);
    if (info.alias_of >= 0) continue;
    const uint64_t bytes = TensorBytes(info);
    if (bytes > kMost - total) {
      return ResourceExhausted(
          from_.describe(), " has tensors of more than ", kMost,
          " bytes, tensor ", QuoteName(info.key),
          " included, which is more than a checkpoint can hold");
    }
    total += bytes;
  }
  // Bytes of memory per slice: here, in the manifest, and while that is built.
  constexpr uint64_t kPerSlice = 256;
  return CheckHostMemory(total / SliceBytes(total) * kPerSlice)
      .WithContext(StrCat("the manifest of ", from_.describe()));
}

void Drafter::Describe() {
  const size_t given = given_ > 0 ? static_cast<size_t>(given_)
                                  : std::max<size_t>(from_.num_files(), 1);
  draft_.outputs.resize(given);
  const Manifest* const manifest = from_.manifest();
  if (manifest != nullptr) draft_.contents = manifest->Contents();
  draft_.contents.writer = "libshard";
  // Blobs belong to the ranks that saved them.
  if (draft_.contents.blobs.empty()) {
    draft_.contents.world_size = static_cast<int32_t>(given);
  }
  uint64_t total = 0;
  for (size_t t = 0; t < store_.num_tensors(); ++t) {
    const TensorInfo info = store_.tensor(t);
    ManifestContents::Tensor& tensor = draft_.contents.tensors.emplace_back();
    if (manifest != nullptr) {
      tensor = manifest->TensorContents(store_.source(t));
      // The shorter form of the same.
      if (tensor.step == manifest->step()) tensor.step = -1;
    }
    // The conversion may have changed these.
    tensor.key = info.key;
    tensor.type = info.type;
    tensor.role = info.role;
    tensor.shape.assign(info.shape.begin(), info.shape.end());
    tensor.alias_of = info.alias_of;
    tensor.codebook = info.codebook;
    tensor.opaque = OpaqueOf(info);
    if (info.alias_of < 0) total += TensorBytes(info);
  }
  draft_.slice_bytes = SliceBytes(total);
}

bool Drafter::IsCut(size_t tensor) const {
  return draft_.outputs.size() > 1 &&
         TensorBytes(store_.tensor(tensor)) / draft_.outputs.size() >=
             kLeastPiece;
}

void Drafter::Place(size_t tensor, int64_t begin, int64_t numel, size_t file) {
  std::vector<Slice>& slices = draft_.contents.tensors[tensor].slices;
  size_t s = slices.size();
  PlaceElements(begin, numel, ElementSize(draft_.contents.tensors[tensor].type),
                static_cast<uint32_t>(file), draft_.slice_bytes,
                &draft_.outputs[file].layout, &slices);
  for (; s < slices.size(); ++s) {
    draft_.outputs[file].pieces.push_back({false, tensor, s});
  }
}

void Drafter::PlaceTensors() {
  const auto files = static_cast<int64_t>(draft_.outputs.size());
  uint64_t small = 0;  // Bytes of tensors that are not cut.
  for (size_t t = 0; t < store_.num_tensors(); ++t) {
    const TensorInfo info = store_.tensor(t);
    if (info.alias_of < 0 && !IsCut(t)) small += TensorBytes(info);
  }
  // A file's share of these bytes; tensors that follow each other stay
  // together.
  const uint64_t share = small / draft_.outputs.size() + 1;
  uint64_t before = 0;
  for (size_t t = 0; t < store_.num_tensors(); ++t) {
    const TensorInfo info = store_.tensor(t);
    const int64_t stored = StoredNumel(info);
    if (info.alias_of >= 0 || stored == 0) continue;
    if (!IsCut(t)) {
      Place(t, 0, stored, before / share);
      before += TensorBytes(info);
      continue;
    }
    const int64_t unit = UnitOf(info.type);
    const int64_t units = (stored - 1) / unit + 1;
    int64_t begin = 0;
    for (int64_t f = 0; f < files; ++f) {
      const int64_t some = (units / files + (f < units % files)) * unit;
      const int64_t numel = std::min(some, stored - begin);
      Place(t, begin, numel, static_cast<size_t>(f));
      begin += numel;
    }
  }
}

void Drafter::PlaceBlobs() {
  const size_t count = draft_.contents.blobs.size();
  for (const bool large : {false, true}) {
    for (size_t b = 0; b < count; ++b) {
      Extent& extent = draft_.contents.blobs[b].extent;
      if (extent.bytes == 0 || (extent.bytes > kLargeBlob) != large) continue;
      const size_t file = static_cast<size_t>(draft_.contents.blobs[b].rank) %
                          draft_.outputs.size();
      CheckpointDraft::Output& output = draft_.outputs[file];
      extent.file = static_cast<uint32_t>(file);
      extent.offset = output.layout.Add(extent.bytes);
      if (large) {
        output.large_blobs.push_back(b);
      } else {
        output.pieces.push_back({true, b, 0});
      }
    }
    if (large) continue;
    for (CheckpointDraft::Output& output : draft_.outputs) {
      output.pieces_bytes = output.layout.file_bytes();
    }
  }
}

}  // namespace

StatusOr<CheckpointDraft> DraftCheckpoint(const FileStore& from,
                                          const ConvertingStore& store,
                                          int files) {
  return Drafter(from, store, files).Draft();
}

}  // namespace shard
