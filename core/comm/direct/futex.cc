// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace shard::direct {

void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected,
               std::chrono::nanoseconds longest) {
  constexpr int64_t kNanosPerSecond = 1000000000;
  timespec span{};
  span.tv_sec = static_cast<time_t>(longest.count() / kNanosPerSecond);
  span.tv_nsec = static_cast<long>(longest.count() % kNanosPerSecond);
  // Not the private form: the word may be shared between processes.
  ::syscall(SYS_futex, word, FUTEX_WAIT, expected, &span, nullptr, 0);
}

void FutexWakeAll(const std::atomic<uint32_t>* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace shard::direct
