// SPDX-License-Identifier: Apache-2.0

#include "core/device/work_queue/work_queue.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <new>
#include <utility>

#include "core/base/strings.h"
#include "core/device/work_queue/forked.h"

namespace shard {

namespace {

struct Work {
  std::string what;
  std::function<Status()> run;
};

// The generator of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
// Generators", OOPSLA 2014.
uint64_t SplitMix64(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

struct WorkQueue::State {
  State(std::shared_ptr<Monitor> shared, std::string_view thread_name,
        const Pauses& how)
      : monitor(std::move(shared)),
        name(thread_name),
        pauses(how),
        cancelled(Cancelled("stream '", name,
                            "' was destroyed before it came to this")),
        out_of_memory(ResourceExhausted(
            "stream '", name, "' ran out of memory; free some and start anew")),
        threw(Internal("stream '", name, "': a host function threw")) {}

  const std::shared_ptr<Monitor> monitor;
  const std::string name;
  const Pauses pauses;
  // Made in advance, for places where an allocation must not fail.
  const Status cancelled;
  const Status out_of_memory;
  const Status threw;

  // Set before the first work, and not after it.
  std::function<void(const Status&)> on_error;
  // Held while on_error is called, which is once.
  std::mutex report_mutex;
  bool reported = false;  // GUARDED_BY(report_mutex)

  // Tells the queue's thread of work and of `stop`.
  std::condition_variable called;
  // Tells those that wait for work of this queue that some is completed.
  mutable std::condition_variable advanced;

  // All members below are GUARDED_BY(monitor->mutex).
  std::deque<Work> queue;
  // The queue that this one's thread waits for, or null. A thread that has to
  // stop is told by what it waits for.
  const State* awaited = nullptr;
  bool stop = false;
  uint64_t pushed = 0;
  uint64_t completed = 0;
  std::string at;  // The work that is running.
  // The first error that was found. It is that of the queue before on_error
  // tells others of it, who may fail the queue in turn.
  Status found;
  // The same, for events, once on_error has returned.
  Status error;
  uint64_t failed_at = 0;  // The number of the work that failed.

  // Returns the status at a number. REQUIRES, here and below: the lock.
  Status StatusAt(uint64_t number) const {
    return failed_at <= number ? error : Status();
  }

  // Waits until `number` pieces of work are completed, or until `waiter`, if
  // any, has to stop.
  Status WaitFor(uint64_t number, State* waiter, const Deadline& deadline,
                 std::unique_lock<std::mutex>* lock) const {
    if (waiter != nullptr) waiter->awaited = this;
    const bool in_time = advanced.wait_for(*lock, deadline.Remaining(), [&] {
      return completed >= number || (waiter != nullptr && waiter->stop);
    });
    if (waiter != nullptr) waiter->awaited = nullptr;
    if (!in_time) return NotDone(number, deadline);
    return completed >= number ? StatusAt(number) : waiter->cancelled;
  }

  // Makes the first error that of events from a number on. `status`: what
  // Report was given, where there was no memory to keep it. REQUIRES: Report
  // has returned.
  void Fail(const Status& status, uint64_t number) {
    if (!error.ok()) return;
    error = found.ok() ? status : found;
    failed_at = number;
  }

  Status NotDone(uint64_t number, const Deadline& deadline) const {
    const uint64_t left = number - completed;
    return DeadlineExceeded(
        "stream '", name, "' was not done within ", deadline.seconds(), " s: ",
        at.empty() ? StrCat("it has begun none of ", left)
                   : StrCat("it is at '", at, "', the first of ", left),
        " to do; look there, or give it a longer timeout");
  }

  void Run();

  // Keeps an error, unless another one was found before, and calls the handler
  // with the first one, unless it was called. REQUIRES: no lock; nothing was
  // completed with the error.
  void Report(const Status& failed) noexcept;

 private:
  void Pause(std::unique_lock<std::mutex>* lock, uint64_t* random);
  Status RunOutside(Work* work, bool dropped);
};

// A point of a queue, maybe in its past.
class WorkQueue::QueueEvent final : public EventState {
 public:
  QueueEvent(std::shared_ptr<const State> state, uint64_t number)
      : state_(std::move(state)), number_(number) {}

  const std::string& name() const { return state_->name; }

  bool IsDone() const override {
    const std::lock_guard<std::mutex> lock(state_->monitor->mutex);
    return state_->completed >= number_;
  }

  Status Synchronize(const Deadline& deadline) const override {
    return SynchronizeUnless(nullptr, deadline);
  }

  // Waits on the thread of `waiter`, if any, which ends the wait when it has to
  // stop.
  Status SynchronizeUnless(State* waiter, const Deadline& deadline) const {
    std::unique_lock<std::mutex> lock(state_->monitor->mutex);
    return state_->WaitFor(number_, waiter, deadline, &lock);
  }

 private:
  const std::shared_ptr<const State> state_;
  const uint64_t number_;
};

StatusOr<std::unique_ptr<WorkQueue>> WorkQueue::Start(
    std::shared_ptr<Monitor> monitor, std::string_view name,
    const Pauses& pauses) {
  std::unique_ptr<WorkQueue> queue(new WorkQueue(
      MakeSharedUnlessForked<State>(std::move(monitor), name, pauses)));
  // A new thread inherits the signal mask of the thread that creates it.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error =
      ::pthread_create(&queue->thread_, nullptr, &Main, queue->state_.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    return ResourceExhausted(
        "starting the thread of stream '", name,
        "': ", ErrnoStatus("pthread_create", error).message(),
        "; raise the limit of threads (ulimit -u, pids.max) or use fewer");
  }
  queue->started_ = true;
  return queue;
}

WorkQueue::WorkQueue(std::shared_ptr<State> state)
    : state_(std::move(state)), owner_(::getpid()) {}

WorkQueue::~WorkQueue() {
  if (!started_ || ::getpid() != owner_) return;
  {
    const std::lock_guard<std::mutex> lock(state_->monitor->mutex);
    state_->stop = true;
    // With the lock: the thread may end its wait, and let go of that queue.
    if (state_->awaited != nullptr) state_->awaited->advanced.notify_all();
  }
  state_->called.notify_one();
  ::pthread_join(thread_, nullptr);
  // Only the joined thread used the queue. Cleared without the lock, because
  // the destructors of captured objects may do anything.
  state_->queue.clear();
  const bool drops = state_->completed < state_->pushed && state_->error.ok();
  if (drops) state_->Report(state_->cancelled);
  {
    // An error that is found from here on has no handler any more.
    const std::lock_guard<std::mutex> lock(state_->report_mutex);
    state_->reported = true;
  }
  {
    const std::lock_guard<std::mutex> lock(state_->monitor->mutex);
    if (drops) state_->Fail(state_->cancelled, state_->completed + 1);
    state_->completed = state_->pushed;
  }
  state_->advanced.notify_all();
}

std::string_view WorkQueue::name() const { return state_->name; }

WorkQueue::Turn WorkQueue::turn() const {
  const std::lock_guard<std::mutex> lock(state_->monitor->mutex);
  if (!state_->error.ok()) return Turn::kNever;
  return state_->completed == state_->pushed ? Turn::kNow : Turn::kLater;
}

void WorkQueue::Fail(const Status& status) {
  state_->Report(status);
  const std::lock_guard<std::mutex> lock(state_->monitor->mutex);
  state_->Fail(status, state_->completed + 1);
}

bool WorkQueue::IsStopping() const {
  const std::lock_guard<std::mutex> lock(state_->monitor->mutex);
  return state_->stop;
}

void WorkQueue::OnError(std::function<void(const Status&)> handler) {
  const std::lock_guard<std::mutex> lock(state_->monitor->mutex);
  state_->on_error = std::move(handler);
}

void WorkQueue::Push(std::string_view what, std::function<Status()> run) {
  Work work = {std::string(what), std::move(run)};
  {
    const std::lock_guard<std::mutex> lock(state_->monitor->mutex);
    state_->queue.push_back(std::move(work));
    ++state_->pushed;
  }
  state_->called.notify_one();
}

void WorkQueue::PushWait(const Event& event, const Deadline& deadline) {
  if (event.state() == nullptr && event.Synchronize(deadline).ok()) return;
  const auto* const point = static_cast<const QueueEvent*>(event.state());
  const std::string what =
      point == nullptr ? "wait" : StrCat("wait for '", point->name(), "'");
  // The state outlives its thread.
  Push(what, [event, end = EndOfWait(deadline), point, state = state_.get()] {
    return point == nullptr ? event.Synchronize(end)
                            : point->SynchronizeUnless(state, end);
  });
}

Event WorkQueue::Record() const {
  const std::lock_guard<std::mutex> lock(state_->monitor->mutex);
  if (state_->completed == state_->pushed) return Event(state_->error);
  return Event(std::make_shared<QueueEvent>(state_, state_->pushed));
}

Status WorkQueue::Synchronize(const Deadline& deadline) const {
  std::unique_lock<std::mutex> lock(state_->monitor->mutex);
  if (state_->completed == state_->pushed) return state_->error;
  return state_->WaitFor(state_->pushed, nullptr, deadline, &lock);
}

Status WorkQueue::status() const {
  const std::lock_guard<std::mutex> lock(state_->monitor->mutex);
  return state_->error;
}

void* WorkQueue::Main(void* state) {
  auto* const mine = static_cast<State*>(state);
  ::pthread_setname_np(::pthread_self(), mine->name.c_str());
  mine->Run();
  return nullptr;
}

void WorkQueue::State::Run() {
  uint64_t random = pauses.seed;
  std::unique_lock<std::mutex> lock(monitor->mutex);
  for (;;) {
    called.wait(lock, [this] { return stop || !queue.empty(); });
    const bool dropped = !error.ok();
    if (!stop && !dropped && pauses.longest > 0) Pause(&lock, &random);
    if (stop) return;
    Work work = std::move(queue.front());
    queue.pop_front();
    at.swap(work.what);
    lock.unlock();
    const Status status = RunOutside(&work, dropped);
    lock.lock();
    at.clear();
    ++completed;
    if (!status.ok()) Fail(status, completed);
    // Without the lock, which those that wait take.
    lock.unlock();
    advanced.notify_all();
    lock.lock();
  }
}

void WorkQueue::State::Pause(std::unique_lock<std::mutex>* lock,
                             uint64_t* random) {
  const uint64_t bits = SplitMix64(random);
  if (bits % 2 == 0) return;
  const std::chrono::duration<double> pause(
      pauses.longest * (static_cast<double>(bits >> 11) * 0x1p-53));
  called.wait_for(*lock, pause, [this] { return stop; });
}

void WorkQueue::State::Report(const Status& failed) noexcept {
  const Status* first = &failed;
  try {
    const std::lock_guard<std::mutex> lock(monitor->mutex);
    if (found.ok()) found = failed;
    // It stays as it is from here on.
    first = &found;
  } catch (...) {  // NOLINT: without memory it is told, but not kept
  }
  const std::lock_guard<std::mutex> lock(report_mutex);
  if (std::exchange(reported, true) || !on_error) return;
  try {
    on_error(*first);
  } catch (...) {  // NOLINT: the stream fails all the same
  }
}

// Destroys the function before its work counts as completed, and without the
// lock.
Status WorkQueue::State::RunOutside(Work* work, bool dropped) {
  Status status;
  if (!dropped) {
    // No caller of this thread could catch an exception.
    try {
      status = work->run();
    } catch (const std::bad_alloc&) {
      status = out_of_memory;
    } catch (...) {
      status = threw;
    }
    if (!status.ok()) Report(status);
  }
  work->run = nullptr;
  return status;
}

}  // namespace shard
