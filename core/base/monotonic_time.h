// SPDX-License-Identifier: Apache-2.0
//
// The host's monotonic clock, by which events are timed.

#ifndef SHARD_CORE_BASE_MONOTONIC_TIME_H_
#define SHARD_CORE_BASE_MONOTONIC_TIME_H_

#include <time.h>

#include <cstdint>

namespace shard {

// Returns nanoseconds of the clock.
inline int64_t MonotonicTime() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace shard

#endif  // SHARD_CORE_BASE_MONOTONIC_TIME_H_
