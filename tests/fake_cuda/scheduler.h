// SPDX-License-Identifier: Apache-2.0
//
// The streams of the fake and the thread that runs their operations, one at a
// time, in an order chosen at random among those that streams and events allow.
//
// The mutex of the fake guards all of it; each method REQUIRES that it is held.
// Only operations run without it.

#ifndef SHARD_TESTS_FAKE_CUDA_SCHEDULER_H_
#define SHARD_TESTS_FAKE_CUDA_SCHEDULER_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/fake_cuda/clock.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/memory_map.h"

namespace shard::testing::fake_cuda {

struct Operation {
  Actor actor;
  Clock clock;  // What happened before it, and itself.
  std::function<void()> run;
  // Instead of `run`, for an operation that waits for something beside streams
  // (a rank that has not come): called again and again until kDone.
  std::function<Progress()> attempt;
  bool is_begun = false;  // It was attempted.
  // Others that must be done first, beside those before it in its stream.
  // Empty once it is done.
  std::vector<std::shared_ptr<Operation>> after;
  bool is_needed = false;  // For lazy devices.
  bool is_done = false;
  std::chrono::steady_clock::time_point end;  // When it was done or dropped.
  // Tells those that wait for this operation alone that it is done.
  std::condition_variable ended;
};

struct Stream {
  size_t id;
  uint64_t context;
  int device;
  bool is_legacy = false;
  bool is_blocking = false;
  bool is_destroyed = false;
  // The first operation has answered kWaits, and nothing has moved since.
  bool is_waiting = false;
  Clock clock;
  std::shared_ptr<Operation> last;
  std::deque<std::shared_ptr<Operation>> pending;
  // Of a legacy stream: blocking streams that were destroyed, at their ends.
  std::vector<std::shared_ptr<Operation>> destroyed;
};

class Scheduler {
 public:
  // `opened(true)` is called before an operation runs, and `opened(false)`
  // after it, with the mutex held.
  Scheduler(std::mutex* mutex, std::function<void(bool)> opened);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Forgets all streams and work, once the operation that runs has ended.
  void Reset(const Options& options, std::unique_lock<std::mutex>* lock);

  std::shared_ptr<Stream> AddStream(uint64_t context, int device, bool legacy,
                                    bool blocking);
  // Its work goes on.
  void Destroy(Stream* stream);

  // Adds work to the end of a stream, which is done after `awaited`, too,
  // unless that is null.
  std::shared_ptr<Operation> Enqueue(
      Stream* stream, const std::string& name, std::function<void()> run,
      const std::shared_ptr<Operation>& awaited = nullptr);
  // The host knows that `operation` is done.
  void TellHost(const Operation& operation) { host_.Join(operation.clock); }
  // Makes an operation of the host.
  Actor HostActor(const std::string& name);
  const Clock& host_clock() const { return host_; }

  // Lets a lazy device do what `operation` needs.
  void Need(const std::shared_ptr<Operation>& operation);
  // Waits until the work that a context has now, or all contexts for 0, is done
  // or dropped.
  void Drain(uint64_t context, std::unique_lock<std::mutex>* lock);
  // Waits until `operation` is done, which the host then knows, or dropped.
  void Await(const std::shared_ptr<Operation>& operation,
             std::unique_lock<std::mutex>* lock);
  // Waits for a moment at most until `operation` is done or dropped, unless the
  // device is not to come to it: a host that asks again and again is then woken
  // by the operation, and takes no time of the ranks that it waits for.
  void AwaitShortly(Operation* operation, std::unique_lock<std::mutex>* lock);
  // Drops all work that has not begun.
  void Drop();
  // Waits until the operation that runs has ended.
  void AwaitRunning(std::unique_lock<std::mutex>* lock);

  // Lets as many operations begin, and then none until Resume.
  void PauseAfter(uint64_t operations);
  void Resume();
  // Whether an operation runs.
  bool is_running() const { return running_ != nullptr; }
  size_t num_pending() const;
  // Loses the devices with an operation: `lost` is called.
  void LoseAt(uint64_t operation, std::function<void()> lost) {
    lose_at_ = num_run_ + operation;
    lost_ = std::move(lost);
  }

 private:
  bool is_paused() const { return pause_at_ && num_run_ >= *pause_at_; }
  // Returns the place of a new stream in clocks: that of one that was destroyed
  // where the host knows all of its work, and so all that the host will enqueue
  // comes after it. Numbers of operations go on.
  size_t NextId();
  void Loop();
  void RemoveDestroyed();
  // Runs an operation, or attempts it. Returns whether it has ended.
  bool Run(Operation* operation, std::unique_lock<std::mutex>* lock);
  // Puts an operation that has not ended back into the stream that runs.
  void PutBack(std::shared_ptr<Operation> operation);
  // Lets operations that wait be attempted again, because something has moved.
  void NoteProgress();
  // Marks an operation as done, or dropped.
  static void End(Operation* operation);
  // Sleeps until there may be something to do.
  void AwaitWork(std::unique_lock<std::mutex>* lock);
  // Lets lazy devices come to all operations that others may wait for.
  void NeedAttempts();
  bool CanRun(const Stream& stream) const;
  Stream* Choose();

  std::mutex* const mutex_;
  const std::function<void(bool)> opened_;
  std::condition_variable work_;
  std::condition_variable idle_;  // No operation runs.
  bool is_started_ = false;
  // No operation begins once so many have; null: not paused.
  std::optional<uint64_t> pause_at_;
  bool is_lazy_ = false;
  std::chrono::microseconds max_delay_{0};
  std::mt19937_64 random_;
  Clock host_;
  size_t next_id_ = Clock::kHost + 1;
  std::vector<std::shared_ptr<Stream>> retired_;  // Their places may be free.
  std::vector<std::shared_ptr<Stream>> streams_;  // With work, or alive.
  // The stream of the operation that runs.
  std::shared_ptr<Stream> running_;
  // When operations that wait are attempted again though nothing has moved, and
  // the pause before that.
  std::optional<std::chrono::steady_clock::time_point> poll_at_;
  std::chrono::microseconds pause_;
  uint64_t num_run_ = 0;
  uint64_t num_drops_ = 0;
  uint64_t lose_at_ = 0;
  std::function<void()> lost_;
};

}  // namespace shard::testing::fake_cuda

#endif  // SHARD_TESTS_FAKE_CUDA_SCHEDULER_H_
