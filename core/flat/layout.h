// SPDX-License-Identifier: Apache-2.0
//
// FlatLayout: where each parameter lies in one flat buffer, and which rank
// owns which part of it. A pure function of its inputs.
//
//   [ rank 0's range | rank 1's range | ... | rank W-1's range ]
//
// All ranges have shard_numel elements, padding included. The strategies differ
// only in how parameters are divided into ranges:
//   even     the parameters' concatenation, cut into W equal pieces
//   owned    every parameter whole, inside its owner's range
// Everything after the layout (step, state, checkpoints) treats both alike.
//
// Cost: O(parameters log parameters) to build, for any number of ranks; it
// reads one Slot per parameter and has nothing per rank.
//
// The caller stores the slots: a plan may have very many small layouts, and has
// the slots of all of them in one array.

#ifndef SHARD_CORE_FLAT_LAYOUT_H_
#define SHARD_CORE_FLAT_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/model/model.h"

namespace shard {

// The largest world size: far beyond any machine, and small enough for the
// per-rank data of planning.
inline constexpr int kMaxWorldSize = 1 << 20;

// A parameter's place. Slots do not overlap; gaps between them are padding,
// which a slot alignment above 1 causes.
struct Slot {
  ParamId param;
  int64_t offset;  // The offset of the first element in the flat buffer.
  int64_t numel;
};

// Rounds `value` up to a multiple of `alignment`. Returns false when the result
// is beyond int64. REQUIRES: value >= 0, alignment >= 1.
inline bool AlignElements(int64_t value, int64_t alignment, int64_t* result) {
  // Nearly every alignment is a power of two: avoids a division.
  const bool is_power = (alignment & (alignment - 1)) == 0;
  const int64_t remainder =
      is_power ? value & (alignment - 1) : value % alignment;
  const int64_t missing = remainder == 0 ? 0 : alignment - remainder;
  return !__builtin_add_overflow(value, missing, result);
}

// Sets the offset of the next slot of a buffer that is cut evenly. The slots
// before it end at `*end`, and it begins at a multiple of `alignment`. Sets
// `*end` to its end; -1: beyond int64. REQUIRES: slot->numel >= 0.
inline void AppendSlot(int64_t alignment, int64_t* end, Slot* slot) {
  if (*end < 0 || !AlignElements(*end, alignment, &slot->offset) ||
      __builtin_add_overflow(slot->offset, slot->numel, end)) {
    *end = -1;
  }
}

// The part of a slot that lies in some range.
struct SlotSlice {
  ParamId param;
  int64_t flat_begin;   // First element, in the flat buffer.
  int64_t param_begin;  // The same element, counted from the parameter's first.
  int64_t numel;        // > 0
};

class FlatLayout {
 public:
  // Makes a layout of no parameters and one rank.
  FlatLayout() = default;

  // Alignment in elements. shard_numel is a multiple of both.
  struct Alignment {
    int64_t shard = 1;
    // Every parameter begins at a multiple of this.
    int64_t slot = 1;
  };

  // Lays parameters out evenly. `slots` are in module-walk order, made with
  // AppendSlot and alignment.slot, and end at `end`. They must outlive the
  // layout. Errors: world_size outside 1..kMaxWorldSize, an alignment below 1,
  // a total beyond int64. A layout of only zero-size parameters has shard_numel
  // 0.
  static StatusOr<FlatLayout> Even(std::span<const Slot> slots, int64_t end,
                                   int world_size, Alignment alignment);

  // Lays parameters out whole: `owners[i]` owns the parameter of slots[i]. Sets
  // the offsets and sorts the slots by them; within an owner's range,
  // parameters stay in the order given. The slots must outlive the layout.
  // Errors are those of Even, a negative numel, owners that are not as many or
  // outside of the world size.
  static StatusOr<FlatLayout> Owned(std::span<Slot> slots,
                                    std::span<const int32_t> owners,
                                    int world_size, Alignment alignment);

  int world_size() const { return world_size_; }
  int64_t shard_numel() const { return shard_numel_; }
  int64_t padded_numel() const { return shard_numel_ * world_size_; }
  // Returns the number of elements, without padding.
  int64_t numel() const { return numel_; }

  // Returns the end of the last slot: only padding comes after it.
  int64_t extent() const {
    return slots_.empty() ? 0 : slots_.back().offset + slots_.back().numel;
  }

  // Returns the slots by ascending offset; zero-size parameters have one, too.
  std::span<const Slot> slots() const { return slots_; }

  // Returns the index of the slot that holds `element`, or else of the first
  // slot after it. Zero-size slots hold nothing. O(log slots).
  size_t SlotAt(int64_t element) const;

  // Returns the elements of padding in `rank`'s range. O(log slots + slots in
  // the range). REQUIRES: 0 <= rank < world_size(), here and below.
  int64_t PaddingOf(int rank) const;

  // Returns the parameter slices that intersect [begin, end), by ascending
  // offset. Empty when end <= begin; parts of the range outside the buffer are
  // ignored. O(log slots + result).
  std::vector<SlotSlice> Slices(int64_t begin, int64_t end) const;

  // Checks that storage of `numel` elements holds the buffer: all of it, or all
  // but the padding after the last slot.
  Status CheckStorage(int64_t numel) const;

  // Returns the slices of `rank`'s range.
  std::vector<SlotSlice> SlicesOf(int rank) const {
    return Slices(rank * shard_numel_, (rank + 1) * shard_numel_);
  }

 private:
  int world_size_ = 1;
  int64_t shard_numel_ = 0;
  int64_t numel_ = 0;
  std::span<const Slot> slots_;
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_LAYOUT_H_
