// SPDX-License-Identifier: Apache-2.0
//
// DataWriter: writes one data file from slices that lie in memory, or are
// fetched from elsewhere when they are written.
//
// The file is cut into chunks of some MiB, at page boundaries. A chunk is
// filled (the slices are copied into aligned memory, and their checksums
// computed on the way), then written in one call, past the page cache where the
// file allows it. Either each thread fills and writes, a chunk at a time, with
// memory for one chunk; or Snapshot fills all chunks at once, after which the
// sources may change while Write goes on.
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

// The source of a slice: `bytes` bytes at `data`, for `offset` in the file.
// Null: they are fetched.
struct DataSource {
  const std::byte* data;
  uint64_t offset;
  uint64_t bytes;
};

// A request to copy all bytes of a source to `to`.
struct DataFetch {
  size_t source;
  std::byte* to;
};
// Serves all requests. Called from several threads at once.
using FetchData = std::function<Status(std::span<const DataFetch>)>;

class DataWriter {
 public:
  // Takes sources as DataLayout places them: by ascending offset, not empty.
  // `file_bytes`: whole pages. `fetch`: for sources without data.
  DataWriter(std::vector<DataSource> sources, uint64_t file_bytes,
             FetchData fetch = nullptr);

  // Copies all sources into `room`, which is enlarged as needed and must live
  // until Write has returned. The sources are not read afterwards.
  Status Snapshot(Mapping* room);

  // Writes the file and sets its length; the caller syncs it. Memory: per
  // thread up to kChunkBytes, or kFetchedChunkBytes, and the largest slice;
  // none after a snapshot. A small slice that crosses a chunk boundary is
  // fetched for each of its chunks. REQUIRES: threads > 0.
  Status Write(File* file, int threads, ProgressMeter* progress);

  // Returns the checksums, by source. REQUIRES: Snapshot or Write has returned
  // OK.
  const std::vector<Checksum>& checksums() const { return checksums_; }
  uint64_t file_bytes() const { return file_bytes_; }

  // Bytes of a chunk whose last slice is small; large slices are not cut.
  static constexpr uint64_t kChunkBytes = uint64_t{8} << 20;
  // Bytes of such a chunk with a `fetch`, which needs memory, too.
  static constexpr uint64_t kFetchedChunkBytes = uint64_t{4} << 20;

 private:
  // Pages [begin, end) of the file.
  struct Chunk {
    uint64_t begin;
    uint64_t end;
    size_t first_source;  // The first one in the chunk.
  };

  void CutChunks();
  // Fills a chunk. `to`: the chunk's memory.
  Status Fill(const Chunk& chunk, std::byte* to);

  const std::vector<DataSource> sources_;
  const uint64_t file_bytes_;
  const FetchData fetch_;
  std::vector<Chunk> chunks_;
  std::vector<Checksum> checksums_;
  const std::byte* image_ = nullptr;  // The file in memory, after Snapshot.
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_DATA_DATA_WRITER_H_
