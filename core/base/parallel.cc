// SPDX-License-Identifier: Apache-2.0

#include "core/base/parallel.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/out_of_memory.h"

namespace shard {

namespace {

struct Task {
  const std::function<Status(int)>* work;
  int index;
  Status status;
  pthread_t thread;
};

// Returns the status that `call` returns, or one for the exception that it
// throws.
template <typename Call>
Status Caught(const Call& call) noexcept {
  try {
    try {
      return call();
    } catch (const std::bad_alloc&) {
      return OutOfMemoryStatus();
    } catch (const std::exception& error) {
      return Internal("an exception in a thread: ", error.what());
    } catch (...) {
      return Internal("an exception of an unknown type in a thread");
    }
  } catch (...) {  // No memory for the message.
    return OutOfMemoryStatus();
  }
}

Status RunTask(const Task& task) noexcept {
  return Caught([&] { return (*task.work)(task.index); });
}

void* Main(void* argument) {
  auto* const task = static_cast<Task*>(argument);
  ::pthread_setname_np(::pthread_self(), "shard-io");
  task->status = RunTask(*task);
  return nullptr;
}

}  // namespace

Status RunOnThreads(int threads, const std::function<Status(int)>& work) {
  (void)OutOfMemoryStatus();  // Made before a thread may need it.
  std::vector<Task> tasks(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    tasks[static_cast<size_t>(i)] = {&work, i, Status(), {}};
  }
  // A new thread inherits the signal mask of the thread that creates it.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  size_t started = 1;
  while (started < tasks.size() &&
         ::pthread_create(&tasks[started].thread, nullptr, &Main,
                          &tasks[started]) == 0) {
    ++started;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  tasks[0].status = RunTask(tasks[0]);
  for (size_t i = 1; i < started; ++i) {
    ::pthread_join(tasks[i].thread, nullptr);
  }
  for (const Task& task : tasks) SHARD_RETURN_IF_ERROR(task.status);
  return Status();
}

Status ParallelFor(
    size_t count, int threads,
    const std::function<Status(size_t index, int thread)>& work) {
  struct Failure {
    size_t index;
    Status status;
  };
  if (count == 0) return Status();
  const auto used = static_cast<int>(
      std::min(count, static_cast<size_t>(std::max(threads, 1))));
  std::vector<Failure> failures(static_cast<size_t>(used), {count, Status()});
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const auto run = [&](int thread) -> Status {
    while (!failed) {
      const size_t index = next.fetch_add(1);
      if (index >= count) break;
      Status status = Caught([&] { return work(index, thread); });
      if (status.ok()) continue;
      failures[static_cast<size_t>(thread)] = {index, std::move(status)};
      failed = true;
    }
    return Status();
  };
  SHARD_RETURN_IF_ERROR(RunOnThreads(used, run));
  const auto order = [count](const Failure& failure) {
    const bool none = failure.index == count;
    const bool cancelled = failure.status.code() == StatusCode::kCancelled;
    return std::tuple(none, cancelled, failure.index);
  };
  return std::min_element(failures.begin(), failures.end(),
                          [&](const Failure& a, const Failure& b) {
                            return order(a) < order(b);
                          })
      ->status;
}

}  // namespace shard
