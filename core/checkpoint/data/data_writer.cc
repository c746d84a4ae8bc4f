// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/data/data_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/host_memory.h"
#include "core/base/parallel.h"
#include "core/base/rounding.h"
#include "core/base/strings.h"
#include "core/checkpoint/manifest/manifest.h"

namespace shard {

namespace {

// Allocates the pages that a thread, or a snapshot, fills.
Status Resize(Mapping* room, uint64_t bytes, const char* what) {
  if (room->size() >= bytes) return Status();
  // Frees the old memory first, so that only one of both is held.
  *room = Mapping();
  SHARD_RETURN_IF_ERROR(CheckHostMemory(bytes).WithContext(what));
  auto mapping = Mapping::Anonymous(bytes);
  if (!mapping.ok()) return mapping.status().WithContext(what);
  *room = *std::move(mapping);
  return Status();
}

}  // namespace

DataWriter::DataWriter(std::vector<DataSource> sources, uint64_t file_bytes,
                       FetchData fetch)
    : sources_(std::move(sources)),
      file_bytes_(file_bytes),
      fetch_(std::move(fetch)),
      checksums_(sources_.size()) {
  CutChunks();
}

void DataWriter::CutChunks() {
  if (file_bytes_ == 0) return;
  const uint64_t most = fetch_ ? kFetchedChunkBytes : kChunkBytes;
  chunks_.push_back({0, file_bytes_, 0});
  for (size_t s = 0; s < sources_.size(); ++s) {
    const DataSource& source = sources_[s];
    Chunk& last = chunks_.back();
    if (source.offset + source.bytes - last.begin <= most) continue;
    // A large slice begins at a page. A small one may reach from one chunk into
    // the next.
    const uint64_t begin = RoundUp(source.offset, kSliceAlignment);
    if (begin == last.begin || begin >= file_bytes_) continue;
    last.end = begin;
    chunks_.push_back({begin, file_bytes_, s});
  }
}

Status DataWriter::Fill(const Chunk& chunk, std::byte* to) {
  uint64_t at = chunk.begin;  // Filled up to here.
  std::vector<DataFetch> fetches;
  // Slices that reach beyond the chunk are fetched into other memory, and
  // copied from there.
  struct Part {
    std::vector<std::byte> whole;
    uint64_t skip;
    uint64_t bytes;
    std::byte* target;
  };
  std::vector<Part> parts;
  for (size_t s = chunk.first_source; s < sources_.size(); ++s) {
    const DataSource& source = sources_[s];
    if (source.offset >= chunk.end) break;
    const uint64_t begin = std::max(source.offset, chunk.begin);
    const uint64_t end = std::min(source.offset + source.bytes, chunk.end);
    if (end <= begin) continue;
    std::memset(to + (at - chunk.begin), 0, begin - at);
    std::byte* const target = to + (begin - chunk.begin);
    const bool whole = end - begin == source.bytes;
    if (source.data == nullptr) {
      fetches.push_back({s, target});
      if (!whole) {
        Part& part = parts.emplace_back();
        part.whole.resize(source.bytes);
        part.skip = begin - source.offset;
        part.bytes = end - begin;
        part.target = target;
        fetches.back().to = part.whole.data();
      }
    } else if (whole) {
      checksums_[s] = CopyWithChecksum(target, source.data, source.bytes);
    } else {
      // The checksum of a small slice is computed in the chunk in which it
      // begins.
      if (begin == source.offset) {
        checksums_[s] = ChecksumOf(source.data, source.bytes);
      }
      std::memcpy(target, source.data + (begin - source.offset), end - begin);
    }
    at = end;
  }
  std::memset(to + (at - chunk.begin), 0, chunk.end - at);
  if (fetches.empty()) return Status();
  SHARD_RETURN_IF_ERROR(fetch_(fetches));
  for (const DataFetch& fetch : fetches) {
    const DataSource& source = sources_[fetch.source];
    // Only the chunk in which a slice begins stores its checksum: one thread.
    if (source.offset < chunk.begin) continue;
    checksums_[fetch.source] = ChecksumOf(fetch.to, source.bytes);
  }
  for (const Part& part : parts) {
    std::memcpy(part.target, part.whole.data() + part.skip, part.bytes);
  }
  return Status();
}

Status DataWriter::Snapshot(Mapping* room) {
  SHARD_RETURN_IF_ERROR(
      Resize(room, file_bytes_, "the snapshot of an asynchronous save"));
  for (const Chunk& chunk : chunks_) {
    SHARD_RETURN_IF_ERROR(Fill(chunk, room->data() + chunk.begin));
  }
  image_ = room->data();
  return Status();
}

Status DataWriter::Write(File* file, int threads, ProgressMeter* progress) {
  // Reports progress, and may be cancelled, even where nothing is written.
  SHARD_RETURN_IF_ERROR(progress->Add(0));
  SHARD_RETURN_IF_ERROR(file->Allocate(file_bytes_));
  std::vector<Mapping> rooms(static_cast<size_t>(threads));
  return ParallelFor(
      chunks_.size(), threads, [&](size_t index, int thread) -> Status {
        const Chunk& chunk = chunks_[index];
        const size_t bytes = chunk.end - chunk.begin;
        const std::byte* data = nullptr;
        if (image_ != nullptr) {
          data = image_ + chunk.begin;
        } else {
          Mapping& room = rooms[static_cast<size_t>(thread)];
          SHARD_RETURN_IF_ERROR(Resize(&room, bytes, "a chunk of a data file"));
          SHARD_RETURN_IF_ERROR(Fill(chunk, room.data()));
          data = room.data();
        }
        SHARD_RETURN_IF_ERROR(file->WriteExactly(chunk.begin, {data, bytes}));
        return progress->Add(bytes);
      });
}

}  // namespace shard
