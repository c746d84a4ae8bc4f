// SPDX-License-Identifier: Apache-2.0
//
// Pause: the sleeps between the polls of a wait, each twice as long as the one
// before, up to a longest one.

#ifndef SHARD_CORE_COLLECTIVES_NCCL_PAUSE_H_
#define SHARD_CORE_COLLECTIVES_NCCL_PAUSE_H_

#include <algorithm>
#include <chrono>
#include <thread>

namespace shard::nccl {

class Pause {
 public:
  Pause(std::chrono::microseconds first, std::chrono::microseconds longest)
      : next_(first), longest_(longest) {}

  void Take() {
    std::this_thread::sleep_for(next_);
    next_ = std::min(2 * next_, longest_);
  }

 private:
  std::chrono::microseconds next_;
  const std::chrono::microseconds longest_;
};

// Between the polls of a call that is in progress, for which a host waits.
inline Pause PauseOfCall() {
  return Pause(std::chrono::microseconds(1), std::chrono::microseconds(500));
}

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_PAUSE_H_
