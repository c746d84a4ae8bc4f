// SPDX-License-Identifier: Apache-2.0

#include "core/base/parallel.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <new>
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

Status RunCaught(const Task& task) noexcept {
  try {
    try {
      return (*task.work)(task.index);
    } catch (const std::bad_alloc&) {
      return OutOfMemoryStatus();
    } catch (const std::exception& error) {
      return Internal("an exception in a thread: ", error.what());
    }
  } catch (...) {
    return OutOfMemoryStatus();
  }
}

void* Main(void* argument) {
  auto* const task = static_cast<Task*>(argument);
  ::pthread_setname_np(::pthread_self(), "shard-io");
  task->status = RunCaught(*task);
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
  tasks[0].status = RunCaught(tasks[0]);
  for (size_t i = 1; i < started; ++i) {
    ::pthread_join(tasks[i].thread, nullptr);
  }
  for (const Task& task : tasks) SHARD_RETURN_IF_ERROR(task.status);
  return Status();
}

}  // namespace shard
