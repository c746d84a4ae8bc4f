// SPDX-License-Identifier: Apache-2.0
//
// Sums of doubles in an order that is fixed, and that GPUs keep: kernels/cuda
// adds the same values on the 32 lanes of a warp. So a sum has the same bits on
// every device and with every instruction set, and costs no more than in any
// other order.
//
// Compiled for no instruction set: a value is added for each tile of elements.
//
// Thread-compatible.

#ifndef SHARD_KERNELS_CPU_ORDERED_SUM_H_
#define SHARD_KERNELS_CPU_ORDERED_SUM_H_

#include <cstddef>

namespace shard {

inline constexpr size_t kSumLanes = 32;

// Returns the sum of the lanes, which it overwrites: adds the upper half to the
// lower until one lane is left.
inline double SumOfLanes(double* lanes) {
  for (size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// The sum of any number of values: lane i adds the values i, i + 32, i + 64 and
// so on, one after the other.
class LaneSum {
 public:
  void Add(double value) { lanes_[count_++ % kSumLanes] += value; }
  size_t count() const { return count_; }

  // Returns the sum, and begins the next one.
  double Take() {
    const double sum = SumOfLanes(lanes_);
    *this = LaneSum();
    return sum;
  }

 private:
  double lanes_[kSumLanes] = {};
  size_t count_ = 0;
};

// A LaneSum of the LaneSums of kGroup values each, so that groups can be added
// at once.
template <size_t kGroup>
class GroupedSum {
 public:
  void Add(double value) {
    group_.Add(value);
    if (group_.count() == kGroup) groups_.Add(group_.Take());
  }

  // Returns the sum, and begins the next one.
  double Take() {
    if (group_.count() != 0) groups_.Add(group_.Take());
    return groups_.Take();
  }

 private:
  LaneSum group_;
  LaneSum groups_;
};

// The elements of a parameter whose squares are one value of a sum.
inline constexpr size_t kSquareTile = 256;

// The sum of squares of a parameter, by tiles.
inline constexpr size_t kTileGroup = 1024;
using TileSum = GroupedSum<kTileGroup>;

}  // namespace shard

#endif  // SHARD_KERNELS_CPU_ORDERED_SUM_H_
