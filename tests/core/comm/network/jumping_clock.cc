// SPDX-License-Identifier: Apache-2.0
//
// A clock of the day that jumps, as where somebody sets it: by an hour, forward
// and back, ten times a second, in a program that links this or preloads it, if
// SHARD_TEST_CLOCK_JUMPS is set. No other clock of the kernel's does.

#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

time_t Jump() {
  if (::getenv("SHARD_TEST_CLOCK_JUMPS") == nullptr) return 0;
  timespec now{};
  ::syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  // 0, an hour ahead, none, and an hour behind.
  constexpr time_t kJumps[] = {0, 3600, 0, -3600};
  return kJumps[now.tv_nsec / 100'000'000 % 4];
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int clock_gettime(
    clockid_t clock, timespec* now) noexcept {
  const auto result =
      static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
    now->tv_sec += Jump();
  }
  return result;
}

__attribute__((visibility("default"))) int gettimeofday(timeval* now,
                                                        void*) noexcept {
  timespec exact{};
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

__attribute__((visibility("default"))) time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
