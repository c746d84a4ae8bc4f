// SPDX-License-Identifier: Apache-2.0
//
// DataWriter: writes one data file from slices that lie in memory, or are
// fetched from elsewhere when it is their turn.
//
// The file is cut into chunks of some MiB, at page boundaries. A chunk is
// filled (the slices are copied into aligned memory, and their checksums
// computed on the way), then written in one call, past the page cache where the
// file allows it. Either each thread does both, a chunk at a time, with memory
// for one chunk; or Snapshot fills all of them at once, after which the sources
// may change while Write goes on.
//
// Thread-compatible; Write has threads of its own while it runs.

#ifndef SHARD_CORE_CHECKPOINT_DATA_DATA_WRITER_H_
#define SHARD_CORE_CHECKPOINT_DATA_DATA_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/base/file.h"
#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/checkpoint/manifest/checksum.h"
#include "core/checkpoint/store/progress.h"

namespace shard {

// `bytes` bytes at `data`, which go to `offset` in the file. Null: they are to
// be fetched.
struct DataSource {
  const std::byte* data;
  uint64_t offset;
  uint64_t bytes;
};

// Where all bytes of a source are wanted.
struct DataFetch {
  size_t source;
  std::byte* to;
};
// Fills all of them; called from several threads at once.
using FetchData = std::function<Status(std::span<const DataFetch>)>;

class DataWriter {
 public:
  // Sources as DataLayout places them: by ascending offset, not empty.
  // `file_bytes`: whole pages. `fetch`: of those without data.
  DataWriter(std::vector<DataSource> sources, uint64_t file_bytes,
             FetchData fetch = nullptr);

  // Copies everything into `room`, which is made as large as it takes and must
  // live until Write has returned. Nothing is read from the sources after.
  Status Snapshot(Mapping* room);

  // Gives the file its length and its bytes; the caller syncs it. Memory: up to
  // kChunkBytes, or kFetchedChunkBytes, and the largest slice per thread, none
  // after a snapshot. A small slice that reaches from one chunk into the next
  // is fetched for each.
  // REQUIRES: threads > 0.
  Status Write(File* file, int threads, ProgressMeter* progress);

  // By source. REQUIRES: after Snapshot or Write.
  const std::vector<Checksum>& checksums() const { return checksums_; }
  uint64_t file_bytes() const { return file_bytes_; }

  // What a chunk has when its last slice is small; large slices are whole.
  static constexpr uint64_t kChunkBytes = uint64_t{8} << 20;
  // Where there is a `fetch`, which needs memory, too.
  static constexpr uint64_t kFetchedChunkBytes = uint64_t{4} << 20;

 private:
  // Pages [begin, end) of the file.
  struct Chunk {
    uint64_t begin;
    uint64_t end;
    size_t first_source;  // That reaches into it.
  };

  void CutChunks();
  // `to`: the chunk's memory.
  Status Fill(const Chunk& chunk, std::byte* to);

  const std::vector<DataSource> sources_;
  const uint64_t file_bytes_;
  const FetchData fetch_;
  std::vector<Chunk> chunks_;
  std::vector<Checksum> checksums_;
  const std::byte* image_ = nullptr;  // Of the file, after Snapshot.
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_DATA_DATA_WRITER_H_
