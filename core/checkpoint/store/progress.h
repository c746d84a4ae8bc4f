// SPDX-License-Identifier: Apache-2.0
//
// Progress reports to a host from long operations.

#ifndef SHARD_CORE_CHECKPOINT_STORE_PROGRESS_H_
#define SHARD_CORE_CHECKPOINT_STORE_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "core/base/status.h"

namespace shard {

// Called with the progress of a long operation: bytes done, which never
// decrease, and bytes in all. From any thread, one call at a time. Returning
// false cancels the operation, which ends with kCancelled.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

// Adds up the progress of several threads. Thread-safe.
class ProgressMeter {
 public:
  // `progress` may be empty.
  ProgressMeter(Progress progress, uint64_t total)
      : progress_(std::move(progress)), total_(total) {}

  // Adds bytes. Returns kCancelled to each calling thread once the host has
  // cancelled.
  Status Add(uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ += bytes;
    if (!cancelled_ && progress_) cancelled_ = !progress_(done_, total_);
    if (!cancelled_) return Status();
    return Cancelled("cancelled by the progress callback after ", done_, " of ",
                     total_, " bytes");
  }

 private:
  const Progress progress_;
  const uint64_t total_;
  std::mutex mutex_;
  uint64_t done_ = 0;
  bool cancelled_ = false;
};

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_STORE_PROGRESS_H_
