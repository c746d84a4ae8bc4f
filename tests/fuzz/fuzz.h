// SPDX-License-Identifier: Apache-2.0
//
// Helpers that fuzz targets share. Each target is one file with
// LLVMFuzzerTestOneInput, which libFuzzer calls with --config=fuzz, and
// otherwise replay.cc with the target's corpus.

#ifndef SHARD_TESTS_FUZZ_FUZZ_H_
#define SHARD_TESTS_FUZZ_FUZZ_H_

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/core/checkpoint/allocation_meter.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Ends the program when the condition is false; libFuzzer then reports the
// input.
#define FUZZ_CHECK(condition)                                               \
  do {                                                                      \
    if (!(condition)) {                                                     \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, \
                   #condition);                                             \
      std::abort();                                                         \
    }                                                                       \
  } while (false)

namespace shard {

inline double ThreadSeconds() {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

// Runs `read`, which reads `bytes` hostile bytes, and checks its cost: at most
// `most_memory` bytes of memory, and a second per MiB.
template <typename Read>
auto WithinLimits(size_t bytes, double most_memory, const Read& read) {
  ResetAllocatedPeak();
  const int64_t before = AllocatedBytes();
  const double begin = ThreadSeconds();
  auto result = read();
  const double seconds = ThreadSeconds() - begin;
  const auto size = static_cast<double>(bytes);
  FUZZ_CHECK(static_cast<double>(AllocatedPeak() - before) <= most_memory);
  FUZZ_CHECK(seconds <= 1 + size / (1 << 20));
  return result;
}

// Runs `read` likewise, with at most as many bytes of memory and 16 MiB.
template <typename Read>
auto WithinLimits(size_t bytes, const Read& read) {
  return WithinLimits(bytes, static_cast<double>(bytes) + (16 << 20), read);
}

}  // namespace shard

#endif  // SHARD_TESTS_FUZZ_FUZZ_H_
