// SPDX-License-Identifier: Apache-2.0
//
// Gate: holds a stream until the test opens it.

#ifndef SHARD_TESTS_CORE_DEVICE_GATE_H_
#define SHARD_TESTS_CORE_DEVICE_GATE_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "core/base/status.h"

namespace shard {

class Gate {
 public:
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

  // Waits until work of the stream has arrived at the closed gate.
  bool AwaitArrival() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kLongest, [this] { return arrived_; });
  }

  Status Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    arrived_ = true;
    changed_.notify_all();
    if (changed_.wait_for(lock, kLongest, [this] { return open_; })) {
      return Status();
    }
    return DeadlineExceeded("the gate was not opened");
  }

  // Returns work for Stream::Call that passes the gate. The gate must outlive
  // the work.
  std::function<Status()> Passing() {
    return [this] { return Pass(); };
  }

 private:
  static constexpr auto kLongest = std::chrono::seconds(60);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  bool arrived_ = false;
};

}  // namespace shard

#endif  // SHARD_TESTS_CORE_DEVICE_GATE_H_
