// SPDX-License-Identifier: Apache-2.0

#include "core/partition/greedy.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace shard {

namespace {

struct Item {
  int64_t numel;
  int32_t index;
};

// Sorts stably, by descending numel: a radix sort by 11 bits from the low end,
// which skips the digits that all items share. The sizes of a million
// parameters have some 32 bits, so this takes 3 passes where a comparison sort
// takes 20.
void SortDescending(std::vector<Item>* items) {
  constexpr int kBits = 11;
  constexpr size_t kBuckets = size_t{1} << kBits;
  int64_t varying = 0;
  for (const Item& item : *items) varying |= item.numel ^ items->front().numel;
  std::vector<Item> other;
  for (int shift = 0; shift < 64; shift += kBits) {
    const auto digit = [shift](int64_t numel) {
      return static_cast<size_t>(numel >> shift) & (kBuckets - 1);
    };
    if (digit(varying) == 0) continue;
    std::array<size_t, kBuckets> next{};
    for (const Item& item : *items) ++next[digit(item.numel)];
    size_t start = 0;
    for (size_t bucket = kBuckets; bucket > 0; --bucket) {
      const size_t count = next[bucket - 1];
      next[bucket - 1] = start;
      start += count;
    }
    other.resize(items->size());
    for (const Item& item : *items) other[next[digit(item.numel)]++] = item;
    items->swap(other);
  }
}

}  // namespace

Status GreedyPartitioner::AddGroup(const std::vector<int64_t>& numels,
                                   Assignment* assignment) {
  const size_t base = assignment->owners.size();
  int64_t total = total_;
  std::vector<Item> items;
  items.reserve(numels.size());
  for (size_t i = 0; i < numels.size(); ++i) {
    if (numels[i] < 0) {
      return InvalidArgument("parameter ", base + i, " has ", numels[i],
                             " elements");
    }
    if (__builtin_add_overflow(total, numels[i], &total)) {
      return InvalidArgument("the ", base + numels.size(),
                             " parameters have more than 2^63-1 elements "
                             "together");
    }
    items.push_back({numels[i], static_cast<int32_t>(base + i)});
  }
  total_ = total;
  SortDescending(&items);

  assignment->owners.resize(base + numels.size());
  assignment->order.reserve(base + numels.size());
  for (const Item& item : items) {
    assignment->owners[static_cast<size_t>(item.index)] = loads_.top().rank;
    assignment->order.push_back(item.index);
    loads_.AddToTop(item.numel);
  }
  return Status();
}

StatusOr<Assignment> PartitionGreedy(
    const std::vector<std::vector<int64_t>>& groups, int world_size) {
  if (world_size < 1) {
    return InvalidArgument("world size ", world_size, " is below 1");
  }
  GreedyPartitioner partitioner(world_size);
  Assignment assignment;
  for (const std::vector<int64_t>& group : groups) {
    SHARD_RETURN_IF_ERROR(partitioner.AddGroup(group, &assignment));
  }
  return assignment;
}

}  // namespace shard
