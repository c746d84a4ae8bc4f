// SPDX-License-Identifier: Apache-2.0
//
// Measures the most memory that a process has, for tests of functions that
// promise a bound.

#ifndef SHARD_TESTS_CORE_ENGINE_MEMORY_GROWTH_H_
#define SHARD_TESTS_CORE_ENGINE_MEMORY_GROWTH_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

namespace shard {

// Returns the most memory that was resident since ResetPeak, shared or not.
inline int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) {
      return std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;
    }
  }
  ADD_FAILURE() << "no VmHWM";
  return 0;
}

inline void ResetPeak() { std::ofstream("/proc/self/clear_refs") << 5; }

// Returns by how much the peak of resident memory grows while `act` runs.
inline int64_t GrowthOf(const std::function<void()>& act) {
  ResetPeak();
  const int64_t before = PeakBytes();
  act();
  return PeakBytes() - before;
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_MEMORY_GROWTH_H_
