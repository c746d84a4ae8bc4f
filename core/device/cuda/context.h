// SPDX-License-Identifier: Apache-2.0
//
// Context: the primary context of a device, which a process shares with
// whatever else uses the device in it, such as PyTorch. It is retained while
// anything of libshard lives on the device, and made current only during a
// call: the host's current context stays what it was.
//
// Thread-safe. In a child of fork it is never destroyed.

#ifndef SHARD_CORE_DEVICE_CUDA_CONTEXT_H_
#define SHARD_CORE_DEVICE_CUDA_CONTEXT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/cuda/driver.h"
#include "core/device/work_queue/work_queue.h"

namespace shard::cuda {

class DeviceClock;

// Whether the time at which the device comes to an event is kept.
enum class EventKind { kUntimed, kTimed };

class Context {
 public:
  // Retains the context of device `ordinal`.
  static StatusOr<std::shared_ptr<Context>> Open(int ordinal);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Driver* driver() const { return driver_; }
  const DriverApi& api() const { return driver_->api(); }
  CuDevice device() const { return device_; }
  int ordinal() const { return ordinal_; }
  // Returns "cuda:0".
  const std::string& name() const { return name_; }
  // Returns the number of the device's multiprocessors.
  unsigned multiprocessors() const { return multiprocessors_; }
  CuContext handle() const { return handle_; }

  // Returns the monitor that the threads of all streams wait on.
  const std::shared_ptr<Monitor>& monitor() const { return monitor_; }

  // Makes the context current in this thread while it lives. Meanwhile the
  // thread may call what is forbidden while work of any stream is captured,
  // since the host may capture its own.
  class Current {
   public:
    explicit Current(const Context& context);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

    // Whether it is current.
    CuResult result() const { return result_; }

   private:
    static CuResult Push(const Context& context);

    const DriverApi& api_;
    const CuResult result_;
    CuCaptureMode mode_ = CuCaptureMode::kRelaxed;
    bool is_relaxed_ = false;  // Then mode_ is the host's.
  };

  // Runs `work`, a Status(), while the context is current in this thread.
  template <typename Work>
  Status Run(const Work& work) const {
    const Current current(*this);
    SHARD_RETURN_IF_ERROR(
        driver_->ToStatus(current.result(), "cuCtxPushCurrent"));
    return work();
  }

  // Takes an event of a kind from those that are not in use. Where there is
  // none, makes as many as there are in all, at most 16: how many are in use at
  // once differs a little from step to step, and a step should make none.
  // REQUIRES: the context is current.
  StatusOr<CuEvent> TakeEvent(EventKind kind = EventKind::kUntimed);
  void ReturnEvent(CuEvent event,
                   EventKind kind = EventKind::kUntimed) noexcept;

  // Returns the clock of the device, which is destroyed with the context.
  DeviceClock& clock() const { return *clock_; }

  // Blocks until `event`, which was recorded, is done, the deadline has passed,
  // or `stop`, where it is given, returns true. Returns false in the latter two
  // cases. An error is the device's.
  StatusOr<bool> Await(CuEvent event, const Deadline& deadline,
                       const std::function<bool()>& stop) const;

  // Returns kResourceExhausted for `bytes` bytes that the device has no room
  // for. `what`: the purpose of the memory. REQUIRES: the context is current.
  Status OutOfMemory(std::string_view what, size_t bytes) const;

  // Returns whether no call works any more: then nothing runs on the device.
  // False where the context is not current.
  bool IsLost() const;

  // Work is left on the device that did not end: nothing of the context is
  // freed or ended from here on, because that work may use it.
  void Abandon() { abandoned_.store(true, std::memory_order_relaxed); }
  bool is_abandoned() const {
    return abandoned_.load(std::memory_order_relaxed);
  }

 private:
  Context(const Driver* driver, int ordinal);
  Status Retain();

  const Driver* const driver_;
  const int ordinal_;
  const std::string name_;
  const std::shared_ptr<Monitor> monitor_;
  CuDevice device_ = 0;
  CuContext handle_ = nullptr;
  unsigned multiprocessors_ = 0;
  std::atomic<bool> abandoned_ = false;
  struct EventPool {
    std::vector<CuEvent> unused;
    size_t total = 0;  // With those in use.
  };
  std::mutex mutex_;
  std::array<EventPool, 2> events_;  // By kind. GUARDED_BY(mutex_)
  // Returns its events to the pool.
  const std::unique_ptr<DeviceClock> clock_;
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_CONTEXT_H_
