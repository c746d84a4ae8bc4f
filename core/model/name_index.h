// SPDX-License-Identifier: Apache-2.0
//
// NameIndex: finds out whether a name is taken, in constant time on average
// even when one module has a million names. An entry is 32 bits of the name's
// hash and an id, not the name: 8 bytes, and growing the index reads no string.
// The owner of the names compares them.

#ifndef SHARD_CORE_MODEL_NAME_INDEX_H_
#define SHARD_CORE_MODEL_NAME_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace shard {

class NameIndex {
 public:
  // Returns the hash of a name in a module, which differs from process to
  // process.
  static uint64_t HashOf(int32_t module, std::string_view name);

  // Returns true when `matches(id)` holds for some id inserted with this hash.
  template <typename Matches>
  bool Contains(uint64_t hash, Matches matches) const {
    if (entries_.empty()) return false;
    const auto tag = static_cast<uint32_t>(hash);
    for (size_t i = tag & mask();; i = (i + 1) & mask()) {
      const Entry& entry = entries_[i];
      if (entry.id == kFree) return false;
      if (entry.tag == tag && matches(entry.id)) return true;
    }
  }

  // Makes room for one more entry, so that the next Insert allocates nothing.
  void MakeRoom() {
    // The table is at most half full, so linear probing takes one or two steps.
    if (2 * (size_ + 1) > entries_.size()) Grow();
  }

  // Adds an entry. REQUIRES: id != 0.
  void Insert(uint64_t hash, int32_t id) {
    MakeRoom();
    Place(static_cast<uint32_t>(hash), id);
    ++size_;
  }

 private:
  static constexpr int32_t kFree = 0;

  struct Entry {
    uint32_t tag = 0;
    int32_t id = kFree;
  };

  size_t mask() const { return entries_.size() - 1; }

  void Place(uint32_t tag, int32_t id) {
    size_t i = tag & mask();
    while (entries_[i].id != kFree) i = (i + 1) & mask();
    entries_[i] = {tag, id};
  }

  void Grow() {
    std::vector<Entry> old(entries_.empty() ? 16 : 2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.id != kFree) Place(entry.tag, entry.id);
    }
  }

  std::vector<Entry> entries_;  // The size is a power of two, or 0.
  size_t size_ = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_MODEL_NAME_INDEX_H_
