// SPDX-License-Identifier: Apache-2.0
//
// DeviceClock: tells by the host's clock when a device came to events.
//
// The driver tells the time between two events of a device alone. So now and
// then the clock records an anchor, an event on a stream of its own, which has
// no other work: the device comes to it some microseconds after the host has
// recorded it, or later where the driver has one queue for many streams
// (CUDA_DEVICE_MAX_CONNECTIONS). The time of another event is that of the
// anchor, and the time between the two. Anchors are a second old at most when
// an event is recorded; in a second the clocks of device and host drift apart
// by some ten microseconds.
//
// Thread-safe, but for End.

#ifndef SHARD_CORE_DEVICE_CUDA_DEVICE_CLOCK_H_
#define SHARD_CORE_DEVICE_CUDA_DEVICE_CLOCK_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "core/base/status.h"
#include "core/device/cuda/driver_api.h"

namespace shard::cuda {

class Context;

class DeviceClock {
 public:
  // `context` outlives the clock and its anchors.
  explicit DeviceClock(Context* context) : context_(context) {}
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  class Anchor {
   public:
    explicit Anchor(Context* context);
    ~Anchor();
    Anchor(const Anchor&) = delete;
    Anchor& operator=(const Anchor&) = delete;

    // Returns when the device came to `event`, a timed one that was recorded;
    // nothing while it has not come to it. Waits for the anchor, for a moment.
    // REQUIRES: the context is current.
    StatusOr<std::optional<int64_t>> TimeOf(CuEvent event) const;

   private:
    friend class DeviceClock;

    Context* const context_;
    const pid_t owner_;
    CuEvent event_ = nullptr;
    int64_t time_ = 0;  // When the host recorded the event.
    mutable std::atomic<bool> is_done_ = false;
  };

  // Returns an anchor for events that are recorded from now on. REQUIRES: the
  // context is current.
  StatusOr<std::shared_ptr<const Anchor>> Now();

  // Gives back what the clock has of the device. REQUIRES: the context is
  // current, and Now is not called any more.
  void End() noexcept;

 private:
  Context* const context_;
  std::mutex mutex_;
  // GUARDED_BY(mutex_):
  CuStream stream_ = nullptr;
  std::shared_ptr<const Anchor> anchor_;
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_DEVICE_CLOCK_H_
