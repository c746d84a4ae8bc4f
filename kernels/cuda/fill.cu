// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/device.h"
#include "kernels/cuda/fill.h"
#include "kernels/cuda/kernel.h"

namespace shard::cuda {

namespace {

// Words that a lane has on their way at a time.
constexpr int kFillWords = 8;

// Fills the words of bytes [begin, end) of a part, words of type T, with
// word(i), i the place of its first byte.
template <class T, class WordAt>
SHARD_DEVICE void FillWords(const FillPart& part, uint64_t begin, uint64_t end,
                            int lane, const WordAt& word) {
  constexpr uint64_t kStride = kLanes * sizeof(T);
  auto* const to = static_cast<char*>(part.to);
  for (uint64_t at = begin + static_cast<uint64_t>(lane) * sizeof(T); at < end;
       at += kFillWords * kStride) {
    // All loads are on their way before the first store.
    T words[kFillWords] = {};
    if (part.from != nullptr) {
      SHARD_UNROLL
      for (int k = 0; k < kFillWords; ++k) {
        const uint64_t i = at + static_cast<uint64_t>(k) * kStride;
        if (i < end) words[k] = word(i);
      }
    }
    SHARD_UNROLL
    for (int k = 0; k < kFillWords; ++k) {
      const uint64_t i = at + static_cast<uint64_t>(k) * kStride;
      if (i < end) Store(words[k], to + i);
    }
  }
}

// The same with what lies there in part.from, which is aligned to T.
template <class T>
SHARD_DEVICE void FillAligned(const FillPart& part, uint64_t begin,
                              uint64_t end, int lane) {
  const auto* const from = static_cast<const char*>(part.from);
  FillWords<T>(part, begin, end, lane,
               [&](uint64_t i) { return Load<T>(from + i); });
}

// Fills bytes [begin, end) of a part: bytes up to a multiple of sizeof(T) of
// the written address, words of type T, and the bytes that are left.
template <class T>
SHARD_DEVICE void FillBytes(const FillPart& part, uint64_t begin, uint64_t end,
                            int lane) {
  const uint64_t address = reinterpret_cast<uintptr_t>(part.to);
  const uint64_t before = (0 - (address + begin)) % sizeof(T);
  const uint64_t first = end - begin > before ? begin + before : end;
  const uint64_t last = end - (end - first) % sizeof(T);
  FillAligned<uint8_t>(part, begin, first, lane);
  FillAligned<T>(part, first, last, lane);
  FillAligned<uint8_t>(part, last, end, lane);
}

// Fills bytes [begin, end) of a part whose ends have different alignments to 4:
// a word has bytes of two adjacent words of the source. The part's first and
// last bytes are filled one by one, so that no word beyond the source is read.
SHARD_DEVICE void FillShifted(const FillPart& part, uint64_t begin,
                              uint64_t end, int lane) {
  constexpr uint64_t kWord = sizeof(uint32_t);
  const uint64_t address = reinterpret_cast<uintptr_t>(part.to);
  const uint64_t from = reinterpret_cast<uintptr_t>(part.from);
  uint64_t first = begin < kWord ? kWord : begin;
  first += (0 - (address + first)) % kWord;
  uint64_t last = part.bytes < 2 * kWord ? 0 : part.bytes - 2 * kWord;
  if (last > end) last = end;
  if (last < first) return FillAligned<uint8_t>(part, begin, end, lane);
  last -= (last - first) % kWord;
  const auto shift = static_cast<int>((from + first) % kWord);
  const char* const words = static_cast<const char*>(part.from) - shift;
  FillAligned<uint8_t>(part, begin, first, lane);
  FillWords<uint32_t>(part, first, last, lane, [&](uint64_t i) {
    return Load<uint32_t>(words + i) >> 8 * shift |
           Load<uint32_t>(words + i + kWord) << (32 - 8 * shift);
  });
  FillAligned<uint8_t>(part, last, end, lane);
}

SHARD_DEVICE void FillChunk(const FillPart& part, uint64_t chunk, int lane) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(part.to) % 16;
  const uint64_t begin = chunk == 0 ? 0 : chunk * kFillChunk - offset;
  const uint64_t end = (chunk + 1) * kFillChunk - offset;
  const uint64_t stop = end < part.bytes ? end : part.bytes;
  const uint64_t difference = part.from == nullptr
                                  ? 0
                                  : (reinterpret_cast<uintptr_t>(part.to) ^
                                     reinterpret_cast<uintptr_t>(part.from));
  if (difference % 16 == 0) {
    FillBytes<Words4>(part, begin, stop, lane);
  } else if (difference % 4 == 0) {
    FillBytes<uint32_t>(part, begin, stop, lane);
  } else {
    FillShifted(part, begin, stop, lane);
  }
}

// Returns the last part whose first chunk is not after `chunk`.
SHARD_DEVICE uint32_t PartOf(const FillArgs& args, uint32_t chunk) {
  uint32_t low = 0;
  uint32_t high = args.num_parts;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (args.first_chunks[middle] <= chunk ? low : high) = middle;
  }
  return low;
}

}  // namespace

SHARD_KERNEL(shard_fill, FillArgs) {
  ForEachOnWarp(launch, args.num_chunks, [&](uint64_t i) {
    const auto chunk = static_cast<uint32_t>(i);
    const uint32_t part = PartOf(args, chunk);
    ForEachLane([&](int lane) {
      FillChunk(args.parts[part], chunk - args.first_chunks[part], lane);
    });
  });
}

}  // namespace shard::cuda
