// SPDX-License-Identifier: Apache-2.0
//
// ReducedGrads: which sums of gradients count in the next step. zero_grad
// exchanges nothing between ranks: each counts its calls since the last step
// (Proposal::zeroed), and a sum counts while that count is the one with which
// its gradients were declared.
//
// Threads: where ranks meet for the moves of units, the sums of units are the
// queue's thread's while the queue is not empty; the rest is the engine's.

#ifndef SHARD_CORE_ENGINE_UNITS_REDUCED_GRADS_H_
#define SHARD_CORE_ENGINE_UNITS_REDUCED_GRADS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/engine/transfer/agreement.h"

namespace shard {

class ReducedGrads {
 public:
  explicit ReducedGrads(size_t units) : reduced_(units, kNeverZeroed) {}

  // Returns whether the ranks hold a sum of the unit's gradients that counts.
  bool Counts(int32_t unit) const { return of(unit) == zeroed_; }
  // Returns whether Counts is true of some unit.
  bool SomeCount() const {
    return std::find(reduced_.begin(), reduced_.end(), zeroed_) !=
           reduced_.end();
  }
  // Returns whether the gradients of a proposal count in no sum: another rank
  // had called zero_grad already when it declared the unit.
  bool IsOutdated(const Proposal& reduce) const {
    return reduce.zeroed < of(reduce.unit);
  }
  // Returns whether the gradients of a proposal add to the sum that is there.
  bool AddsToSum(const Proposal& reduce) const {
    return reduce.zeroed == of(reduce.unit);
  }
  // Records that the gradients of a proposal are in the sum.
  void SetReduced(const Proposal& reduce) {
    reduced_[static_cast<size_t>(reduce.unit)] = reduce.zeroed;
  }

  // Discards the gradients since the last step, where they are sharded.
  // `declared`: this rank had declared some of them.
  void Discard(bool declared) {
    ++zeroed_;
    discarded_ |= declared;
  }
  // Returns Proposal::zeroed of this rank.
  int64_t zeroed() const { return zeroed_; }
  // The same in join, where this rank has no gradients of its own but those
  // that it discarded.
  int64_t zeroed_in_join() const { return discarded_ ? zeroed_ : kNeverZeroed; }
  // Takes the count of the rank that leads a step, in join.
  void FollowInJoin(const Proposal& leader) {
    if (!discarded_) zeroed_ = leader.zeroed;
  }
  // Begins anew: after a step, or once all ranks have joined.
  void Forget() {
    reduced_.assign(reduced_.size(), kNeverZeroed);
    zeroed_ = 0;
    discarded_ = false;
  }

 private:
  int64_t of(int32_t unit) const { return reduced_[static_cast<size_t>(unit)]; }

  // By unit: Proposal::zeroed of the gradients in the sum; kNeverZeroed: none.
  std::vector<int64_t> reduced_;
  int64_t zeroed_ = 0;
  bool discarded_ = false;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_UNITS_REDUCED_GRADS_H_
