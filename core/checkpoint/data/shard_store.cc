// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/data/shard_store.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "core/base/host_memory.h"
#include "core/base/mapping.h"
#include "core/base/parallel.h"
#include "core/base/rounding.h"
#include "core/base/strings.h"
#include "core/checkpoint/manifest/manifest_header.h"

namespace shard {

namespace {

// The most bytes of a run, unless it is one slice; a blob is read in pieces of
// this size.
constexpr uint64_t kRunBytes = uint64_t{8} << 20;
// Bytes between requested ones are read too when they are fewer than this: a
// disk takes longer to start another read.
constexpr uint64_t kReadThrough = uint64_t{64} << 10;

bool IsZeros(const std::byte* data, uint64_t bytes) {
  return std::all_of(data, data + bytes,
                     [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

// A range of bytes in a file, and its contents.
struct ShardStore::Piece {
  enum class Kind : uint8_t {
    kElements,  // A part of a slice, for a request.
    kBlob,
    kPadding,
  };

  Kind kind = Kind::kElements;
  bool check = true;  // Compare with `checksum`, or with zeros.
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Checksum checksum;
  size_t index = 0;    // Number of the tensor or blob.
  size_t request = 0;  // kElements
  // The requested part of the slice: first element, and bytes from `offset`.
  int64_t begin = 0;
  int64_t numel = 0;
  uint64_t skip = 0;
};

struct ShardStore::Run {
  size_t first_piece;
  size_t num_pieces;
  uint64_t begin;  // Position in the file.
  uint64_t end;
};

StatusOr<std::shared_ptr<const ShardStore>> ShardStore::Open(
    const Directory& folder) {
  std::shared_ptr<ShardStore> store(new ShardStore);
  store->path_ = folder.path();
  store->describe_ = StrCat("checkpoint '", folder.path(), "'");
  SHARD_ASSIGN_OR_RETURN(File file,
                         File::Open(folder, kManifestName, File::Mode::kRead));
  SHARD_ASSIGN_OR_RETURN(const uint64_t bytes, file.Size());
  // Checks the header first: a file that is no manifest takes no memory.
  std::array<std::byte, kManifestHeaderBytes> header;
  const auto start =
      std::span(header).first(std::min<uint64_t>(bytes, header.size()));
  SHARD_RETURN_IF_ERROR(file.ReadExactly(0, start));
  Status status = ReadManifestVersion(start, bytes).status();
  // Memory of the file, and the most that Manifest takes beside it. Small ones
  // are not checked: hosts report less memory as available than they would
  // give.
  constexpr uint64_t kSmall = uint64_t{16} << 20;
  if (status.ok() && bytes > kSmall) {
    status = CheckHostMemory(bytes + bytes / 3 + kSmall);
  }
  if (!status.ok()) return status.WithContext(file.path());
  std::vector<std::byte> content(bytes);
  SHARD_RETURN_IF_ERROR(file.ReadExactly(0, content));
  auto manifest = Manifest::Parse(std::move(content));
  if (!manifest.ok()) return manifest.status().WithContext(file.path());
  store->manifest_ = *std::move(manifest);
  store->manifest_bytes_ = bytes;
  SHARD_ASSIGN_OR_RETURN(store->folder_, folder.Duplicate());
  SHARD_RETURN_IF_ERROR(store->OpenFiles());
  return std::shared_ptr<const ShardStore>(std::move(store));
}

Status ShardStore::OpenFiles() {
  files_.reserve(manifest_->num_files());
  for (size_t f = 0; f < manifest_->num_files(); ++f) {
    const std::string name(manifest_->file_name(f));
    auto file = PooledFile::Open(folder_, name, File::Mode::kRead,
                                 File::Cache::kDirect);
    if (file.status().code() == StatusCode::kNotFound) {
      return Corrupt(folder_.PathOf(name),
                     " is missing; the manifest names it: the checkpoint is "
                     "not complete");
    }
    // Another kind of file has the name.
    if (file.status().code() == StatusCode::kFailedPrecondition) {
      return Corrupt(file.status().message(),
                     "; the manifest names it as a data file");
    }
    if (!file.ok()) return file.status();
    SHARD_ASSIGN_OR_RETURN(const uint64_t bytes, file->Size());
    if (bytes != manifest_->file_bytes(f)) {
      return Corrupt(file->path(), " has ", bytes, " bytes; the manifest says ",
                     manifest_->file_bytes(f),
                     ": it was cut, or belongs to another checkpoint");
    }
    files_.push_back(*std::move(file));
  }
  return Status();
}

ShardStore::Piece ShardStore::PieceOfBlob(size_t index) const {
  const Extent extent = manifest_->blob(index).extent;
  Piece piece;
  piece.kind = Piece::Kind::kBlob;
  piece.index = index;
  piece.file = extent.file;
  piece.offset = extent.offset;
  piece.bytes = extent.bytes;
  piece.checksum = extent.checksum;
  return piece;
}

void ShardStore::AddPieces(const ReadRequest& request, size_t index, bool whole,
                           std::vector<Piece>* pieces) const {
  const TensorInfo info = manifest_->tensor(request.tensor);
  const uint64_t size = ElementSize(info.type);
  const int64_t end = request.begin + request.numel;
  const size_t first = manifest_->SliceAt(request.tensor, request.begin);
  for (size_t s = first; s < manifest_->num_slices(request.tensor); ++s) {
    const Slice slice = manifest_->slice(request.tensor, s);
    if (slice.begin >= end) break;
    Piece piece;
    piece.index = request.tensor;
    piece.request = index;
    piece.file = slice.extent.file;
    piece.begin = std::max(slice.begin, request.begin);
    piece.numel = std::min(slice.begin + slice.numel, end) - piece.begin;
    piece.skip = static_cast<uint64_t>(piece.begin - slice.begin) * size;
    if (whole) {
      piece.offset = slice.extent.offset;
      piece.bytes = slice.extent.bytes;
      piece.checksum = slice.extent.checksum;
    } else {
      piece.check = false;
      piece.offset = slice.extent.offset + piece.skip;
      piece.bytes = static_cast<uint64_t>(piece.numel) * size;
      piece.skip = 0;
    }
    pieces->push_back(piece);
  }
}

std::vector<ShardStore::Run> ShardStore::CutRuns(
    std::span<const Piece> pieces) const {
  std::vector<Run> runs;
  for (size_t p = 0; p < pieces.size(); ++p) {
    const Piece& piece = pieces[p];
    const uint64_t end = piece.offset + piece.bytes;
    if (!runs.empty() && pieces[p - 1].file == piece.file) {
      Run& last = runs.back();
      if (piece.offset <= last.end + kReadThrough &&
          std::max(end, last.end) - last.begin <= kRunBytes) {
        last.end = std::max(last.end, end);
        ++last.num_pieces;
        continue;
      }
    }
    runs.push_back({p, 1, RoundDown(piece.offset, kSliceAlignment), end});
  }
  return runs;
}

Status ShardStore::ReadPieces(std::span<const Piece> pieces,
                              const ReadOptions& options, const PieceSink& sink,
                              std::vector<std::string>* problems) const {
  const std::vector<Run> runs = CutRuns(pieces);
  uint64_t total = 0;
  for (const Run& run : runs) total += run.end - run.begin;
  ProgressMeter progress(options.progress, total);
  std::mutex mutex;
  std::map<size_t, std::string> found;  // By piece.
  const int threads = std::max(options.threads, 1);
  std::vector<Mapping> rooms(static_cast<size_t>(threads));

  const auto read = [&](size_t index, int thread) -> Status {
    const Run& run = runs[index];
    const Piece& first = pieces[run.first_piece];
    // A large blob is a run of its own.
    const bool streamed =
        first.kind == Piece::Kind::kBlob && first.bytes > kRunBytes;
    // Files are whole pages, so this does not reach beyond one.
    const uint64_t bytes =
        streamed ? kRunBytes : RoundUp(run.end, kSliceAlignment) - run.begin;
    Mapping& room = rooms[static_cast<size_t>(thread)];
    if (room.size() < bytes) {
      room = Mapping();
      SHARD_ASSIGN_OR_RETURN(room,
                             Mapping::Anonymous(std::max(bytes, kRunBytes)));
    }
    if (streamed) {
      const Status status =
          StreamPiece(first, {room.data(), kRunBytes},
                      [&](uint64_t, std::span<const std::byte> some) {
                        return progress.Add(some.size());
                      });
      if (problems == nullptr || status.code() != StatusCode::kCorrupt) {
        return status;
      }
      const std::lock_guard<std::mutex> lock(mutex);
      found[run.first_piece] = status.message();
      return Status();
    }
    const PooledFile& file = files_[first.file];
    SHARD_RETURN_IF_ERROR(file.ReadExactly(run.begin, {room.data(), bytes}));
    for (size_t p = run.first_piece; p < run.first_piece + run.num_pieces;
         ++p) {
      const Piece& piece = pieces[p];
      const std::byte* const data = room.data() + (piece.offset - run.begin);
      if (const Status status = CheckPiece(piece, data); !status.ok()) {
        if (problems == nullptr) return status;
        const std::lock_guard<std::mutex> lock(mutex);
        found[p] = status.message();
        continue;
      }
      if (piece.kind == Piece::Kind::kPadding || !sink) continue;
      SHARD_RETURN_IF_ERROR(
          sink(piece.request, piece.begin, piece.numel, data + piece.skip));
    }
    return progress.Add(run.end - run.begin);
  };
  const Status status = ParallelFor(runs.size(), threads, read);
  for (auto& [piece, message] : found) problems->push_back(std::move(message));
  return status;
}

std::string ShardStore::NameOf(const Piece& piece) const {
  switch (piece.kind) {
    case Piece::Kind::kElements:
      return StrCat("tensor '", manifest_->tensor(piece.index).key, "'");
    case Piece::Kind::kBlob:
      return StrCat("blob '", manifest_->blob(piece.index).name, "' of rank ",
                    manifest_->blob(piece.index).rank);
    case Piece::Kind::kPadding:
      return "padding";
  }
  return "";
}

Status ShardStore::CheckPiece(const Piece& piece, const std::byte* data) const {
  if (!piece.check) return Status();
  if (piece.kind == Piece::Kind::kPadding) {
    if (IsZeros(data, piece.bytes)) return Status();
    return Corrupt(files_[piece.file].path(), ": padding at ", piece.offset,
                   " (", piece.bytes, " bytes) is not zeros");
  }
  return CheckChecksum(piece, ChecksumOf(data, piece.bytes));
}

Status ShardStore::CheckChecksum(const Piece& piece,
                                 const Checksum& checksum) const {
  if (checksum == piece.checksum) return Status();
  return Corrupt(NameOf(piece), " is damaged in ", files_[piece.file].path(),
                 " at ", piece.offset, " (", piece.bytes, " bytes): checksum ",
                 ChecksumText(checksum), ", written was ",
                 ChecksumText(piece.checksum));
}

Status ShardStore::Read(std::span<const ReadRequest> requests,
                        const ReadOptions& options,
                        const PieceSink& sink) const {
  std::vector<Piece> pieces;
  for (size_t r = 0; r < requests.size(); ++r) {
    const ReadRequest& request = requests[r];
    SHARD_RETURN_IF_ERROR(CheckRequest(*this, request, options));
    if (request.numel > 0) AddPieces(request, r, options.verify, &pieces);
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.file != b.file ? a.file < b.file : a.offset < b.offset;
  });
  return ReadPieces(pieces, options, sink, nullptr);
}

Status ShardStore::StreamPiece(const Piece& piece, std::span<std::byte> room,
                               const BlobSink& sink) const {
  ChecksumStream checksum;
  for (uint64_t done = 0; done < piece.bytes;) {
    const auto part =
        room.first(std::min<uint64_t>(room.size(), piece.bytes - done));
    SHARD_RETURN_IF_ERROR(
        files_[piece.file].ReadExactly(piece.offset + done, part));
    checksum.Add(part.data(), part.size());
    if (sink) SHARD_RETURN_IF_ERROR(sink(done, part));
    done += part.size();
  }
  return CheckChecksum(piece, checksum.Finish());
}

Status ShardStore::CheckBlobNumber(size_t index) const {
  if (index < manifest_->num_blobs()) return Status();
  return OutOfRange("blob ", index, " does not exist; ", describe_, " has ",
                    manifest_->num_blobs());
}

Status ShardStore::StreamBlob(size_t index, const BlobSink& sink) const {
  SHARD_RETURN_IF_ERROR(CheckBlobNumber(index));
  const Piece piece = PieceOfBlob(index);
  if (piece.bytes == 0) return Status();
  SHARD_ASSIGN_OR_RETURN(
      const Mapping room,
      Mapping::Anonymous(
          std::min(RoundUp(piece.bytes, kSliceAlignment), kRunBytes)));
  return StreamPiece(piece, {room.data(), room.size()}, sink);
}

Status ShardStore::Verify(const ReadOptions& options,
                          std::vector<std::string>* problems) const {
  std::vector<Piece> pieces;
  for (size_t t = 0; t < num_tensors(); ++t) {
    const TensorInfo info = tensor(t);
    const int64_t stored = StoredNumel(info);
    if (info.alias_of >= 0 || stored == 0) continue;
    AddPieces({t, 0, stored}, 0, true, &pieces);
  }
  for (size_t b = 0; b < manifest_->num_blobs(); ++b) {
    if (manifest_->blob(b).extent.bytes > 0) pieces.push_back(PieceOfBlob(b));
  }
  const auto in_order = [](const Piece& a, const Piece& b) {
    return a.file != b.file ? a.file < b.file : a.offset < b.offset;
  };
  std::sort(pieces.begin(), pieces.end(), in_order);
  // The bytes between slices.
  std::vector<uint64_t> ends(files_.size());
  const size_t num_extents = pieces.size();
  const auto add_padding = [&](uint32_t file, uint64_t end) {
    if (end <= ends[file]) return;
    Piece piece;
    piece.kind = Piece::Kind::kPadding;
    piece.file = file;
    piece.offset = ends[file];
    piece.bytes = end - ends[file];
    pieces.push_back(piece);
  };
  for (size_t p = 0; p < num_extents; ++p) {
    const Piece piece = pieces[p];
    add_padding(piece.file, piece.offset);
    ends[piece.file] = piece.offset + piece.bytes;
  }
  for (uint32_t f = 0; f < ends.size(); ++f) {
    add_padding(f, manifest_->file_bytes(f));
  }
  std::sort(pieces.begin(), pieces.end(), in_order);
  return ReadPieces(pieces, options, PieceSink(), problems);
}

}  // namespace shard
