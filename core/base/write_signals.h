// SPDX-License-Identifier: Apache-2.0
//
// WithoutSizeSignal, WithoutWriteSignals: make a system call that writes,
// without the signals that kill a process for what it writes.
//
// The kernel sends SIGXFSZ to the calling thread, beside EFBIG, when a file
// would become longer than RLIMIT_FSIZE (ulimit -f), and SIGPIPE, beside EPIPE,
// when nobody reads a pipe; the default action of both kills the process. The
// signal is blocked during the call, and taken back if the call raised it, so
// that the host sees neither the signal nor another mask. A signal that was
// pending before the call stays pending.

#ifndef SHARD_CORE_BASE_WRITE_SIGNALS_H_
#define SHARD_CORE_BASE_WRITE_SIGNALS_H_

#include <signal.h>
#include <time.h>

#include <cerrno>

namespace shard {

// Calls `call`, returns its result and leaves errno as `call` left it. `call`
// is a system call that sends `signal` where it fails with `error_of_signal`:
// on an error it returns a negative value, with errno.
template <typename Call>
auto WithoutSignal(int signal, int error_of_signal, const Call& call) {
  sigset_t blocked;
  sigset_t before;
  sigset_t pending;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, signal);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  ::sigpending(&pending);
  const auto result = call();
  const int error = errno;
  if (result < 0 && error == error_of_signal &&
      !::sigismember(&pending, signal)) {
    // The kernel gives a thread its own signals before those of the process,
    // and this signal was sent to the thread. No signal is pending when the
    // exceeded limit was that of the file system.
    const timespec now = {};
    while (::sigtimedwait(&blocked, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return result;
}

// For a call that extends a file.
template <typename Call>
auto WithoutSizeSignal(const Call& call) {
  return WithoutSignal(SIGXFSZ, EFBIG, call);
}

// For a call that writes to what the host or its user named: a file or a pipe.
template <typename Call>
auto WithoutWriteSignals(const Call& call) {
  return WithoutSignal(SIGPIPE, EPIPE, [&] { return WithoutSizeSignal(call); });
}

}  // namespace shard

#endif  // SHARD_CORE_BASE_WRITE_SIGNALS_H_
