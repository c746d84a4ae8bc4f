// SPDX-License-Identifier: Apache-2.0
//
// FlatLayout: where each parameter lies in one flat buffer, and which rank
// owns which part of it. A pure function of its inputs.
//
//   [ rank 0's range | rank 1's range | ... | rank W-1's range ]
//
// All ranges have shard_numel elements, the padding included. How parameters
// fall into ranges is the only difference between the strategies:
//   even     the parameters' concatenation, cut into W equal pieces
//   owned    every parameter whole, inside its owner's range
// Everything after the layout (step, state, checkpoints) treats both alike.
//
// Cost: O(parameters log parameters) to build, whatever the number of ranks; it
// holds one Slot per parameter and nothing per rank.

#ifndef SHARD_CORE_FLAT_LAYOUT_H_
#define SHARD_CORE_FLAT_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/model/model.h"

namespace shard {

// Far beyond any machine; keeps what is held per rank while planning small.
inline constexpr int kMaxWorldSize = 1 << 20;

// A parameter's place. Slots do not overlap; gaps between them are padding,
// which a slot alignment above 1 makes.
struct Slot {
  ParamId param;
  int64_t offset;  // Of its first element, in elements of the flat buffer.
  int64_t numel;
};

// The part of a slot that lies in some range.
struct SlotSlice {
  ParamId param;
  int64_t flat_begin;   // First element, in the flat buffer.
  int64_t param_begin;  // The same element, counted from the parameter's first.
  int64_t numel;        // > 0
};

class FlatLayout {
 public:
  // Of no parameters and one rank.
  FlatLayout() = default;

  // In elements. shard_numel is a multiple of both.
  struct Alignment {
    int64_t shard = 1;
    // Every parameter begins at a multiple of it.
    int64_t slot = 1;
  };

  // `params` and `numels` in module-walk order. Errors: sizes that differ, a
  // negative numel, world_size outside 1..kMaxWorldSize, an alignment below 1,
  // a total beyond int64. A layout of nothing but zero-size parameters has
  // shard_numel 0.
  static StatusOr<FlatLayout> Even(std::span<const ParamId> params,
                                   std::span<const int64_t> numels,
                                   int world_size, Alignment alignment);

  // `owners[i]` owns params[i] whole. Within an owner's range parameters stand
  // in the order given.
  static StatusOr<FlatLayout> Owned(std::span<const ParamId> params,
                                    std::span<const int64_t> numels,
                                    std::span<const int32_t> owners,
                                    int world_size, Alignment alignment);

  int world_size() const { return world_size_; }
  int64_t shard_numel() const { return shard_numel_; }
  int64_t padded_numel() const { return shard_numel_ * world_size_; }
  // Without padding.
  int64_t numel() const { return numel_; }

  // Up to the last slot's last element: behind it there is only padding.
  int64_t extent() const {
    return slots_.empty() ? 0 : slots_.back().offset + slots_.back().numel;
  }

  // By ascending offset; zero-size parameters are present too.
  const std::vector<Slot>& slots() const { return slots_; }

  // The index of the slot that holds `element`, or else of the first one after
  // it. Zero-size slots hold nothing. O(log slots).
  size_t SlotAt(int64_t element) const;

  // Elements of padding in `rank`'s range. O(log slots + slots in the range).
  // REQUIRES: 0 <= rank < world_size(), here and below.
  int64_t PaddingOf(int rank) const;

  // What of which parameter lies in [begin, end), by ascending offset. Empty
  // when end <= begin; what lies outside the buffer does not count.
  // O(log slots + result).
  std::vector<SlotSlice> Slices(int64_t begin, int64_t end) const;

  // Whether storage of `numel` elements holds the buffer: all of it, or all but
  // the padding behind the last slot.
  Status CheckStorage(int64_t numel) const;

  // Slices of `rank`'s range.
  std::vector<SlotSlice> SlicesOf(int rank) const {
    return Slices(rank * shard_numel_, (rank + 1) * shard_numel_);
  }

 private:
  int world_size_ = 1;
  int64_t shard_numel_ = 0;
  int64_t numel_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace shard

#endif  // SHARD_CORE_FLAT_LAYOUT_H_
