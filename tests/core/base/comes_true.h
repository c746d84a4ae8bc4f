// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_TESTS_CORE_BASE_COMES_TRUE_H_
#define SHARD_TESTS_CORE_BASE_COMES_TRUE_H_

#include <chrono>
#include <functional>
#include <thread>

#include "core/base/deadline.h"

namespace shard::testing {

// Waits for a condition of other threads. Returns false where it does not come
// true in time, before a test would hang.
inline bool ComesTrue(const std::function<bool()>& condition,
                      const Deadline& deadline = Deadline::After(30)) {
  while (!condition()) {
    if (deadline.Expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_BASE_COMES_TRUE_H_
