// SPDX-License-Identifier: Apache-2.0
//
// Stopwatch: adds the time of a scope to a counter of seconds.

#ifndef SHARD_CORE_ENGINE_TRANSFER_STOPWATCH_H_
#define SHARD_CORE_ENGINE_TRANSFER_STOPWATCH_H_

#include <chrono>

namespace shard {

class Stopwatch {
 public:
  // `seconds` outlives this.
  explicit Stopwatch(double* seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    const std::chrono::duration<double> span = Clock::now() - start_;
    *seconds_ += span.count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  double* seconds_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_TRANSFER_STOPWATCH_H_
