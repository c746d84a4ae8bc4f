// SPDX-License-Identifier: Apache-2.0
//
// PieceReader: reads ranges of elements in pieces of a few MiB, by several
// threads, into a sink.
//
// The first error, of a read, of the sink or of the progress, ends the reading;
// pieces in progress are finished, and no others are begun.

#ifndef SHARD_CORE_CHECKPOINT_STORE_PIECE_READER_H_
#define SHARD_CORE_CHECKPOINT_STORE_PIECE_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/store/progress.h"
#include "core/checkpoint/store/tensor_store.h"

namespace shard {

class PieceReader {
 public:
  static constexpr size_t kPieceBytes = size_t{4} << 20;
  // More threads would take memory without a gain.
  static constexpr int kMaxThreads = 8;

  struct Range {
    int64_t begin = 0;
    int64_t numel = 0;
    size_t element_size = 1;
  };
  // Fills `to` with elements of a range from number `begin` on. Called from
  // several threads at once.
  using Read = std::function<Status(size_t range, int64_t begin,
                                    std::span<std::byte> to)>;

  PieceReader(std::span<const Range> ranges, const Read& read);

  // Reads all ranges, on the calling thread and others; blocks until the end.
  Status Run(const ReadOptions& options, const PieceSink& sink) const;

 private:
  static int64_t PieceNumel(const Range& range) {
    return static_cast<int64_t>(kPieceBytes / range.element_size);
  }
  Status ReadPiece(size_t piece, std::vector<std::byte>* buffer,
                   const PieceSink& sink, uint64_t* bytes) const;

  std::span<const Range> ranges_;
  const Read& read_;
  // The first piece of each range; then the number of pieces.
  std::vector<size_t> first_;
  uint64_t total_bytes_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_STORE_PIECE_READER_H_
