// SPDX-License-Identifier: Apache-2.0
//
// LoadHeap: the ranks ordered by load, the least loaded first and the lowest
// rank first among equals: the order that defines ZeRO's greedy partition.
// Nodes have four children: for 16,384 ranks the heap is 7 levels deep instead
// of 14, and the children of a node share a cache line.

#ifndef SHARD_CORE_PARTITION_LOAD_HEAP_H_
#define SHARD_CORE_PARTITION_LOAD_HEAP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shard {

class LoadHeap {
 public:
  struct Entry {
    int64_t load;
    int32_t rank;
  };

  bool empty() const { return entries_.empty(); }

  // Returns the least loaded rank. REQUIRES: !empty(), as do the next two.
  const Entry& top() const { return entries_.front(); }

  void AddToTop(int64_t load) {
    Entry entry = entries_.front();
    entry.load += load;
    SiftDown(entry);
  }

  void Pop() {
    const Entry last = entries_.back();
    entries_.pop_back();
    if (!entries_.empty()) SiftDown(last);
  }

  void Push(Entry entry) {
    entries_.push_back(entry);
    size_t at = entries_.size() - 1;
    while (at > 0) {
      const size_t parent = (at - 1) / kArity;
      if (!Less(entry, entries_[parent])) break;
      entries_[at] = entries_[parent];
      at = parent;
    }
    entries_[at] = entry;
  }

  // Returns a heap of ranks 0 to world_size - 1, all without load; that order
  // is a heap already.
  static LoadHeap OfIdleRanks(int world_size) {
    LoadHeap heap;
    heap.entries_.resize(static_cast<size_t>(world_size));
    for (int32_t rank = 0; rank < world_size; ++rank) {
      heap.entries_[static_cast<size_t>(rank)] = {0, rank};
    }
    return heap;
  }

 private:
  static constexpr size_t kArity = 4;

  static bool Less(const Entry& a, const Entry& b) {
    return a.load < b.load || (a.load == b.load && a.rank < b.rank);
  }

  // Replaces the top with `entry` and moves it down to its place.
  void SiftDown(Entry entry) {
    const size_t size = entries_.size();
    size_t at = 0;
    for (;;) {
      const size_t first = kArity * at + 1;
      if (first >= size) break;
      const size_t end = std::min(first + kArity, size);
      size_t least = first;
      for (size_t child = first + 1; child < end; ++child) {
        if (Less(entries_[child], entries_[least])) least = child;
      }
      if (!Less(entries_[least], entry)) break;
      entries_[at] = entries_[least];
      at = least;
    }
    entries_[at] = entry;
  }

  std::vector<Entry> entries_;
};

}  // namespace shard

#endif  // SHARD_CORE_PARTITION_LOAD_HEAP_H_
