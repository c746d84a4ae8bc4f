// SPDX-License-Identifier: Apache-2.0
//
// A progress bar of long work: percent, bytes, rate and the time that is left,
// on stderr and only when that is a terminal. It erases itself.
//
//   Progress progress("verifying");
//   options.progress = Progress::Update;
//   options.progress_user_data = &progress;
//
// The bar begins to show after a fifth of a second, and is drawn ten times a
// second at most. Threads: those of shard_progress_fn, one call at a time.

#ifndef SHARD_SDK_CLI_PROGRESS_H_
#define SHARD_SDK_CLI_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "sdk/cli/output.h"

namespace shardctl {

// Returns "verifying  42% [########            ]  1.20 GiB of 2.86 GiB, 1.10
// GiB/s, 1.5 s left" in at most `columns` columns. Where there are too few, the
// bar is left out first, then the rest from the end.
std::string BarText(const std::string& what, uint64_t done, uint64_t total,
                    double seconds, int columns);

class Progress {
 public:
  explicit Progress(const std::string& what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Set(uint64_t done, uint64_t total);

  // Draws the bar of `progress`, a Progress, and cancels the work when a signal
  // waits for its end (deferred_signals.h). A shard_progress_fn.
  static int32_t Update(uint64_t done, uint64_t total, void* progress);

 private:
  using Clock = std::chrono::steady_clock;

  const std::string what_;
  Screen screen_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point next_;
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_PROGRESS_H_
