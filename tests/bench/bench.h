// SPDX-License-Identifier: Apache-2.0
//
// The output of every benchmark, so that one script can read them all:
//
//   BENCH <name> <metric> <value> <unit>

#ifndef SHARD_TESTS_BENCH_BENCH_H_
#define SHARD_TESTS_BENCH_BENCH_H_

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace shard::bench {

inline void Bench(const char* name, const char* metric, double value,
                  const char* unit) {
  std::printf("BENCH %s %s %.6g %s\n", name, metric, value, unit);
  std::fflush(stdout);
}

// Returns the median: the middle value, or the mean of the middle two.
// REQUIRES: !values.empty().
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  if (values.size() % 2 != 0) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

// Returns the time on the monotonic clock, in seconds.
inline double Seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace shard::bench

#endif  // SHARD_TESTS_BENCH_BENCH_H_
