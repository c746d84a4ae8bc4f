// SPDX-License-Identifier: Apache-2.0
//
// Deadline: a point on the monotonic clock that a wait must not pass. Every
// wait in the library takes one, so that no failure of a peer is a hang.

#ifndef SHARD_CORE_BASE_DEADLINE_H_
#define SHARD_CORE_BASE_DEADLINE_H_

#include <chrono>
#include <cstdint>

namespace shard {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::nanoseconds;

  // Returns the moment `seconds` from now; at most a year from now, so that no
  // sum overflows.
  static Deadline After(double seconds) {
    constexpr double kLongest = 365.0 * 24 * 3600;
    if (!(seconds > 0)) seconds = 0;
    if (seconds > kLongest) seconds = kLongest;
    const auto span = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(seconds));
    return Deadline(Clock::now() + span, seconds);
  }

  bool Expired() const { return Clock::now() >= at_; }

  // Returns the time until the deadline; zero once expired.
  Duration Remaining() const {
    const auto now = Clock::now();
    return now >= at_ ? Duration::zero()
                      : std::chrono::duration_cast<Duration>(at_ - now);
  }

  // Returns the moment `time` later, with the same span for messages.
  Deadline Later(Duration time) const { return Deadline(at_ + time, seconds_); }

  // Returns the span that After() was given, for messages.
  double seconds() const { return seconds_; }

 private:
  Deadline(Clock::time_point at, double seconds) : at_(at), seconds_(seconds) {}

  Clock::time_point at_;
  double seconds_;
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_DEADLINE_H_
