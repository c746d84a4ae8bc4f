// SPDX-License-Identifier: Apache-2.0

#include "core/flat/layout.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace shard {

namespace {

Status CheckInputs(int world_size, FlatLayout::Alignment alignment) {
  if (world_size < 1 || world_size > kMaxWorldSize) {
    return InvalidArgument("world size ", world_size, " is outside 1 to ",
                           kMaxWorldSize);
  }
  for (const int64_t elements : {alignment.shard, alignment.slot}) {
    if (elements >= 1) continue;
    return InvalidArgument("alignment ", elements, " is below 1 element");
  }
  return Status();
}

Status CheckNumel(const Slot& slot) {
  if (slot.numel >= 0) return Status();
  return InvalidArgument("parameter ", slot.param, " has ", slot.numel,
                         " elements");
}

// Rounds `numel` up to the alignment. An error when world_size times the result
// is beyond int64.
StatusOr<int64_t> ShardNumel(int64_t numel, int world_size,
                             FlatLayout::Alignment alignment) {
  // The least common multiple.
  int64_t multiple = 0;
  int64_t padded = 0;
  int64_t total = 0;
  const int64_t more =
      alignment.slot == 1
          ? 1
          : alignment.slot / std::gcd(alignment.shard, alignment.slot);
  if (__builtin_mul_overflow(alignment.shard, more, &multiple) ||
      !AlignElements(numel, multiple, &padded) ||
      __builtin_mul_overflow(padded, static_cast<int64_t>(world_size),
                             &total)) {
    return InvalidArgument("a flat buffer of ", world_size, " ranges of ",
                           numel, " elements, aligned to ", alignment.shard,
                           " and ", alignment.slot,
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

StatusOr<FlatLayout> FlatLayout::Even(std::span<const Slot> slots, int64_t end,
                                      int world_size, Alignment alignment) {
  SHARD_RETURN_IF_ERROR(CheckInputs(world_size, alignment));
  if (end < 0) return TooLarge(slots.size());
  FlatLayout layout;
  layout.world_size_ = world_size;
  layout.slots_ = slots;
  layout.numel_ = end;
  if (alignment.slot > 1) {
    layout.numel_ = 0;
    for (const Slot& slot : slots) layout.numel_ += slot.numel;
  }
  const int64_t share = end / world_size + (end % world_size != 0);
  SHARD_ASSIGN_OR_RETURN(layout.shard_numel_,
                         ShardNumel(share, world_size, alignment));
  return layout;
}

StatusOr<FlatLayout> FlatLayout::Owned(std::span<Slot> slots,
                                       std::span<const int32_t> owners,
                                       int world_size, Alignment alignment) {
  SHARD_RETURN_IF_ERROR(CheckInputs(world_size, alignment));
  if (owners.size() != slots.size()) {
    return InvalidArgument("the layout was given ", slots.size(),
                           " parameters but ", owners.size(), " owners");
  }
  FlatLayout layout;
  layout.world_size_ = world_size;
  layout.slots_ = slots;

  // A counting sort by owner. A cursor has the index and the offset of a rank's
  // next slot.
  struct Cursor {
    int64_t numel = 0;
    size_t slot = 0;
  };
  // Only owners have cursors where there are far more ranks than parameters:
  // many small buffers for many ranks must not cost their product.
  const bool sparse = slots.size() < static_cast<size_t>(world_size) / 8;
  std::vector<int32_t> ranks;  // The ranks of the cursors, ascending.
  if (sparse) {
    ranks.assign(owners.begin(), owners.end());
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  }
  std::vector<Cursor> cursors(sparse ? ranks.size()
                                     : static_cast<size_t>(world_size));
  const auto cursor_of = [&](int32_t owner) -> Cursor& {
    if (!sparse) return cursors[static_cast<size_t>(owner)];
    const auto at = std::lower_bound(ranks.begin(), ranks.end(), owner);
    return cursors[static_cast<size_t>(at - ranks.begin())];
  };
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto& [param, offset, numel] = slots[i];
    SHARD_RETURN_IF_ERROR(CheckNumel(slots[i]));
    if (owners[i] < 0 || owners[i] >= world_size) {
      return InvalidArgument("the owner of parameter ", param, " is rank ",
                             owners[i], ", but the world size is ", world_size);
    }
    Cursor& cursor = cursor_of(owners[i]);
    if (__builtin_add_overflow(layout.numel_, numel, &layout.numel_) ||
        !AlignElements(cursor.numel, alignment.slot, &cursor.numel) ||
        __builtin_add_overflow(cursor.numel, numel, &cursor.numel)) {
      return TooLarge(slots.size());
    }
    ++cursor.slot;
  }
  int64_t largest = 0;
  for (const Cursor& cursor : cursors) {
    largest = std::max(largest, cursor.numel);
  }
  SHARD_ASSIGN_OR_RETURN(layout.shard_numel_,
                         ShardNumel(largest, world_size, alignment));

  size_t next_slot = 0;
  for (size_t c = 0; c < cursors.size(); ++c) {
    const auto rank = static_cast<int64_t>(sparse ? ranks[c] : c);
    const size_t count = cursors[c].slot;
    cursors[c] = {rank * layout.shard_numel_, next_slot};
    next_slot += count;
  }
  const std::vector<Slot> given(slots.begin(), slots.end());
  for (size_t i = 0; i < given.size(); ++i) {
    Cursor& cursor = cursor_of(owners[i]);
    // Ranges begin at multiples of the slot alignment.
    AlignElements(cursor.numel, alignment.slot, &cursor.numel);
    slots[cursor.slot++] = {given[i].param, cursor.numel, given[i].numel};
    cursor.numel += given[i].numel;
  }
  return layout;
}

int64_t FlatLayout::PaddingOf(int rank) const {
  int64_t padding = shard_numel_;
  for (const SlotSlice& slice : SlicesOf(rank)) padding -= slice.numel;
  return padding;
}

size_t FlatLayout::SlotAt(int64_t element) const {
  // Slots are in order and do not overlap, so their ends ascend, too.
  const auto slot = std::partition_point(
      slots_.begin(), slots_.end(), [element](const Slot& candidate) {
        return candidate.offset + candidate.numel <= element;
      });
  return static_cast<size_t>(slot - slots_.begin());
}

std::vector<SlotSlice> FlatLayout::Slices(int64_t begin, int64_t end) const {
  std::vector<SlotSlice> slices;
  auto slot = slots_.begin() + static_cast<std::ptrdiff_t>(SlotAt(begin));
  for (; slot != slots_.end() && slot->offset < end; ++slot) {
    const int64_t from = std::max(begin, slot->offset);
    const int64_t to = std::min(end, slot->offset + slot->numel);
    if (from >= to) continue;
    slices.push_back({slot->param, from, from - slot->offset, to - from});
  }
  return slices;
}

Status FlatLayout::CheckStorage(int64_t numel) const {
  if (numel == padded_numel() || numel == extent()) return Status();
  return InvalidArgument("the supplied storage has ", numel,
                         " elements; the flat buffer has ", padded_numel(),
                         ", or ", extent(), " without the padding at its end");
}

}  // namespace shard
