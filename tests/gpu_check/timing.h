// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_TESTS_GPU_CHECK_TIMING_H_
#define SHARD_TESTS_GPU_CHECK_TIMING_H_

#include <algorithm>
#include <chrono>
#include <vector>

namespace shard::gpu_check {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// REQUIRES: there are values.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace shard::gpu_check

#endif  // SHARD_TESTS_GPU_CHECK_TIMING_H_
