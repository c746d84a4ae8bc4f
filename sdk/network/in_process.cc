// SPDX-License-Identifier: Apache-2.0
//
// A program that links this can have the network helper in its own process: see
// core/comm/network/in_process.h.

#include "core/comm/network/in_process.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/strings.h"
#include "sdk/network/serve.h"

namespace shard::network {

namespace {

// Longer than a helper whose ranks are gone waits for other hosts.
constexpr std::chrono::seconds kExitWait{3};

// The threads that serve. Never destroyed: they may be longer than statics.
struct Threads {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;  // Under the mutex.
  const pid_t owner = ::getpid();
};
Threads& TheThreads() {
  static auto* const threads = new Threads;
  return *threads;
}

void WaitForThreads() {
  Threads& threads = TheThreads();
  // A child of fork has none of them.
  if (::getpid() != threads.owner) return;
  std::unique_lock<std::mutex> lock(threads.mutex);
  threads.changed.wait_for(lock, kExitWait,
                           [&] { return threads.running == 0; });
}

void Say(std::string_view text) {
  const std::string line = StrCat("shard-network: ", text, "\n");
  std::fputs(line.c_str(), stderr);
}

void ServeOnThread(Fd listening, bool keep_stderr) {
  const auto warn = [keep_stderr](std::string_view text) {
    if (keep_stderr) Say(text);
  };
  try {
    const Status served = Serve(std::move(listening), warn);
    if (!served.ok()) warn(served.message());
  } catch (const std::exception& error) {
    warn(error.what());
  }
  Threads& threads = TheThreads();
  const std::lock_guard<std::mutex> lock(threads.mutex);
  --threads.running;
  threads.changed.notify_all();
}

// No signal interrupts the thread. The exit of the process waits for it a
// little.
Status StartThread(Fd listening, bool keep_stderr) {
  static const int registered = std::atexit(WaitForThreads);
  (void)registered;
  Threads& threads = TheThreads();
  if (::getpid() != threads.owner) {
    return FailedPrecondition(
        "a child of fork has no network helper in its process");
  }
  const std::lock_guard<std::mutex> lock(threads.mutex);
  // The thread, and those that it makes, inherit the mask. A connection that
  // the other end has closed is then an error, and not SIGPIPE.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  // Faults are for a sanitizer and a debugger.
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
    ::sigdelset(&all, fault);
  }
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    std::thread(ServeOnThread, std::move(listening), keep_stderr).detach();
    ++threads.running;
  } catch (const std::system_error& error) {
    status = ResourceExhausted("starting a thread for the network helper: ",
                               error.what());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

[[maybe_unused]] const bool is_set = [] {
  SetInProcessStart(StartThread);
  return true;
}();

}  // namespace
}  // namespace shard::network
