// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/staged/staged_collectives.h"

#include <algorithm>

#include "core/base/dtype.h"

namespace shard::staged {

namespace {

// Chunks begin on cache lines, in tensors as well where they are aligned.
constexpr size_t kLine = 64;

size_t RoundUp(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::byte* At(const void* begin, size_t offset) {
  return static_cast<std::byte*>(const_cast<void*>(begin)) + offset;
}

// Copies that a stream makes in one operation.
class Copies {
 public:
  explicit Copies(size_t most) { parts_.reserve(most); }

  // Adds a part. Parts that follow one another on both sides become one.
  void Add(std::byte* to, const std::byte* from, size_t bytes) {
    if (bytes == 0) return;
    if (!parts_.empty()) {
      MemoryFill& last = parts_.back();
      if (At(last.to, last.bytes) == to && At(last.from, last.bytes) == from) {
        last.bytes += bytes;
        return;
      }
    }
    parts_.push_back({to, from, bytes});
  }

  void EnqueueOn(Stream* stream) {
    if (parts_.size() == 1) {
      stream->Copy(parts_[0].to, parts_[0].from, parts_[0].bytes);
    } else if (!parts_.empty()) {
      stream->Fill(std::move(parts_));
    }
  }

 private:
  std::vector<MemoryFill> parts_;
};

// Enqueues the ReduceScatter of one rank, unless it has to round a sum. Returns
// whether it did.
bool ReduceAlone(const ReduceScatterArgs& args, Stream* stream) {
  if (args.add && args.send != nullptr) return false;
  const size_t bytes = args.count * DTypeSize(args.recv_dtype);
  if (args.send == nullptr) {
    if (!args.add) stream->FillZeros(args.recv, bytes);
  } else if (args.dtype == args.recv_dtype) {
    if (args.send != args.recv) stream->Copy(args.recv, args.send, bytes);
  } else if (args.recv_dtype == DType::kF32) {
    stream->Widen(args.dtype, args.send, static_cast<float*>(args.recv),
                  args.count);
  } else {
    return false;
  }
  return true;
}

}  // namespace

size_t StagingBytes(size_t wanted, int world_size) {
  // A line for the block of each rank, one for the result, and one lost to the
  // alignment of the result.
  return std::max(RoundUp(wanted),
                  (static_cast<size_t>(world_size) + 2) * kLine);
}

bool StagedCollectives::IsOpened(std::string_view tag, const RankSet& set,
                                 Stream* stream) {
  Status opened = CheckOpened(tag, set);
  if (opened.ok()) return true;
  Enqueue(tag, /*first=*/true, stream,
          [opened = std::move(opened)](Exchange*, const Deadline&) {
            return opened;
          });
  return false;
}

template <typename EnqueueChunk>
void StagedCollectives::ForEachChunk(size_t count, size_t unit_bytes,
                                     const EnqueueChunk& enqueue) const {
  size_t chunk = (staging_.size() - kLine) / unit_bytes;
  if (chunk < count && chunk > kLine) chunk = chunk / kLine * kLine;
  size_t begin = 0;
  do {
    enqueue(begin, std::min(chunk, count - begin));
    begin += chunk;
  } while (begin < count);
}

void StagedCollectives::ReduceScatter(std::string_view tag, const RankSet& set,
                                      const ReduceScatterArgs& args,
                                      Stream* stream) {
  if (!IsOpened(tag, set, stream)) return;
  if (set.count == 1 && ReduceAlone(args, stream)) return;
  const auto ranks = static_cast<size_t>(set.count);
  const size_t size = DTypeSize(args.dtype);
  const size_t recv_size = DTypeSize(args.recv_dtype);
  ForEachChunk(
      args.count, ranks * size + recv_size, [&](size_t begin, size_t count) {
        std::byte* const sent = staging_.data();
        std::byte* const received = sent + RoundUp(ranks * count * size);
        std::byte* const result = At(args.recv, begin * recv_size);
        Copies down(ranks + 1);
        for (size_t i = 0; args.send != nullptr && i < ranks; ++i) {
          down.Add(sent + i * count * size,
                   At(args.send, (i * args.count + begin) * size),
                   count * size);
        }
        if (args.add) down.Add(received, result, count * recv_size);
        down.EnqueueOn(stream);
        ReduceScatterArgs chunk = args;
        if (args.send != nullptr) chunk.send = sent;
        chunk.count = count;
        chunk.recv = received;
        Enqueue(
            tag, begin == 0, stream,
            [tag, set, chunk](Exchange* exchange, const Deadline& deadline) {
              return exchange->ReduceScatter(tag, set, chunk, deadline);
            });
        Copies up(1);
        up.Add(result, received, count * recv_size);
        up.EnqueueOn(stream);
      });
}

void StagedCollectives::AllGatherBlocks(std::string_view tag,
                                        const RankSet& set, const void* send,
                                        size_t bytes, void* recv,
                                        Stream* stream) {
  if (!IsOpened(tag, set, stream)) return;
  const auto ranks = static_cast<size_t>(set.count);
  const auto index = static_cast<size_t>(set.IndexOf(rank_));
  const bool in_place = send == At(recv, index * bytes);
  if (ranks == 1) {
    if (!in_place) stream->Copy(recv, send, bytes);
    return;
  }
  ForEachChunk(bytes, ranks, [&](size_t begin, size_t count) {
    std::byte* const all = staging_.data();
    std::byte* const own = all + index * count;
    Copies down(1);
    down.Add(own, At(send, begin), count);
    down.EnqueueOn(stream);
    Enqueue(tag, begin == 0, stream,
            [=](Exchange* exchange, const Deadline& deadline) {
              return exchange->AllGatherBlocks(tag, set, own, count, all,
                                               deadline);
            });
    Copies up(ranks);
    for (size_t i = 0; i < ranks; ++i) {
      if (in_place && i == index) continue;
      up.Add(At(recv, i * bytes + begin), all + i * count, count);
    }
    up.EnqueueOn(stream);
  });
}

void StagedCollectives::Broadcast(std::string_view tag, int root, void* data,
                                  size_t bytes, Stream* stream) {
  ForEachChunk(bytes, 1, [&](size_t begin, size_t count) {
    std::byte* const staged = staging_.data();
    std::byte* const tensor = At(data, begin);
    Copies copy(1);
    if (rank_ == root) {
      copy.Add(staged, tensor, count);
    } else {
      copy.Add(tensor, staged, count);
    }
    if (rank_ == root) copy.EnqueueOn(stream);
    Enqueue(tag, begin == 0, stream,
            [=](Exchange* exchange, const Deadline& deadline) {
              return exchange->Broadcast(tag, root, staged, count, deadline);
            });
    if (rank_ != root) copy.EnqueueOn(stream);
  });
}

}  // namespace shard::staged
