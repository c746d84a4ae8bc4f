// SPDX-License-Identifier: Apache-2.0
//
// WithoutSizeSignal: makes a system call that extends a file, without SIGXFSZ.
//
// The kernel sends that signal to the calling thread, beside EFBIG, when a file
// would become longer than RLIMIT_FSIZE (ulimit -f), and its default action
// kills the process. The signal is blocked during the call, and taken back if
// the call raised it, so that the host sees neither the signal nor another
// mask. A signal that was pending before the call stays pending.

#ifndef SHARD_CORE_BASE_SIZE_SIGNAL_H_
#define SHARD_CORE_BASE_SIZE_SIGNAL_H_

#include <signal.h>
#include <time.h>

#include <cerrno>

namespace shard {

// Calls `call`, returns its result and leaves errno as `call` left it. `call`
// is a system call: on an error it returns a negative value, with errno.
template <typename Call>
auto WithoutSizeSignal(const Call& call) {
  sigset_t size_signal;
  sigset_t before;
  sigset_t pending;
  ::sigemptyset(&size_signal);
  ::sigaddset(&size_signal, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &size_signal, &before);
  ::sigpending(&pending);
  const auto result = call();
  const int error = errno;
  if (result < 0 && error == EFBIG && !::sigismember(&pending, SIGXFSZ)) {
    // The kernel gives a thread its own signals before those of the process,
    // and this SIGXFSZ was sent to the thread. No signal is pending when the
    // exceeded limit was that of the file system.
    const timespec now = {};
    while (::sigtimedwait(&size_signal, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return result;
}

}  // namespace shard

#endif  // SHARD_CORE_BASE_SIZE_SIGNAL_H_
