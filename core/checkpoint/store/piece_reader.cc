// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/store/piece_reader.h"

#include <algorithm>

#include "core/base/parallel.h"

namespace shard {

PieceReader::PieceReader(std::span<const Range> ranges, const Read& read)
    : ranges_(ranges), read_(read) {
  first_.reserve(ranges.size() + 1);
  first_.push_back(0);
  for (const Range& range : ranges) {
    const int64_t piece = PieceNumel(range);
    const int64_t pieces = range.numel / piece + (range.numel % piece != 0);
    first_.push_back(first_.back() + static_cast<size_t>(pieces));
    total_bytes_ += static_cast<uint64_t>(range.numel) * range.element_size;
  }
}

Status PieceReader::Run(const ReadOptions& options,
                        const PieceSink& sink) const {
  ProgressMeter progress(options.progress, total_bytes_);
  const int threads = std::clamp(options.threads, 1, kMaxThreads);
  std::vector<std::vector<std::byte>> buffers(static_cast<size_t>(threads));
  return ParallelFor(
      first_.back(), threads, [&](size_t piece, int thread) -> Status {
        uint64_t bytes = 0;
        SHARD_RETURN_IF_ERROR(ReadPiece(
            piece, &buffers[static_cast<size_t>(thread)], sink, &bytes));
        return progress.Add(bytes);
      });
}

Status PieceReader::ReadPiece(size_t piece, std::vector<std::byte>* buffer,
                              const PieceSink& sink, uint64_t* bytes) const {
  // Finds the last range that begins at this piece or before: empty ranges have
  // no pieces.
  const auto after = std::upper_bound(first_.begin(), first_.end(), piece);
  const auto index = static_cast<size_t>(after - first_.begin()) - 1;
  const Range& range = ranges_[index];
  const int64_t skip =
      static_cast<int64_t>(piece - first_[index]) * PieceNumel(range);
  const int64_t numel = std::min(PieceNumel(range), range.numel - skip);
  *bytes = static_cast<uint64_t>(numel) * range.element_size;
  if (buffer->size() < *bytes) buffer->resize(*bytes);
  const int64_t begin = range.begin + skip;
  SHARD_RETURN_IF_ERROR(read_(index, begin, std::span(*buffer).first(*bytes)));
  return sink(index, begin, numel, buffer->data());
}

}  // namespace shard
