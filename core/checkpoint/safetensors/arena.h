// SPDX-License-Identifier: Apache-2.0
//
// Arena: memory with a limit, for data that is read from a file that may be
// hostile. Allocations stay in place until the arena is destroyed; none is
// freed singly, and no destructors run.
//
// Not thread-safe while allocating.

#ifndef SHARD_CORE_CHECKPOINT_SAFETENSORS_ARENA_H_
#define SHARD_CORE_CHECKPOINT_SAFETENSORS_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace shard {

class Arena {
 public:
  explicit Arena(uint64_t limit) : limit_(limit) {}

  // Allocates memory aligned for numbers of at most 64 bits. Null beyond the
  // limit.
  std::byte* Allocate(size_t bytes) {
    bytes = (bytes + 7) / 8 * 8;
    if (!Reserve(bytes)) return bytes > kSmall ? NewChunk(bytes) : nullptr;
    std::byte* result = begin_;
    begin_ += bytes;
    return result;
  }

  // Copies `text`, with a NUL behind it; false beyond the limit.
  bool Copy(std::string_view text, std::string_view* copy) {
    *copy = "";
    if (text.empty()) return true;
    const size_t bytes = text.size() + 1;
    std::byte* memory = nullptr;
    if (Reserve(bytes)) {
      // Text, which needs no alignment, is taken from the chunk's end.
      end_ -= bytes;
      memory = end_;
    } else if (bytes > kSmall) {
      memory = NewChunk(bytes);
    }
    if (memory == nullptr) return false;
    std::memcpy(memory, text.data(), text.size());
    memory[text.size()] = std::byte{0};
    *copy = {reinterpret_cast<const char*>(memory), text.size()};
    return true;
  }

  // Counts memory that the caller has allocated elsewhere. False beyond the
  // limit.
  bool Charge(uint64_t bytes) {
    if (bytes > limit_ - charged_) return false;
    charged_ += bytes;
    return true;
  }

 private:
  static constexpr size_t kChunkBytes = size_t{64} << 10;
  // Larger pieces are allocated separately, so that little of a chunk is
  // wasted.
  static constexpr size_t kSmall = kChunkBytes / 64;

  // Returns whether [begin_, end_) has room; for a small piece, after
  // allocating a new chunk if needed.
  bool Reserve(size_t bytes) {
    if (bytes <= static_cast<size_t>(end_ - begin_)) return true;
    if (bytes > kSmall) return false;
    std::byte* chunk = NewChunk(kChunkBytes);
    if (chunk == nullptr) return false;
    begin_ = chunk;
    end_ = chunk + kChunkBytes;
    return true;
  }

  std::byte* NewChunk(size_t bytes) {
    if (!Charge(bytes)) return nullptr;
    chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    return chunks_.back().get();
  }

  uint64_t limit_;
  uint64_t charged_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  // The free part of the last chunk.
  std::byte* begin_ = nullptr;
  std::byte* end_ = nullptr;
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_SAFETENSORS_ARENA_H_
