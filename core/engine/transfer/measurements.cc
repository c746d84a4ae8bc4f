// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/measurements.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace shard {

Measurements::~Measurements() {
  for (const Measured& measured : pending_) RecordOne(measured, true);
}

void Measurements::Add(Measured measured) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.push_back(std::move(measured));
}

void Measurements::Record() {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (!pending_.empty() && RecordOne(pending_.front(), false)) {
    pending_.pop_front();
  }
}

double Measurements::TakeSeconds() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(seconds_, 0);
}

bool Measurements::RecordOne(const Measured& measured, bool ends) {
  const std::optional<int64_t> begin = measured.begin->time();
  // A stream that has failed has dropped the work.
  if (!begin.has_value()) return ends || measured.begin->is_dropped();
  if (measured.end != nullptr) {
    if (const std::optional<int64_t> end = measured.end->time()) {
      // Times of a device are not exact.
      const int64_t nanoseconds = std::max<int64_t>(*end - *begin, 0);
      observer_->Record(measured.event, measured.arguments, *begin,
                        *begin + nanoseconds, Status());
      if (measured.is_transfer) {
        seconds_ += static_cast<double>(nanoseconds) * 1e-9;
      }
      return true;
    }
    if (!ends && !measured.end->is_dropped()) return false;
  }
  observer_->Record(measured.event, measured.arguments, *begin,
                    std::max(*begin, Observer::Now()),
                    Cancelled("it failed, or work of the stream before it"));
  return true;
}

}  // namespace shard
