// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/deferred_signals.h"

#include <atomic>

namespace shardctl {

namespace {

std::atomic<int> came = 0;  // The last signal; 0: none.
static_assert(std::atomic<int>::is_always_lock_free);

void Defer(int signal) { came = signal; }

}  // namespace

DeferredSignals::DeferredSignals() {
  struct sigaction action = {};
  action.sa_handler = Defer;
  // System calls of the work go on; the second signal meets the default.
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  for (size_t s = 0; s < kNumSignals; ++s) {
    ::sigaction(kSignals[s], nullptr, &before_[s]);
    // A signal that the caller ignores, as nohup does, stays ignored.
    if (before_[s].sa_handler == SIG_IGN) continue;
    ::sigaction(kSignals[s], &action, nullptr);
  }
}

DeferredSignals::~DeferredSignals() {
  for (size_t s = 0; s < kNumSignals; ++s) {
    ::sigaction(kSignals[s], &before_[s], nullptr);
  }
  if (const int signal = came.exchange(0); signal != 0) ::raise(signal);
}

bool DeferredSignals::HaveCome() { return came != 0; }

}  // namespace shardctl
