// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/piece_reader.h"

#include <algorithm>
#include <system_error>
#include <thread>

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

Status PieceReader::Run(const ReadOptions& options, const PieceSink& sink) {
  const size_t limit = std::min<size_t>(first_.back(), kMaxThreads);
  const auto threads = static_cast<size_t>(std::max(options.threads, 1));
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < std::min(threads, limit); ++i) {
      // Without more threads it only takes longer.
      try {
        others.emplace_back([&] { Work(options, sink); });
      } catch (const std::system_error&) {
        break;
      }
    }
    Work(options, sink);
  }
  return status_;
}

void PieceReader::Work(const ReadOptions& options, const PieceSink& sink) {
  std::vector<std::byte> buffer;
  while (!stop_.load()) {
    const size_t piece = next_.fetch_add(1);
    if (piece >= first_.back()) return;
    uint64_t bytes = 0;
    Status status = ReadPiece(piece, &buffer, sink, &bytes);
    if (status.ok()) status = Report(options.progress, bytes);
    if (status.ok()) continue;
    stop_.store(true);
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
  }
}

Status PieceReader::ReadPiece(size_t piece, std::vector<std::byte>* buffer,
                              const PieceSink& sink, uint64_t* bytes) {
  // The last range that begins there or before: empty ones have no pieces.
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

Status PieceReader::Report(const Progress& progress, uint64_t bytes) {
  if (progress == nullptr) return Status();
  const std::lock_guard lock(mutex_);
  // After an error or a cancellation nobody is called any more.
  if (!status_.ok() || stop_.load()) return Status();
  done_bytes_ += bytes;
  if (progress(done_bytes_, total_bytes_)) return Status();
  stop_.store(true);
  return Cancelled("cancelled after ", done_bytes_, " of ", total_bytes_,
                   " bytes");
}

}  // namespace shard
