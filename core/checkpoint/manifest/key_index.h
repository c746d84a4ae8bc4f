// SPDX-License-Identifier: Apache-2.0
//
// KeyIndex: maps keys, which the caller holds, to their numbers, in constant
// time on average. Memory is four bytes per slot and at least two slots per
// key: a manifest of half a million tensors needs 4 MiB.
//
// The keys come from a file that may be hostile: keys whose hashes collide
// would take quadratic time. So the hash has a seed that follows from the whole
// file, and the steps are counted: after too many steps, Build starts again
// with another seed, a few times.
//
// Immutable once built.

#ifndef SHARD_CORE_CHECKPOINT_MANIFEST_KEY_INDEX_H_
#define SHARD_CORE_CHECKPOINT_MANIFEST_KEY_INDEX_H_

#include <xxhash.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace shard {

class KeyIndex {
 public:
  // Builds the index of the keys `key(i)`, i < count. kCorrupt when two are
  // equal. REQUIRES: count < 2^31.
  template <typename Key>
  Status Build(size_t count, uint64_t seed, Key key) {
    // Hashes that are as good as random need less than 1.5 steps per key.
    const size_t steps = 64 + 8 * count;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      seed_ = seed + static_cast<uint64_t>(attempt);
      slots_.assign(std::bit_ceil(2 * count), kFree);
      size_t left = steps;
      size_t inserted = 0;
      while (inserted < count) {
        const std::string_view name = key(inserted);
        size_t slot = First(name);
        while (slots_[slot] != kFree && left > 0) {
          if (key(slots_[slot]) == name) {
            return Corrupt("two of its tensors, numbers ", slots_[slot],
                           " and ", inserted, ", have the same key");
          }
          slot = (slot + 1) & (slots_.size() - 1);
          --left;
        }
        if (left == 0) break;
        slots_[slot] = static_cast<uint32_t>(inserted);
        ++inserted;
      }
      if (inserted == count) return {};
    }
    return Corrupt("its keys were made to collide");
  }

  // Returns the number of the key `name`, or -1. `key` as in Build.
  template <typename Key>
  int64_t Find(std::string_view name, Key key) const {
    if (slots_.empty()) return -1;
    for (size_t slot = First(name);; slot = (slot + 1) & (slots_.size() - 1)) {
      if (slots_[slot] == kFree) return -1;
      if (key(slots_[slot]) == name) return slots_[slot];
    }
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  static constexpr int kAttempts = 4;

  size_t First(std::string_view name) const {
    return XXH3_64bits_withSeed(name.data(), name.size(), seed_) &
           (slots_.size() - 1);
  }

  uint64_t seed_ = 0;
  std::vector<uint32_t> slots_;  // A power of two of them, half of them free.
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_MANIFEST_KEY_INDEX_H_
