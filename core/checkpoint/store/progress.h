// SPDX-License-Identifier: Apache-2.0
//
// What a host hears of long work.

#ifndef SHARD_CORE_CHECKPOINT_STORE_PROGRESS_H_
#define SHARD_CORE_CHECKPOINT_STORE_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "core/base/status.h"

namespace shard {

// Called from any thread, one call at a time, with bytes done and in all; never
// less than before. False cancels: the call that it belongs to ends with
// kCancelled.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

// Adds up what several threads have done. Thread-safe.
class ProgressMeter {
 public:
  // `progress` may be empty.
  ProgressMeter(Progress progress, uint64_t total)
      : progress_(std::move(progress)), total_(total) {}

  // kCancelled once the host has said so, for each thread that asks.
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
