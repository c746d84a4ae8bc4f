// SPDX-License-Identifier: Apache-2.0

#include "core/engine/units/gather_order.h"

#include <algorithm>

namespace shard {

namespace {

// Most recorded acquires per unit and step: a forward and a backward pass for
// each of 32 accumulated passes.
constexpr size_t kMostRecorded = 64;

}  // namespace

void GatherOrder::Record(int32_t unit) {
  if (!recording_) {
    if (position_ < order_.size() && order_[position_] == unit) {
      ++position_;
      return;
    }
    // The order differs from last time: the record is cut here.
    order_.resize(position_);
    recording_ = true;
  }
  // Passes without a step, as in an evaluation, could grow the record without
  // end.
  if (order_.size() >= kMostRecorded * units_) return;
  order_.push_back(unit);
  position_ = order_.size();
}

std::span<const int32_t> GatherOrder::Next() const {
  if (recording_) return {};
  return std::span(order_).subspan(
      position_, std::min(prefetch_, order_.size() - position_));
}

void GatherOrder::FinishStep() {
  position_ = 0;
  if (!order_.empty()) recording_ = false;
}

void GatherOrder::Forget() {
  order_.clear();
  position_ = 0;
  recording_ = true;
}

}  // namespace shard
