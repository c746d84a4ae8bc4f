// SPDX-License-Identifier: Apache-2.0
//
// Signals that end the program once the work in progress has cleaned up. A
// conversion has temporary files as large as the checkpoint, which Ctrl-C would
// leave behind.
//
//   DeferredSignals signals;
//   Progress progress("writing");  // Cancels the work when a signal has come.

#ifndef SHARD_SDK_CLI_DEFERRED_SIGNALS_H_
#define SHARD_SDK_CLI_DEFERRED_SIGNALS_H_

#include <signal.h>

#include <cstddef>

namespace shardctl {

// Defers SIGHUP, SIGINT and SIGTERM until its end, where they end the process
// as they would have. A second one of the same kind ends the process at once.
// One at a time; of the main thread.
class DeferredSignals {
 public:
  DeferredSignals();
  ~DeferredSignals();
  DeferredSignals(const DeferredSignals&) = delete;
  DeferredSignals& operator=(const DeferredSignals&) = delete;

  // Returns whether a signal waits for the end of the work. Any thread.
  static bool HaveCome();

 private:
  static constexpr int kSignals[] = {SIGHUP, SIGINT, SIGTERM};
  static constexpr size_t kNumSignals = sizeof(kSignals) / sizeof(int);

  struct sigaction before_[kNumSignals];
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_DEFERRED_SIGNALS_H_
