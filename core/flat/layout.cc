// SPDX-License-Identifier: Apache-2.0

#include "core/flat/layout.h"

#include <algorithm>
#include <cstddef>

namespace shard {

namespace {

Status CheckInputs(const std::vector<ParamId>& params,
                   const std::vector<int64_t>& numels, int world_size,
                   int64_t alignment) {
  if (params.size() != numels.size()) {
    return InvalidArgument("the layout was given ", params.size(),
                           " parameters but ", numels.size(),
                           " element counts");
  }
  if (world_size < 1 || world_size > kMaxWorldSize) {
    return InvalidArgument("world size ", world_size, " is outside 1 to ",
                           kMaxWorldSize);
  }
  if (alignment < 1) {
    return InvalidArgument("alignment ", alignment, " is below 1 element");
  }
  return Status();
}

Status CheckNumel(ParamId param, int64_t numel) {
  if (numel >= 0) return Status();
  return InvalidArgument("parameter ", param, " has ", numel, " elements");
}

// `numel` elements rounded up to the alignment, such that world_size of them
// can still be counted.
StatusOr<int64_t> ShardNumel(int64_t numel, int world_size, int64_t alignment) {
  const int64_t remainder = numel % alignment;
  int64_t padded = numel;
  int64_t total = 0;
  if ((remainder != 0 &&
       __builtin_add_overflow(numel, alignment - remainder, &padded)) ||
      __builtin_mul_overflow(padded, static_cast<int64_t>(world_size),
                             &total)) {
    return InvalidArgument("a flat buffer of ", world_size, " ranges of ",
                           numel, " elements, aligned to ", alignment,
                           ", has more than 2^63-1 elements");
  }
  return padded;
}

Status TooLarge(size_t count) {
  return InvalidArgument("the ", count,
                         " parameters of a flat buffer have more than 2^63-1 "
                         "elements together");
}

}  // namespace

StatusOr<FlatLayout> FlatLayout::Even(const std::vector<ParamId>& params,
                                      const std::vector<int64_t>& numels,
                                      int world_size, int64_t alignment) {
  SHARD_RETURN_IF_ERROR(CheckInputs(params, numels, world_size, alignment));
  FlatLayout layout;
  layout.world_size_ = world_size;
  layout.slots_.reserve(params.size());
  int64_t offset = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    SHARD_RETURN_IF_ERROR(CheckNumel(params[i], numels[i]));
    layout.slots_.push_back({params[i], offset, numels[i]});
    if (__builtin_add_overflow(offset, numels[i], &offset)) {
      return TooLarge(params.size());
    }
  }
  layout.numel_ = offset;
  const int64_t share = offset / world_size + (offset % world_size != 0);
  SHARD_ASSIGN_OR_RETURN(layout.shard_numel_,
                         ShardNumel(share, world_size, alignment));
  return layout;
}

StatusOr<FlatLayout> FlatLayout::Owned(const std::vector<ParamId>& params,
                                       const std::vector<int64_t>& numels,
                                       const std::vector<int32_t>& owners,
                                       int world_size, int64_t alignment) {
  SHARD_RETURN_IF_ERROR(CheckInputs(params, numels, world_size, alignment));
  if (owners.size() != params.size()) {
    return InvalidArgument("the layout was given ", params.size(),
                           " parameters but ", owners.size(), " owners");
  }
  FlatLayout layout;
  layout.world_size_ = world_size;

  // A counting sort by owner: where the next slot of each rank goes, and at
  // which offset.
  struct Cursor {
    int64_t numel = 0;
    size_t slot = 0;
  };
  std::vector<Cursor> cursors(static_cast<size_t>(world_size));
  for (size_t i = 0; i < params.size(); ++i) {
    SHARD_RETURN_IF_ERROR(CheckNumel(params[i], numels[i]));
    if (owners[i] < 0 || owners[i] >= world_size) {
      return InvalidArgument("the owner of parameter ", params[i], " is rank ",
                             owners[i], ", but the world size is ", world_size);
    }
    Cursor& cursor = cursors[static_cast<size_t>(owners[i])];
    if (__builtin_add_overflow(layout.numel_, numels[i], &layout.numel_)) {
      return TooLarge(params.size());
    }
    cursor.numel += numels[i];  // At most numel_, which has not overflowed.
    ++cursor.slot;
  }
  int64_t largest = 0;
  for (const Cursor& cursor : cursors) {
    largest = std::max(largest, cursor.numel);
  }
  SHARD_ASSIGN_OR_RETURN(layout.shard_numel_,
                         ShardNumel(largest, world_size, alignment));

  size_t next_slot = 0;
  int64_t next_offset = 0;
  for (Cursor& cursor : cursors) {
    const size_t count = cursor.slot;
    cursor = {next_offset, next_slot};
    next_slot += count;
    next_offset += layout.shard_numel_;
  }
  layout.slots_.resize(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    Cursor& cursor = cursors[static_cast<size_t>(owners[i])];
    layout.slots_[cursor.slot++] = {params[i], cursor.numel, numels[i]};
    cursor.numel += numels[i];
  }
  return layout;
}

int64_t FlatLayout::PaddingOf(int rank) const {
  const int64_t begin = rank * shard_numel_;
  const int64_t end = begin + shard_numel_;
  // A range is filled from its front without gaps, so the last slot that
  // begins before its end tells how far.
  const auto after = std::partition_point(
      slots_.begin(), slots_.end(),
      [end](const Slot& slot) { return slot.offset < end; });
  if (after == slots_.begin()) return shard_numel_;
  const Slot& last = *(after - 1);
  return end - std::clamp(last.offset + last.numel, begin, end);
}

std::vector<SlotSlice> FlatLayout::Slices(int64_t begin, int64_t end) const {
  std::vector<SlotSlice> slices;
  // Slots stand in order and do not overlap: their ends ascend too.
  auto slot = std::partition_point(
      slots_.begin(), slots_.end(), [begin](const Slot& candidate) {
        return candidate.offset + candidate.numel <= begin;
      });
  for (; slot != slots_.end() && slot->offset < end; ++slot) {
    const int64_t from = std::max(begin, slot->offset);
    const int64_t to = std::min(end, slot->offset + slot->numel);
    if (from >= to) continue;
    slices.push_back({slot->param, from, from - slot->offset, to - from});
  }
  return slices;
}

}  // namespace shard
