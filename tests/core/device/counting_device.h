// SPDX-License-Identifier: Apache-2.0
//
// A device that counts the operations that are enqueued on its streams, for
// tests: on an accelerator each is a launch. Waits and events are not counted.

#ifndef SHARD_TESTS_CORE_DEVICE_COUNTING_DEVICE_H_
#define SHARD_TESTS_CORE_DEVICE_COUNTING_DEVICE_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "core/device/device.h"

namespace shard::testing {

// The number of operations of each kind, such as "Update". Thread-safe.
class OperationCounts {
 public:
  void Add(std::string_view kind) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++counts_[std::string(kind)];
  }
  // Returns the counts so far and sets them to 0.
  std::map<std::string, int> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(counts_, {});
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> counts_;  // GUARDED_BY(mutex_)
};

// Makes a device whose memory and streams are those of `device`.
std::shared_ptr<Device> CountOperations(
    std::shared_ptr<Device> device, std::shared_ptr<OperationCounts> counts);

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_DEVICE_COUNTING_DEVICE_H_
